"""Schedules: the choices of a run, as text that replays it.

`s3` is a step of unit 3, `d2.0` the drain of the first word in unit 2's store buffer, `t5` the end of unit 5's wait,
`w1` the end of unit 1's sleep, and `f0.1` says that armed fault 0 acts at its second opportunity in the next step.
`b0` is what comes before the first step, and `e0` what comes after the last one: faults act in both, too.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from steadysum.errors import ScheduleError
from steadysum.sync.machine import Choice, Machine

__all__ = ["BEGIN", "END", "Pct", "RandomOrder", "Schedule", "Scheduler", "parse_schedule"]

_TOKEN: Final = re.compile(r"([sdtwfbe])(\d+)(?:\.(\d+))?$")
# Faults act before the first step (in operands, in workspace) and after the last one (in outputs) as well.
BEGIN, END = Choice("b", 0), Choice("e", 0)


class Schedule(NamedTuple):
    """The choices of one run, in order."""

    choices: tuple[Choice, ...]

    def __str__(self) -> str:
        return " ".join(map(token, self.choices))


def token(choice: Choice) -> str:
    """A choice as text."""
    kind, unit, index = choice
    return f"{kind}{unit}.{index}" if kind in "df" else f"{kind}{unit}"


def parse_schedule(text: str) -> Schedule:
    """Reads what str(schedule) wrote.

    Raises:
        ScheduleError: a token that isn't one, and where it stands.

    >>> str(parse_schedule("s0 d0.0 s1"))
    's0 d0.0 s1'
    """
    choices = []
    for position, part in enumerate(text.split()):
        match = _TOKEN.match(part)
        if match is None:
            raise ScheduleError(
                f"schedule, token {position}",
                seen=repr(part[:40]),
                allowed="s3, d2.0, t5, w1, f0.1, b0, e0: a letter and numbers",
                remedy="Pass a schedule as it was printed or saved, whole.",
            )
        kind, unit, index = match.groups()
        choices.append(Choice(kind, int(unit), int(index or 0)))
    return Schedule(tuple(choices))


class Scheduler(Protocol):
    """Chooses how a run goes on."""

    def choose(self, machine: Machine, choices: Sequence[Choice]) -> Choice:
        """One of the choices, of which there is at least one."""
        ...


# A wait that could still be satisfied times out in one of so many choices: seldom enough that calls get on, often
# enough that every call of a few hundred choices has some.
_SPURIOUS_TIMEOUT: Final = 1 / 64


class RandomOrder:
    """Every way to go on is as likely as the others, but the end of a wait that could still be satisfied."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._patience = _Patience(draw)

    def choose(self, machine: Machine, choices: Sequence[Choice]) -> Choice:
        """Draws one."""
        active = [choice for choice in choices if choice.kind != "t"]
        late = self._patience.timeout(machine, choices, active)
        return late if late is not None else active[int(self._draw.random() * len(active))]


class Pct:
    """Priorities, that change at a few random moments: finds bugs of few ordering constraints with known probability.

    Each unit, and each unit's store buffer, has a random priority; the highest goes on. At `depth` - 1 moments of the
    run the one that is about to go on falls below all others.

    Source: Burckhardt, Kothari, Musuvathi, Nagarakatte, "A randomized scheduler with probabilistic guarantees of
    finding bugs", ASPLOS 2010.
    """

    def __init__(self, draw: random.Random, depth: int = 3, length: int = 400) -> None:
        self._draw = draw
        self._patience = _Patience(draw)
        self._priority: dict[tuple[str, int], float] = {}
        self._changes = sorted(draw.randrange(length) for _ in range(depth - 1))
        self._made = 0
        self._lowest = 0.0

    def choose(self, machine: Machine, choices: Sequence[Choice]) -> Choice:
        """The choice of the highest priority."""
        active = [choice for choice in choices if choice.kind != "t"]
        late = self._patience.timeout(machine, choices, active)
        return late if late is not None else self._highest(active)

    def _highest(self, active: Sequence[Choice]) -> Choice:
        best = max(active, key=self._of)
        self._made += 1
        if self._changes and self._made > self._changes[0]:
            self._changes.pop(0)
            self._lowest -= 1.0
            self._priority[_actor(best)] = self._lowest
            best = max(active, key=self._of)
        return best

    def _of(self, choice: Choice) -> float:
        actor = _actor(choice)
        if actor not in self._priority:
            self._priority[actor] = self._draw.random()
        return self._priority[actor]


def _actor(choice: Choice) -> tuple[str, int]:
    return ("d" if choice.kind == "d" else "u", choice.unit)


class _Patience:
    """Which wait times out. While others can go on, seldom any; else time passes until the earliest one is up."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._now = 0.0  # microseconds that have passed in which nobody could go on
        self._ends: dict[int, tuple[object, float]] = {}  # by unit: its wait, and when that is up

    def timeout(self, machine: Machine, choices: Sequence[Choice], active: Sequence[Choice]) -> Choice | None:
        """The wait that ends now; None: none does."""
        if len(active) == len(choices):
            return None
        late = [choice for choice in choices if choice.kind == "t"]
        if active:
            return late[int(self._draw.random() * len(late))] if self._draw.random() < _SPURIOUS_TIMEOUT else None
        earliest = min(late, key=lambda choice: self._end(machine, choice.unit))
        self._now = self._end(machine, earliest.unit)
        return earliest

    def _end(self, machine: Machine, unit: int) -> float:
        action = machine.pending[unit]
        known = self._ends.get(unit)
        if known is None or known[0] is not action:
            timeout = getattr(action, "timeout", None) or 0.0
            known = self._ends[unit] = (action, self._now + timeout)
        return known[1]


def steps(choices: Iterable[Choice]) -> Iterator[tuple[Choice, frozenset[tuple[int, int]]]]:
    """Each choice but faults, with the faults that act in it.

    >>> list(steps(parse_schedule("s0 f1.0 s1").choices))[1]
    (Choice(kind='s', unit=1, index=0), frozenset({(1, 0)}))
    """
    acting: set[tuple[int, int]] = set()
    for choice in choices:
        if choice.kind == "f":
            acting.add((choice.unit, choice.index))
        else:
            yield choice, frozenset(acting)
            acting = set()
