"""Faults whose acting is a choice: an exploration takes each of their opportunities, and leaves it.

Each acts at most so often in a run. Here are the kinds that the exchange protocol is explored with; cores/faults.py
has all kinds, drawn with a probability, for runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from numpy.typing import NDArray

from steadysum.sync.actions import Await, Barrier, Flag, Place, Read, Word, Write
from steadysum.sync.interference import Interference
from steadysum.trace.events import Unit

__all__ = ["KINDS", "ChosenFaults", "Fault", "Spent"]

KINDS: Final = ("dropped", "torn", "stale", "timeout", "dead")


class Fault(NamedTuple):
    """A fault that may act.

    dropped: a write's words never reach memory. torn: one of them doesn't. stale: a read gives the content of the call
    before. timeout: a wait gives up at once, though its flags may come, and so does each of its retries. dead: a unit
    stops for ever before an action.
    """

    kind: str  # of KINDS
    budget: int = 1  # how often it acts in a run at most
    where: Callable[[Place], bool] | None = None  # which actions; None: all


class Spent(NamedTuple):
    """What faults have done so far in a run, as far as their future depends on it."""

    counts: tuple[int, ...]  # how often each has acted
    given_up: frozenset[tuple[Unit, tuple[Flag, ...], int]]  # waits that time out again and again


class ChosenFaults(Interference):
    """Faults that act when the script says so, and never by themselves.

    Args:
        faults: what may act; numbered in schedules by their position here.
        earlier: what a stale read gives: the content that its spans had after the call before.
    """

    def __init__(
        self, faults: Sequence[Fault] = (), earlier: Callable[[Read], list[NDArray[Any]]] | None = None
    ) -> None:
        super().__init__()
        self.faults = tuple(faults)
        self.spent = Spent((0,) * len(self.faults), frozenset())
        self.touches_waits = any(fault.kind == "timeout" for fault in self.faults)
        self._earlier = earlier

    def dies(self, unit: Unit, place: Place) -> bool:  # noqa: ARG002 - the hook's signature
        """Whether the unit stops for ever before this action."""
        return self._acts("dead", place)

    def written(self, unit: Unit, action: Write) -> Sequence[Word]:  # noqa: ARG002 - the hook's signature
        """The words that enter the store buffer."""
        if self._acts("dropped", action.place):
            return ()
        return [word for word in action.words if not self._acts("torn", action.place)]

    def read(
        self,
        unit: Unit,  # noqa: ARG002 - the hook's signature
        action: Read,
        values: list[NDArray[Any]],
    ) -> list[NDArray[Any]]:
        """What the unit gets."""
        if self._earlier is not None and self._acts("stale", action.place):
            return self._earlier(action)
        return values

    def passes(self, unit: Unit, action: Await | Barrier) -> str | None:
        """How an await ends at once, before its flags are there."""
        wait = (unit, action.flags if isinstance(action, Await) else action.members, action.value)
        if wait in self.spent.given_up:
            return "timeout"
        if not self._acts("timeout", action.place):
            return None
        self.spent = self.spent._replace(given_up=self.spent.given_up | {wait})
        return "timeout"

    def _acts(self, kind: str, place: Place) -> bool:
        """Whether a fault of this kind acts here; offers it if it could."""
        for number, fault in enumerate(self.faults):
            counts = self.spent.counts
            if fault.kind != kind or counts[number] >= fault.budget or not (fault.where is None or fault.where(place)):
                continue
            decision = (number, sum(offer == number for offer, _ in self.offered))
            self.offered.append(decision)
            if self.script is not None and decision in self.script:
                self.acted.append(decision)
                spent = (*counts[:number], counts[number] + 1, *counts[number + 1 :])
                self.spent = self.spent._replace(counts=spent)
                return True
        return False
