"""What the field report promises of each profile, and when a measurement may say that it holds.

A share of right calls is stated by its exact 95 % interval: "> 99.99 %" is said only where the interval's lower end
exceeds it. Not here: any measurement.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Final, NamedTuple

from steadysum.diagnosis.rates import CONFIDENCE, Interval, clopper_pearson
from steadysum.timing import Ratio

__all__ = ["PROMISES", "Promise", "Share", "Verdict", "calls_needed", "cost_verdict", "share_verdict"]


class Promise(NamedTuple):
    """Of one profile."""

    right: float  # more than this share of calls is right
    cost: float  # for less than this share of the time beside


# Field report, R16.
PROMISES: Final = {
    "training": Promise(0.999, 0.05),
    "inference": Promise(0.9999, 0.02),
    "batch": Promise(0.995, 0.08),
}


class Verdict(StrEnum):
    """Whether a promise holds."""

    MET = "met"  # the whole interval lies on the promise's side
    MISSED = "missed"  # the whole interval lies on the other
    OPEN = "open"  # the interval holds both: more calls would tell


class Share(NamedTuple):
    """A count of calls of a number of calls."""

    number: int
    calls: int

    @property
    def interval(self) -> Interval:
        """The exact 95 % interval of the rate behind it."""
        return clopper_pearson(self.number, self.calls)


def share_verdict(share: Share, promised: float) -> Verdict:
    """Whether more than the promised share is right.

    >>> share_verdict(Share(3688, 3688), 0.999).value, share_verdict(Share(3687, 3687), 0.999).value
    ('met', 'open')
    """
    low, high = share.interval
    return Verdict.MET if low > promised else Verdict.MISSED if high <= promised else Verdict.OPEN


def cost_verdict(ratio: Ratio, promised: float) -> Verdict:
    """Whether a ratio of times stays below 1 + the promised cost."""
    bar = 1.0 + promised
    return Verdict.MET if ratio.high < bar else Verdict.MISSED if ratio.low >= bar else Verdict.OPEN


def calls_needed(promised: float) -> int:
    """The least number of calls that can show the promised share: with none of them wrong.

    >>> [calls_needed(promise.right) for promise in PROMISES.values()]
    [3688, 36887, 736]
    """
    # With all of n calls right, the interval's lower end is tail ** (1 / n).
    tail = (1.0 - CONFIDENCE) / 2.0
    return math.floor(math.log(tail) / math.log(promised)) + 1
