"""Sampling: which calls are checked, and when the strong checks come in.

Not here: what a check does.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from steadysum.errors import RangeError
from steadysum.guard.checks.protocol import Check

__all__ = ["Escalate", "Sampler"]


@dataclass(frozen=True)
class Escalate:
    """Strong checks, for operators that have failed a cheap one again and again.

    After `strikes` calls that failed a check, among the last `window` calls, every call is checked, and by the strong
    checks too, until `window` calls have gone by without a strike.

    Args:
        strong: checks, in the order in which they are made.
        strikes: calls that failed, at least 1.
        window: calls, at least `strikes`.

    Raises:
        RangeError.

    >>> Escalate([], strikes=5, window=3)
    Traceback (most recent call last):
    steadysum.errors.RangeError: window: got 3; allowed: at least strikes, 5. More calls can't fail than there are.
    """

    strong: Sequence[Check]
    strikes: int = 3
    window: int = 100

    def __post_init__(self) -> None:
        if self.strikes < 1:
            raise RangeError(
                "strikes", str(self.strikes), "at least 1", "1: the strong checks follow the first failure."
            )
        if self.window < self.strikes:
            raise RangeError(
                "window", str(self.window), f"at least strikes, {self.strikes}", "More calls can't fail than there are."
            )


class Sampler:
    """Counts calls and strikes, for any number of threads."""

    def __init__(self, checks: tuple[Check, ...], every: int, escalate: Escalate | None) -> None:
        self._checks = checks
        self._every = every
        self._escalate = escalate
        self._all = checks if escalate is None else (*checks, *escalate.strong)
        self._lock = threading.Lock()
        self._calls = 0
        self._strikes: deque[int] = deque()  # numbers of calls
        self._escalated_until = 0  # number of a call

    def next(self) -> tuple[Check, ...]:
        """The checks of the next call; none if it isn't checked. The first call is."""
        if self._every == 1 and self._escalate is None:
            return self._checks
        with self._lock:
            number = self._calls
            self._calls += 1
            if number < self._escalated_until:
                return self._all
            return self._checks if number % self._every == 0 else ()

    def strike(self) -> bool:
        """A call has failed a check. Says whether the strong checks come in with this strike."""
        if self._escalate is None:
            return False
        with self._lock:
            now, window = self._calls, self._escalate.window
            self._strikes.append(now)
            while self._strikes[0] <= now - window:
                self._strikes.popleft()
            was_escalated = now <= self._escalated_until
            if was_escalated or len(self._strikes) >= self._escalate.strikes:
                self._escalated_until = now + window
                return not was_escalated
            return False

    def __getstate__(self) -> dict[str, Any]:
        """Copies count on from here, under a lock of their own."""
        with self._lock:
            return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._strikes = deque(self._strikes)
        self._lock = threading.Lock()
