"""How many runs a question takes, and how long that is: said before the first of them.

Not here: the test that makes use of the runs (sequential.py), and measuring the time of one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from steadysum.diagnosis.rates import CONFIDENCE
from steadysum.diagnosis.statistics.anytime import anytime_interval
from steadysum.diagnosis.statistics.question import Question, check_open_unit
from steadysum.diagnosis.statistics.walk import closing, course
from steadysum.errors import RangeError

__all__ = ["RunPlan", "clean_runs_for", "findable_rate", "plan_runs", "runs_to_compare"]


@dataclass(frozen=True)
class RunPlan:
    """The runs of a sequential test, and their time."""

    question: Question
    most_runs: int  # the test answers after these at the latest
    mean_runs_if_clean: float  # at the tolerated rate
    mean_runs_if_faulty: float  # at the wanted rate
    seconds_per_run: float

    @property
    def most_seconds(self) -> float:
        """Of the longest test."""
        return self.most_runs * self.seconds_per_run

    def __str__(self) -> str:
        """One sentence, to be said before the start.

        >>> print(plan_runs(Question(wanted=0.01), seconds_per_run=0.02))
        At most 299 runs, about 6 s: a fault of rate 1 % is found with 95 % probability, after 95 runs on average.
        """
        return (
            f"At most {self.most_runs} runs, about {_time(self.most_seconds)}: "
            f"a fault of rate {100 * self.question.wanted:g} % is found with {100 * self.question.confidence:g} % "
            f"probability, after {self.mean_runs_if_faulty:.0f} runs on average."
        )


def plan_runs(question: Question, seconds_per_run: float) -> RunPlan:
    """The runs that a sequential test of the question takes, and their time.

    Args:
        question: the rates and the confidence.
        seconds_per_run: measured, with all that is done beside the call; at least 0.

    Raises:
        RangeError: the time is negative or not finite, or the question takes too many runs (see walk.closing).

    >>> plan_runs(Question(wanted=0.001), seconds_per_run=0.1).most_runs
    2995
    """
    if not 0.0 <= seconds_per_run < math.inf:
        raise RangeError("time of a run", f"{seconds_per_run} s", "a time of at least 0, finite", "Measure a run.")
    return RunPlan(
        question=question,
        most_runs=closing(question).runs,
        mean_runs_if_clean=course(question, question.tolerated).mean_runs,
        mean_runs_if_faulty=course(question, question.wanted).mean_runs,
        seconds_per_run=seconds_per_run,
    )


def clean_runs_for(bound: float, confidence: float = CONFIDENCE) -> int:
    """The least number of runs, none of which deviates, after which the anytime interval ends at the bound or below.

    Args:
        bound: the rate above which none shall remain possible, in (0, 1).
        confidence: of the interval, in (0, 1).

    Raises:
        RangeError: values outside of these ranges.

    >>> clean_runs_for(0.01)  # more than the 299 that see a fault of 1 %: the interval guards both of its sides
    365
    """
    check_open_unit("bound", bound)
    check_open_unit("confidence", confidence)
    return _least(lambda runs: anytime_interval(0, runs, confidence).high <= bound)


def findable_rate(budget_s: float, seconds_per_run: float, confidence: float = CONFIDENCE) -> float:
    """The lowest rate of a fault that is seen, in the runs that a budget allows, with probability `confidence`.

    Args:
        budget_s: seconds for all runs, above 0.
        seconds_per_run: measured, above 0.
        confidence: the probability, in (0, 1).

    Returns:
        A rate in (0, 1]; 1 where the budget allows no run, so that no fault is sure to be seen.

    Raises:
        RangeError: values outside of these ranges.

    >>> f"{findable_rate(budget_s=6.0, seconds_per_run=0.02):.4f}"
    '0.0099'
    """
    for name, value in (("budget", budget_s), ("time of a run", seconds_per_run)):
        if not 0.0 < value < math.inf:
            raise RangeError(name, f"{value} s", "a time above 0, finite", "Measure a run, and give seconds.")
    check_open_unit("confidence", confidence)
    runs = math.floor(budget_s / seconds_per_run)
    return -math.expm1(math.log1p(-confidence) / runs) if runs else 1.0


@lru_cache(maxsize=64)
def runs_to_compare(baseline_rate: float, confidence: float = CONFIDENCE) -> int:
    """How many runs, with the mitigation and as many without, show that it helps, if it cures the fault.

    Args:
        baseline_rate: how often the fault shows without the mitigation, in (0, 1); with it: never.
        confidence: the probability that it is shown, and that of a two-sided test; in (0, 1).

    Raises:
        RangeError: values outside of these ranges.

    Source: the power of the exact test in difference.py, computed exactly.

    >>> runs_to_compare(0.01)
    1049
    """
    check_open_unit("baseline_rate", baseline_rate)
    check_open_unit("confidence", confidence)
    from scipy.stats import binom, hypergeom  # here, since scipy.stats takes half a second to import

    tail = (1.0 - confidence) / 2.0

    def shows(runs: int) -> bool:
        # All of k deviating runs are the baseline's: by chance alone that has this probability.
        least = next((k for k in range(runs + 1) if hypergeom.pmf(k, 2 * runs, k, runs) <= tail), None)
        return least is not None and bool(binom.sf(least - 1, runs, baseline_rate) >= confidence)

    return _least(shows)


def _least(holds: Callable[[int], bool]) -> int:
    """A number >= 1 at which it holds, and at the one before it doesn't: the least, of what rises with the number."""
    high = 1
    while not holds(high):
        high *= 2
    low = high // 2  # doesn't hold, or is 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _time(seconds: float) -> str:
    """As a person says it."""
    if seconds < 1.0:
        return "a second"
    if seconds < 120.0:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200.0 else f"{seconds / 3600:.0f} h"
