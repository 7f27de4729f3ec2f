"""Which accesses to shared memory a run has put in order, whatever the timing: vector clocks over its events.

The model. Each unit counts its events, and has two clocks with an entry for each unit: which of that unit's events it
knows to be *done*, and up to which of them it knows the writes to be *published*.

- A write is published by its unit's next fence. That its word drained earlier was luck, and orders nothing. A fence
  that a fault has broken publishes nothing that is still in the store buffer after it.
- A signal carries both clocks of its unit as they are: what it has done, what it has published, and what it has
  learned from others. So does an arrival at a barrier.
- An await or barrier takes over the clocks of the signals that it has seen; of one that timed out, of those that came.

So a write comes before what knows it to be published, and a read or an atomic add, which act at memory, before what
knows them to be done. Nothing else orders two units. Both clocks travel together, so that the order is transitive.

Not here: which accesses have to be ordered (hazards.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steadysum.trace.events import Event, Unit

__all__ = ["Access", "History", "Kind", "history"]

Ints = NDArray[np.int64]


class Kind(IntEnum):
    """How a span is accessed."""

    READ = 0
    WRITE = 1
    ADD = 2
    BESIDE = 3  # the rest of the 64-byte lines that a write drains as: what the unit saw there when it wrote


class Access(NamedTuple):
    """One span that an event accesses."""

    event: int  # its number
    unit: int
    kind: Kind
    region: str
    start: int
    stop: int
    tick: int  # of the unit's clock: its events, up to and with this one
    published: int  # the tick up to which the unit had published its writes
    clock: int  # row of History.clocks: what the unit knew
    word: int  # a write's, or whose line it is; 0: none


@dataclass(frozen=True)
class History:
    """The accesses of a run, with what their units knew of each other."""

    units: tuple[Unit, ...]
    accesses: list[Access]
    clocks: Ints  # [.., 2 units]: up to which event of each unit its writes are published; which of its events are done

    def ordered(
        self,
        first: Ints,  # numbers of accesses
        second: Ints,  # as many
    ) -> NDArray[np.bool_]:
        """Whether each first access comes before the second one by the model, whatever the timing."""
        unit, kind, tick, published, clock = self._columns
        buffered = (kind[first] == Kind.WRITE) | (kind[first] == Kind.BESIDE)
        known = self.clocks[clock[second], np.where(buffered, 0, len(self.units)) + unit[first]]
        # In one unit the program's order holds, but that an add doesn't see the unit's own store buffer.
        overtaken = buffered & (kind[second] == Kind.ADD) & (published[second] < tick[first])
        return np.where(unit[first] == unit[second], ~overtaken, known >= tick[first])

    @property
    def _columns(self) -> tuple[Ints, ...]:
        rows = [(a.unit, a.kind, a.tick, a.published, a.clock) for a in self.accesses]
        return tuple(np.array(rows, dtype=np.int64).reshape(-1, 5).T)


def history(events: Sequence[Event]) -> History:
    """The accesses of a run's events, in order, with their clocks. Events are numbered by their position."""
    return _Clocks(events).run()


class _Clocks:
    """The clocks of all units while the events of a run pass by."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._events = events
        self._number = {unit: number for number, unit in enumerate(dict.fromkeys(event.unit for event in events))}
        units = len(self._number)
        self._now: Ints = np.zeros((units, 2 * units), np.int64)
        self._tick = [0] * units
        self._published = [0] * units
        self._buffered: list[dict[int, int]] = [{} for _ in range(units)]  # ticks of the words in the store buffer
        self._kept: list[Ints] = [np.zeros(2 * units, np.int64)]
        self._current = [0] * units  # each unit's row of _kept
        self._signals: dict[int, Ints] = {}  # by number of the event
        self._words: dict[int, Access] = {}
        self._accesses: list[Access] = []

    def run(self) -> History:
        number, tick = self._number, self._tick
        for event in self._events:
            unit, action = number[event.unit], event.action
            if action == "drain":
                self._drain(unit, event)
                continue
            if action == "barrier" or action == "signal":
                self._signal(event.number, unit)
            tick[unit] += 1
            if event.spans:
                self._access(unit, event)
            elif action == "await" or action == "barrier":
                self._join(unit, event)
            elif action == "fence":
                waiting = self._buffered[unit]
                self._published[unit] = next(iter(waiting.values())) - 1 if waiting else tick[unit]
        return History(tuple(number), self._accesses, np.array(self._kept))

    def _access(self, unit: int, event: Event) -> None:
        tick, published, clock = self._tick[unit], self._published[unit], self._current[unit]
        kind = _KINDS[event.action]
        words = event.writes if kind is Kind.WRITE and event.writes else (0,) * len(event.spans)
        for (region, start, stop), word in zip(event.spans, words, strict=True):
            access = Access(event.number, unit, kind, region, start, stop, tick, published, clock, word)
            self._accesses.append(access)
            if word:
                self._words[word] = access
                self._buffered[unit][word] = tick

    def _drain(self, unit: int, event: Event) -> None:
        for word, (_, start, stop) in zip(event.writes, event.spans, strict=True):
            self._buffered[unit].pop(word, None)
            own = self._words.pop(word)
            for beside in ((start, own.start), (own.stop, stop)):
                if beside[0] < beside[1]:
                    self._accesses.append(own._replace(kind=Kind.BESIDE, start=beside[0], stop=beside[1]))

    def _signal(self, number: int, unit: int) -> None:
        """Keeps what a signal carries. An arrival is kept when first asked for: its unit waits, so nothing changes."""
        if number not in self._signals:
            carried = self._now[unit].copy()
            carried[unit] = self._published[unit]
            carried[len(self._number) + unit] = self._tick[unit]
            self._signals[number] = carried

    def _join(self, unit: int, event: Event) -> None:
        for signal in event.writes:
            self._signal(signal, self._number[self._events[signal].unit])
        if event.writes:
            seen: list[Any] = [self._signals[signal] for signal in event.writes]
            np.maximum(self._now[unit], np.array(seen).max(axis=0), out=self._now[unit])
            self._current[unit] = len(self._kept)
            self._kept.append(self._now[unit].copy())


_KINDS = {"read": Kind.READ, "write": Kind.WRITE, "add": Kind.ADD}
