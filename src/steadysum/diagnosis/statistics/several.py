"""What remains of evidence when several probes were asked: the more of them, the sooner one deviates by chance.

Only p-values and confidences; what they are p-values of is the callers' concern.
"""

from __future__ import annotations

from collections.abc import Mapping

from steadysum.diagnosis.rates import CONFIDENCE
from steadysum.diagnosis.statistics.question import check_open_unit
from steadysum.errors import RangeError

__all__ = ["confidence_of_each", "holm"]


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """The p-values corrected for their number, under the same names and in the same order.

    To call significant whatever is then at or below 5 % errs, in any of them, with probability 5 % at most, however
    the probes depend on each other.

    Args:
        p_values: of each probe, in [0, 1].

    Returns:
        Corrected p-values, each in [0, 1] and no smaller than before.

    Raises:
        RangeError: a p-value outside of [0, 1].

    Source: Holm, Scandinavian Journal of Statistics 6 (1979).

    >>> holm({"rerun": 0.01, "row alone": 0.3, "threads": 0.02})
    {'rerun': 0.03, 'row alone': 0.3, 'threads': 0.04}
    """
    for name, value in p_values.items():
        if not 0.0 <= value <= 1.0:
            raise RangeError(f"p-value of {name}", f"{value}", "a number in [0, 1]", "Pass a probability.")
    corrected, least = {}, 0.0
    for place, name in enumerate(sorted(p_values, key=p_values.__getitem__)):
        least = max(least, min(1.0, (len(p_values) - place) * p_values[name]))
        corrected[name] = least
    return {name: corrected[name] for name in p_values}


def confidence_of_each(probes: int, confidence: float = CONFIDENCE) -> float:
    """The confidence that each of several intervals needs, so that all of them hold together with `confidence`.

    Args:
        probes: number of intervals, at least 1.
        confidence: of all of them at once, in (0, 1).

    Raises:
        RangeError: values outside of these ranges.

    Source: Bonferroni's inequality; holds however the probes depend on each other.

    >>> round(confidence_of_each(10), 4)
    0.995
    """
    if probes < 1:
        raise RangeError("number of probes", f"{probes}", "at least 1", "Count the intervals that are shown together.")
    check_open_unit("confidence", confidence)
    return 1.0 - (1.0 - confidence) / probes
