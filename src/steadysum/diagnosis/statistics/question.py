"""The question of a sequential test, "does it deviate at that rate?", and the lines at which Wald's test answers it.

Data and arithmetic on counts alone; the test itself, which keeps the counts, is in sequential.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from steadysum.diagnosis.rates import CONFIDENCE
from steadysum.errors import RangeError

__all__ = ["Question", "check_open_unit"]


@dataclass(frozen=True)
class Question:
    """Is the rate `wanted` or more, or is it `tolerated` or less?

    Args:
        wanted: the rate that must not be missed, in (0, 1).
        tolerated: the rate that must not be called a fault, 0 <= tolerated < wanted. 0: one deviation is one too many.
        confidence: the probability of a right answer at either rate, in (0, 1). Between the two any answer is right.

    Raises:
        RangeError: values outside of these ranges.

    >>> round(Question(wanted=0.01).evidence(deviating=0, calls=100), 3)  # log-likelihood of 1 % less that of 0
    -1.005
    """

    wanted: float
    tolerated: float = 0.0
    confidence: float = CONFIDENCE

    def __post_init__(self) -> None:
        if not 0.0 < self.wanted < 1.0:
            raise RangeError(
                "rate to find", f"{self.wanted}", "0 < rate < 1", "What deviates at rate 1 shows in the first run."
            )
        if not 0.0 <= self.tolerated < self.wanted:
            raise RangeError(
                "tolerated rate",
                f"{self.tolerated}",
                f"0 <= rate < {self.wanted}, the rate to find",
                "Pass 0 for an operator that should never deviate.",
            )
        check_open_unit("confidence", self.confidence)

    @property
    def risk(self) -> float:
        """The most that the probability of a wrong answer may be, at either rate."""
        return 1.0 - self.confidence

    def evidence(self, deviating: int, calls: int) -> float:
        """Log-likelihood ratio of the wanted rate to the tolerated one."""
        clean = (calls - deviating) * (math.log1p(-self.wanted) - math.log1p(-self.tolerated))
        if deviating == 0:
            return clean
        if self.tolerated == 0.0:
            return math.inf
        return clean + deviating * math.log(self.wanted / self.tolerated)

    @property
    def line(self) -> float:
        """What |evidence| must reach before the last run: half of the risk is spent there, half on the last run.

        Source: Wald, Annals of Mathematical Statistics 16 (1945). With bars at 2 / risk rather than at his
        approximation (1 - risk) / risk the probability of ever crossing the wrong one is at most risk / 2, by Ville's
        inequality, at the two rates and beyond them.
        """
        return math.log(2.0 / self.risk)

    def least_above(self, calls: int) -> int:
        """The least number of deviating calls that Wald's test takes for more than the tolerated rate."""
        if self.tolerated == 0.0:
            return 1
        step, drop = self._steps()
        return math.ceil((self.line + calls * drop) / (step + drop))

    def most_below(self, calls: int) -> int:
        """The largest number of deviating calls that it takes for less than the wanted rate; -1: none is few enough."""
        if self.tolerated == 0.0:
            return 0 if -self.evidence(0, calls) >= self.line else -1
        step, drop = self._steps()
        return max(-1, math.floor((calls * drop - self.line) / (step + drop)))

    def _steps(self) -> tuple[float, float]:
        """What a deviating call adds to the evidence, and what a clean one takes from it."""
        return math.log(self.wanted / self.tolerated), math.log1p(-self.tolerated) - math.log1p(-self.wanted)


def check_open_unit(name: str, value: float) -> None:
    """Refuses what isn't in (0, 1).

    Raises:
        RangeError: it isn't.

    >>> check_open_unit("confidence", 0.95)
    """
    if not 0.0 < value < 1.0:
        raise RangeError(name, f"{value}", f"0 < {name} < 1", "95 % is written 0.95.")
