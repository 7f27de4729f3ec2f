"""What a count of deviating calls says about the rate behind it.

Exact (Clopper-Pearson) intervals, and the number of calls that it takes to see a fault of a given rate. Not for
measured times: their intervals are in steadysum.timing.
"""

from __future__ import annotations

import math
from typing import NamedTuple

CONFIDENCE = 0.95


class Interval(NamedTuple):
    """A two-sided confidence interval of a rate; both ends lie in [0, 1]."""

    low: float
    high: float

    def lies_above(self, other: Interval) -> bool:
        """Whether every rate in it is higher than all of the other's."""
        return self.low > other.high


def clopper_pearson(deviating: int, calls: int, confidence: float = CONFIDENCE) -> Interval:
    """The exact two-sided interval of the rate, after `deviating` of `calls` calls deviated.

    Args:
        deviating: number of calls that deviated, 0 <= deviating <= calls.
        calls: number of calls made. 0 calls tell nothing: the interval is [0, 1].
        confidence: probability that the interval covers the rate, whatever the rate is; in (0, 1).

    Raises:
        ValueError: the counts aren't 0 <= deviating <= calls, or confidence isn't in (0, 1).

    Source: Clopper and Pearson, Biometrika 26 (1934). 0 of 8 excludes rates above 37 %, no more:

    >>> "{:.3f} {:.3f}".format(*clopper_pearson(0, 8))
    '0.000 0.369'
    >>> "{:.3f} {:.3f}".format(*clopper_pearson(8, 336))
    '0.010 0.046'
    """
    if not 0 <= deviating <= calls:
        raise ValueError(f"deviating = {deviating} of calls = {calls} can't be: need 0 <= deviating <= calls")
    _check_open_unit("confidence", confidence)
    if calls == 0:
        return Interval(0.0, 1.0)
    from scipy.special import betaincinv  # here, since scipy.special costs 0.1 s that few imports of this module need

    tail = (1.0 - confidence) / 2.0
    low = 0.0 if deviating == 0 else float(betaincinv(deviating, calls - deviating + 1, tail))
    high = 1.0 if deviating == calls else float(betaincinv(deviating + 1, calls - deviating, 1.0 - tail))
    return Interval(low, high)


def runs_needed(rate: float, confidence: float = CONFIDENCE) -> int:
    """The least number of calls with at least `confidence` chance to see one that deviates, if `rate` of them do.

    Raises:
        ValueError: rate isn't in (0, 1], or confidence isn't in (0, 1).

    >>> [runs_needed(rate) for rate in (1e-1, 1e-2, 1e-3, 1e-4)]
    [29, 299, 2995, 29956]
    """
    if not 0.0 < rate <= 1.0:
        raise ValueError(f"rate = {rate} can't be: need 0 < rate <= 1")
    _check_open_unit("confidence", confidence)
    if rate == 1.0:
        return 1
    return math.ceil(math.log1p(-confidence) / math.log1p(-rate))


def _check_open_unit(name: str, value: float) -> None:
    if not 0.0 < value < 1.0:
        raise ValueError(f"{name} = {value} can't be: need 0 < {name} < 1")
