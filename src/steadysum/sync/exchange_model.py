"""The exchange protocol alone, over integers: one unit per core, and for each epoch one `exchange` of policies.py.

A partial is one integer, and the fold is their sum. Partials are powers of two, another for each core and epoch, so
that the sum tells which partials are in it: one that is stale, missing or there twice can't go unseen.

Not here: real statistics (cores/), and what explores or runs the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steadysum.errors import RangeError
from steadysum.sync.actions import Note, Place, Program, Read
from steadysum.sync.exploration_faults import ChosenFaults, Fault
from steadysum.sync.interference import Interference
from steadysum.sync.machine import Happening
from steadysum.sync.memory import Memory, Span
from steadysum.sync.policies import Parts, Party, Waits, exchange
from steadysum.sync.records import STAMP_WORDS, Payload, Slot, words_of
from steadysum.sync.virtual import Launch
from steadysum.trace.events import Unit

__all__ = ["RETURNED", "Exchange", "returned", "slot_owner"]

RETURNED: Final = "returned"  # begins the detail of the note that a core makes of each result
_MOST_PARTIALS: Final = 62  # powers of two in an int64, whose sum fits as well


def power_of_two(core: int, epoch: int, cores: int) -> int:
    """The partial of a core in an epoch: bit core + cores (epoch - 1)."""
    return 1 << (core + cores * (epoch - 1))


class Exchange(NamedTuple):
    """What is exchanged, among whom, and how.

    An epoch that raises ends its core: a failed call ends on the device as well, and the next one begins on all cores.
    """

    cores: int
    epochs: int
    parts: Parts
    retries: int = 1
    payload: Callable[[int, int, int], int] = power_of_two  # of (core, epoch, cores)
    timeout: float = 2e6  # microseconds, of a wait at a barrier
    heartbeat: float = 1e6  # microseconds, between heartbeats: twice as many of them as waits

    @property
    def units(self) -> tuple[Unit, ...]:
        """One unit for each core."""
        return tuple(Unit(core, "core") for core in range(self.cores))

    @property
    def slots(self) -> tuple[Slot, ...]:
        """One slot for each core: a stamp's line, and a region of one integer, which drains by itself."""
        return tuple(
            Slot(core, Span(f"stamp {core}", 0, STAMP_WORDS), (Span(f"value {core}", 0, 1),))
            for core in range(self.cores)
        )

    def partial(self, core: int, epoch: int) -> Payload:
        """What a core gives in an epoch."""
        return (np.array([self.payload(core, epoch, self.cores)], dtype=np.int64),)

    def wanted(self, epoch: int) -> int:
        """The fault-free fold."""
        return sum(self.payload(core, epoch, self.cores) for core in range(self.cores))

    def faults(self, *faults: Fault) -> ChosenFaults:
        """Faults that may act on this exchange."""
        return ChosenFaults(faults, self._before)

    def launch(self, interference: Interference | None = None, **options: Any) -> Launch:
        """What a runner runs: a memory in which no call has been yet.

        Raises:
            RangeError: more partials than powers of two.
        """
        if self.payload is power_of_two and self.cores * self.epochs > _MOST_PARTIALS:
            raise RangeError(
                "cores times epochs of an exchange",
                seen=str(self.cores * self.epochs),
                allowed=f"at most {_MOST_PARTIALS}, one power of two for each",
                remedy="Pass a payload of your own.",
            )
        memory = Memory(
            region
            for core in range(self.cores)
            for region in ((f"stamp {core}", np.int64, STAMP_WORDS), (f"value {core}", np.int64, 1))
        )
        return Launch(
            memory,
            lambda: {unit: self._core(unit) for unit in self.units},
            interference,
            **{"retries": self.retries, **options},
        )

    def _core(self, own: Unit) -> Program:
        """A core's program; its result is the list of its results by epoch."""
        results: list[int] = []
        for epoch in range(1, self.epochs + 1):
            waits = Waits(self.timeout, self.heartbeat, self.retries)
            party = Party(own, self.units, epoch, self.parts, waits)
            result = yield from exchange(party, self.slots, self.partial(own.core, epoch), _sum)
            yield Note(Place(epoch, 3, 0, "exit"), "check", "ok", f"{RETURNED} {result}", own.core)
            results.append(result)
        return results

    def _before(self, action: Read) -> list[NDArray[Any]]:
        """What the spans of a read held after the epoch before: zeros, before the first one."""
        epoch, core = action.place.epoch - 1, slot_owner(action)
        if epoch == 0:
            return [np.zeros(stop - start, dtype=np.int64) for _, start, stop in action.spans]
        words = dict(words_of(self.slots[core], epoch, 1, self.partial(core, epoch)))
        return [words[span].copy() for span in action.spans]


def slot_owner(action: Read) -> int:
    """The core whose slot a read is about."""
    return int(action.spans[0].region.split()[1])


def returned(log: Sequence[Happening]) -> list[tuple[int, int, int]]:
    """The results that a run's log tells of, in order: (number of the unit, epoch, result)."""
    return [
        (happening.unit, happening.action.place.epoch, int(happening.action.detail.split()[1]))
        for happening in log
        if isinstance(happening.action, Note) and happening.action.detail.startswith(RETURNED)
    ]


def _sum(partials: Sequence[Payload]) -> int:
    return sum(int(value[0]) for (value,) in partials)
