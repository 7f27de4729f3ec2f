"""An interval of a rate that holds whenever one stops and looks: after every call, after a decision, after Ctrl-C.

It may be read as often as one likes, which an exact interval for a number of calls fixed before (rates.py) may not.
Calls must be alike: each deviates with the same rate, whatever the calls before it did.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from steadysum.diagnosis.rates import CONFIDENCE, Interval
from steadysum.diagnosis.statistics.question import check_open_unit
from steadysum.errors import RangeError

__all__ = ["anytime_interval", "log_evidence_against"]

# Half of the weight lies on "never deviates", which is what most operators do: with no deviation in a number of calls
# the interval then is no wider than the exact one, and everywhere else it costs log 2 in the logarithm of the evidence.
_NEVER = 0.5
_PRIOR = 0.5  # Jeffreys' Beta(1/2, 1/2) for the other half: no rate, however near to 0 or 1, is far from it


def anytime_interval(deviating: int, calls: int, confidence: float = CONFIDENCE) -> Interval:
    """The rates that the calls so far don't contradict; the true one is among them at all times at once.

    Args:
        deviating: number of calls that deviated, 0 <= deviating <= calls.
        calls: number of calls made so far. 0 calls tell nothing: the interval is [0, 1].
        confidence: probability that the interval covers the rate after every call that is ever made; in (0, 1).

    Raises:
        RangeError: the counts aren't 0 <= deviating <= calls, or confidence isn't in (0, 1).

    Source: a confidence sequence by the method of mixtures: Robbins, Annals of Mathematical Statistics 41 (1970), and
    Howard, Ramdas, McAuliffe and Sekhon, Annals of Statistics 49 (2021). The likelihood ratio of a mixture of rates to
    the true rate is a martingale that starts at 1, so that by Ville's inequality it ever reaches 1 / (1 - confidence)
    with probability 1 - confidence at most; the rates at which it has are left out. The mixture's weights are our own.

    >>> "{:.4f} {:.4f}".format(*anytime_interval(0, 299))
    '0.0000 0.0122'
    >>> "{:.4f} {:.4f}".format(*anytime_interval(8, 336))
    '0.0046 0.0681'
    """
    if not 0 <= deviating <= calls:
        raise RangeError(
            "counts",
            f"deviating = {deviating} of calls = {calls}",
            "0 <= deviating <= calls",
            "Count every call once, whether it deviates or not.",
        )
    check_open_unit("confidence", confidence)
    if calls == 0:
        return Interval(0.0, 1.0)
    bar = -math.log1p(-confidence)
    mixture = float(_log_mixture(deviating, calls))
    if deviating == 0:
        return Interval(0.0, -math.expm1(min(0.0, mixture - bar) / calls))
    if deviating == calls:
        return Interval(math.exp((mixture - bar) / calls), 1.0)
    from scipy.optimize import brentq  # here, since scipy.optimize takes long to import

    def above_bar(rate: float) -> float:
        return float(log_evidence_against(rate, deviating, calls)) - bar

    # Convex in the rate, and lowest at the observed share, where it is below the bar: nothing speaks against it.
    share = deviating / calls
    ends = (
        brentq(above_bar, edge, share, xtol=1e-18) if above_bar(edge) > 0.0 else edge
        for edge in (math.ulp(0.0), 1.0 - math.ulp(0.5))
    )
    return Interval(*map(float, ends))


def log_evidence_against(rate: npt.ArrayLike, deviating: npt.ArrayLike, calls: npt.ArrayLike) -> npt.NDArray[Any]:
    """Natural logarithm of the likelihood ratio of the mixture to one rate, elementwise.

    Args:
        rate: in (0, 1).
        deviating: number of calls that deviated, of `calls` so far.
        calls: number of calls.

    Returns:
        What broadcasting the three gives. Its exponential is a martingale with mean 1 if the rate is the true one.

    >>> round(float(log_evidence_against(0.0123, 0, 299)), 2)  # log(20) = 3.00 is where a 95 % interval ends
    3.04
    """
    rate, deviating, calls = (np.asarray(values, dtype=np.float64) for values in (rate, deviating, calls))
    likelihood = deviating * np.log(rate) + (calls - deviating) * np.log1p(-rate)
    return np.asarray(_log_mixture(deviating, calls) - likelihood)


def _log_mixture(deviating: npt.ArrayLike, calls: npt.ArrayLike) -> npt.NDArray[Any]:
    """Log-likelihood of the calls under the mixture of rates."""
    from scipy.special import betaln  # here, since scipy.special costs 0.1 s that few imports of this module need

    deviating, calls = np.asarray(deviating, dtype=np.float64), np.asarray(calls, dtype=np.float64)
    spread = math.log1p(-_NEVER) + betaln(_PRIOR + deviating, _PRIOR + calls - deviating) - betaln(_PRIOR, _PRIOR)
    never = np.where(deviating == 0.0, math.log(_NEVER), -np.inf)
    return np.asarray(np.logaddexp(never, spread))
