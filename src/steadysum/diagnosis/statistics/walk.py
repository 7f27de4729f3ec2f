"""What a sequential test does at a given rate, exactly: how often it answers what, after how many runs.

By following the distribution of the number of deviating calls, run by run, between the lines at which the test stops.
Nothing is simulated. Not here: the lines (question.py), the test (sequential.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from steadysum.diagnosis.rates import runs_needed
from steadysum.diagnosis.statistics.question import Question
from steadysum.errors import RangeError

__all__ = ["MOST_RUNS", "Closing", "Course", "closing", "course"]

MOST_RUNS: Final = 50_000  # of a test with a tolerated rate above 0: planning takes about 0.1 ms a run


class Closing(NamedTuple):
    """The test's last run, at which it answers in any case."""

    runs: int
    least_above: int  # so many deviating calls of these runs, or more, say "above"


class Course(NamedTuple):
    """What a test does at one rate."""

    above: float  # probability of the answer "above"; otherwise it is "below"
    mean_runs: float


class _State(NamedTuple):
    """After a number of runs, for several rates at once."""

    calls: int
    above: npt.NDArray[Any]  # [rates]: probability that the test has ended with "above"
    below: npt.NDArray[Any]  # [rates]
    first: int  # number of deviating calls that the first column of `open` stands for
    open: npt.NDArray[Any]  # [rates, counts]: probability that it goes on with this number


@lru_cache(maxsize=64)
def closing(question: Question) -> Closing:
    """The least last run at which the test errs with probability `question.risk` at most, at either rate.

    Raises:
        RangeError: the two rates are so near to each other that it takes more than MOST_RUNS runs.

    >>> closing(Question(wanted=0.01))  # as many as rates.runs_needed says, and no deviating call among them
    Closing(runs=299, least_above=1)
    """
    if question.tolerated == 0.0:  # the walk's limit: the first deviating call ends the test
        return Closing(runs_needed(question.wanted, question.confidence), 1)
    _check_distance(question)
    for state in _walk(question, (question.tolerated, question.wanted)):
        # For each number of deviating calls, and for one more than is open: the probability of so many or more.
        so_many = np.append(np.cumsum(state.open[0, ::-1])[::-1], 0.0)
        spare = np.nonzero(state.above[0] + so_many <= question.risk)[0]
        if spare.size and state.below[1] + state.open[1, : spare[0]].sum() <= question.risk:
            return Closing(state.calls, state.first + int(spare[0]))
    raise _too_near(question)


def course(question: Question, rate: float) -> Course:
    """How often the test answers "above" at one rate, and after how many runs it stops.

    Args:
        question: what the test asks.
        rate: the true one, in [0, 1].

    Raises:
        RangeError: as closing.

    >>> found = course(Question(wanted=0.01), rate=0.01)
    >>> f"{found.above:.4f} after {found.mean_runs:.1f} runs"
    '0.9505 after 95.0 runs'
    """
    last = closing(question)
    if question.tolerated == 0.0:
        above = -math.expm1(last.runs * math.log1p(-rate)) if rate < 1.0 else 1.0
        return Course(above, above / rate if rate > 0.0 else float(last.runs))
    mean = 1.0  # the first run is always made; each further one, if the test is open after the run before
    for state in _walk(question, (rate,)):
        if state.calls == last.runs:
            cut = max(0, last.least_above - state.first)
            return Course(float(state.above[0] + state.open[0, cut:].sum()), mean)
        mean += float(state.open.sum())
    raise AssertionError("the walk goes on for longer than any test")


def _walk(question: Question, rates: Sequence[float]) -> Iterator[_State]:
    deviates = np.asarray(rates)[:, None]  # [rates, 1]
    above, below = np.zeros(len(rates)), np.zeros(len(rates))
    open, first = np.ones((len(rates), 1)), 0
    for calls in range(1, MOST_RUNS + 1):
        grown = np.pad(open * (1.0 - deviates), ((0, 0), (0, 1)))
        grown[:, 1:] += open * deviates
        start = max(0, question.most_below(calls) + 1 - first)
        stop = max(start, question.least_above(calls) - first)
        below, above = below + grown[:, :start].sum(axis=1), above + grown[:, stop:].sum(axis=1)
        open, first = grown[:, start:stop], first + start
        yield _State(calls, above, below, first, open)


def _check_distance(question: Question) -> None:
    """Refuses a hopeless question before the walk: by the normal approximation, and twice that is allowed."""
    spread = sum((rate * (1.0 - rate)) ** 0.5 for rate in (question.tolerated, question.wanted))
    wide = NormalDist().inv_cdf(max(0.5, question.confidence)) * spread / (question.wanted - question.tolerated)
    if wide**2 > 2 * MOST_RUNS:
        raise _too_near(question)


def _too_near(question: Question) -> RangeError:
    return RangeError(
        "rates",
        f"{question.tolerated} and {question.wanted}",
        f"rates that {MOST_RUNS} runs can tell apart",
        "Ask for a higher rate, tolerate a lower one, or ask for less confidence.",
    )
