"""A test that asks after every call whether the rate is high or low, and stops as soon as that is answered.

A pure state machine: it makes no calls, and knows nothing of operators. It always answers, after its last run at the
latest, and errs with no more than the probability asked for, at either rate, although it looks after every run.
"""

from __future__ import annotations

from enum import StrEnum

from steadysum.diagnosis.rates import Interval
from steadysum.diagnosis.statistics.anytime import anytime_interval
from steadysum.diagnosis.statistics.question import Question
from steadysum.diagnosis.statistics.walk import closing

__all__ = ["Decision", "SequentialTest"]


class Decision(StrEnum):
    """What the calls so far show."""

    OPEN = "open"
    ABOVE = "above the tolerated rate"
    BELOW = "below the wanted rate"


class SequentialTest:
    """Counts calls, and says when the question is answered.

    Calls may go on after the decision, for a narrower interval: the decision stays what it was.

    Args:
        question: the two rates, and the confidence.

    Raises:
        RangeError: the question takes too many runs (see walk.closing).

    Source: Wald's sequential probability ratio test, cut off at the least run at which its errors, computed exactly,
    still are what was asked for. The interval: see anytime.anytime_interval.

    >>> test = SequentialTest(Question(wanted=0.01))
    >>> while test.decision is Decision.OPEN:
    ...     test.observe(deviated=False)
    >>> test.decision.value, test.calls, f"{test.interval.high:.4f}"
    ('below the wanted rate', 299, '0.0122')
    """

    def __init__(self, question: Question) -> None:
        self.question = question
        self._closing = closing(question)
        self._calls = 0
        self._deviating = 0
        self._decision = Decision.OPEN

    def observe(self, deviated: bool) -> None:
        """Counts one more call."""
        self._calls += 1
        self._deviating += bool(deviated)
        if self._decision is Decision.OPEN:
            self._decision = self._decide()

    @property
    def calls(self) -> int:
        """The number of calls so far."""
        return self._calls

    @property
    def deviating(self) -> int:
        """How many of them deviated."""
        return self._deviating

    @property
    def decision(self) -> Decision:
        """The answer; once it is there it stays."""
        return self._decision

    @property
    def runs_left(self) -> int:
        """How many more calls the answer can take; 0 where it is there."""
        return self._closing.runs - self._calls if self._decision is Decision.OPEN else 0

    @property
    def interval(self) -> Interval:
        """The rates that the calls don't contradict, whenever and for whatever reason one stops."""
        return anytime_interval(self._deviating, self._calls, self.question.confidence)

    def _decide(self) -> Decision:
        calls, deviating = self._calls, self._deviating
        if calls == self._closing.runs:
            return Decision.ABOVE if deviating >= self._closing.least_above else Decision.BELOW
        if deviating >= self.question.least_above(calls):
            return Decision.ABOVE
        return Decision.BELOW if deviating <= self.question.most_below(calls) else Decision.OPEN
