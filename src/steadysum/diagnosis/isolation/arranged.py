"""What a condition of runs is: its name and values as data, and what it has to give to the loop over the runs.

Not here: the conditions themselves (input_changes.py, ways.py, surroundings.py) and their table (conditions.py).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

__all__ = ["Acted", "Condition", "Operator", "Surrounding", "VoidError"]

Operator = Callable[..., Any]


class Condition(NamedTuple):
    """What runs are surrounded by, or how they are made; data that JSON can hold."""

    name: str
    values: dict[str, Any] = {}  # noqa: RUF012 - never changed


class VoidError(Exception):
    """A condition that can't be set up for this operator: its runs would say nothing."""


class Acted:
    """Counts how often a condition did what it is for; one that never acted makes its runs void."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, count: int = 1) -> None:
        """It acted so many times more."""
        self.count += count


class Surrounding(NamedTuple):
    """What is around the runs."""

    around: AbstractContextManager[None]  # entered before the first run, left after the last
    before: Callable[[], None] | None = None  # called before each run, outside of the time that is measured
