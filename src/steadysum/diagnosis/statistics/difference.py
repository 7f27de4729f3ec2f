"""How much two rates differ, with intervals, and whether they differ at all: a mitigation's against its baseline's.

Two intervals: a narrow one for numbers of runs fixed before the start, a wide one for runs that may have stopped early.
What a mitigation's difference means, beside its slowdown, is in mitigation.py.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from steadysum.diagnosis.rates import CONFIDENCE, clopper_pearson
from steadysum.diagnosis.statistics.anytime import anytime_interval

__all__ = ["Counts", "Difference", "difference_of_planned_runs", "difference_of_stopped_runs", "p_value_if_no_higher"]


class Counts(NamedTuple):
    """Calls made, and how many of them deviated."""

    deviating: int
    calls: int


class Difference(NamedTuple):
    """One rate less another, with its interval; all in [-1, 1]."""

    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether the rates can't be equal."""
        return not self.low <= 0.0 <= self.high


def difference_of_planned_runs(one: Counts, other: Counts, confidence: float = CONFIDENCE) -> Difference:
    """The interval of one rate less the other, where both numbers of runs were fixed before the start.

    Args:
        one: counts behind the first rate.
        other: counts behind the rate that is taken off; of other runs than `one`.
        confidence: probability that the interval covers the difference, in (0, 1).

    Raises:
        ValueError: counts that can't be, or confidence isn't in (0, 1).

    Source: the square-and-add method of Newcombe, Statistics in Medicine 17 (1998), number 10, with Clopper and
    Pearson's limits in place of Wilson's, as Zou and Donner, Statistics in Medicine 27 (2008), allow. Not an
    exact method, but 95 % intervals do cover in 95 % of cases or more wherever the tests compute it, except where one
    rate is nearly 0 and the other nearly 1: there in 92 % or more. Exact methods search over both rates for each end.
    Whether the rates differ at all is for p_value_if_no_higher to say, which is exact.

    >>> "{:.4f} {:.4f}".format(*difference_of_planned_runs(Counts(8, 336), Counts(0, 336)))
    '0.0065 0.0464'
    """
    if 0 in (one.calls, other.calls):
        return Difference(-1.0, 1.0)
    own, less = clopper_pearson(*one, confidence), clopper_pearson(*other, confidence)
    share, taken = one.deviating / one.calls, other.deviating / other.calls
    below, above = math.hypot(share - own.low, less.high - taken), math.hypot(own.high - share, taken - less.low)
    return Difference(max(-1.0, share - taken - below), min(1.0, share - taken + above))


def difference_of_stopped_runs(one: Counts, other: Counts, confidence: float = CONFIDENCE) -> Difference:
    """The interval of one rate less the other, whenever and for whatever reason either's runs were stopped.

    Args:
        one: counts behind the first rate.
        other: counts behind the rate that is taken off; of other runs than `one`.
        confidence: probability that the interval covers the difference, in (0, 1).

    Raises:
        RangeError: counts that can't be, or confidence isn't in (0, 1).

    Source: from the ends of two anytime intervals, each of which misses its rate with half of the probability that is
    left (Bonferroni). Wider than that of planned runs: that is the price of having stopped.

    >>> "{:.4f} {:.4f}".format(*difference_of_stopped_runs(Counts(30, 336), Counts(0, 336)))
    '0.0282 0.1616'
    """
    each = (1.0 + confidence) / 2.0
    own, less = anytime_interval(*one, each), anytime_interval(*other, each)
    return Difference(own.low - less.high, own.high - less.low)


def p_value_if_no_higher(one: Counts, other: Counts) -> float:
    """How probable so large a first share is, or a larger one, if its rate is no higher than the other's.

    Args:
        one: counts behind the share that looks higher; the number of runs was fixed before the start.
        other: counts to compare with, likewise.

    Raises:
        ValueError: counts that can't be.

    Source: the one-sided exact test of Fisher, Journal of the Royal Statistical Society 98 (1935): it errs no more
    often than it says, whatever the rates are.

    >>> round(p_value_if_no_higher(Counts(8, 336), Counts(0, 336)), 4)
    0.0037
    """
    for counts in (one, other):
        clopper_pearson(*counts)  # refuses counts that can't be
    from scipy.stats import hypergeom  # here, since scipy.stats takes half a second to import

    deviating, calls = one.deviating + other.deviating, one.calls + other.calls
    return min(1.0, float(hypergeom.sf(one.deviating - 1, calls, deviating, one.calls)))
