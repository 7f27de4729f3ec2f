"""Whose value each access has met in a run: its events again, with the numbers of writes in place of their values.

This is what happened, and luck has its part in it: whether a hazard has done harm in this run. What had to happen is
settled by happens_before.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steadysum.sync.happens_before import Access, Kind
from steadysum.trace.events import Event

__all__ = ["NEVER", "NOBODY", "Cells", "Origins", "cells_of", "origins"]

NOBODY: Final = -1  # wrote what was there: it was there before the run
NEVER: Final = 2**62  # the number of an event that there wasn't

Ints = NDArray[np.int64]


class Cells(NamedTuple):
    """Memory cut at the ends of all spans that are accessed: within a cell all elements fare alike."""

    regions: tuple[str, ...]  # of each cell's number
    starts: Ints  # first element of each cell, in its region
    stops: Ints
    first: Ints  # by access: its first cell
    end: Ints  # by access: the cell after its last one


class Origins(NamedTuple):
    """What the accesses of a run have met. Writers are named by the numbers of their accesses."""

    drained: dict[int, int]  # by write: the event in which it reached memory
    found: dict[int, Ints]  # by read: whose plain write it got, whatever has been added to it, by cell
    settled: dict[int, Ints]  # by read: the event in which that was in memory, by cell; NEVER: it saw its own
    undone: dict[int, NDArray[np.bool_]]  # by rest of a line: whether it brought back an older value, by cell


def cells_of(accesses: Sequence[Access]) -> Cells:
    """The cells of these accesses."""
    ends: dict[str, set[int]] = {}
    for access in accesses:
        ends.setdefault(access.region, set()).update((access.start, access.stop))
    numbers: dict[tuple[str, int], int] = {}
    names: list[str] = []
    cuts: list[int] = []
    for region, cut in ends.items():
        for end in sorted(cut):
            numbers[region, end] = len(cuts)
            names.append(region)
            cuts.append(end)
    starts = np.array(cuts, dtype=np.int64)
    return Cells(
        tuple(names),
        starts,
        np.roll(starts, -1),  # a region's last cell is never used
        np.array([numbers[access.region, access.start] for access in accesses], dtype=np.int64),
        np.array([numbers[access.region, access.stop] for access in accesses], dtype=np.int64),
    )


def origins(events: Sequence[Event], accesses: Sequence[Access], cells: Cells) -> Origins:
    """Runs the events again."""
    return _Replay(events, accesses, cells).run()


class _Rest(NamedTuple):
    """The rest of a line in a store buffer: what the unit saw there when it wrote."""

    access: int
    low: int
    high: int
    last: Ints  # who wrote or added last
    found: Ints  # who wrote last


class _Word(NamedTuple):
    """A word in a store buffer."""

    access: int
    low: int
    high: int
    rests: tuple[_Rest, ...]


class _Replay:
    """A memory that holds writers in place of values."""

    def __init__(self, events: Sequence[Event], accesses: Sequence[Access], cells: Cells) -> None:
        self._events = events
        self._accesses = accesses
        self._low, self._high = cells.first.tolist(), cells.end.tolist()
        count = len(cells.starts)
        self._last: Ints = np.full(count, NOBODY, np.int64)  # who wrote or added last
        self._found: Ints = np.full(count, NOBODY, np.int64)  # who wrote last
        self._settled: Ints = np.full(count, -1, np.int64)  # event in which that reached memory
        self._buffers: dict[int, dict[int, _Word]] = {}  # by unit, by number of the word
        self._rests: dict[int, list[int]] = {}  # by word: the rests of its lines
        self._of_event: dict[int, list[int]] = {}
        for number, access in enumerate(accesses):
            of, key = (self._rests, access.word) if access.kind is Kind.BESIDE else (self._of_event, access.event)
            of.setdefault(key, []).append(number)
        self._unit = {access.word: access.unit for access in accesses if access.word}
        self._origins = Origins({}, {}, {}, {})

    def run(self) -> Origins:
        for event in self._events:
            if event.action == "drain":
                for word in event.writes:
                    self._drain(event.number, word)
            else:
                for access in self._of_event.get(event.number, ()):
                    self._access(event.number, access)
        return self._origins

    def _access(self, event: int, access: int) -> None:
        low, high = self._low[access], self._high[access]
        _, unit, kind, *_, word = self._accesses[access]
        buffer = self._buffers.setdefault(unit, {})
        if kind is Kind.READ:
            self._origins.found[access] = _seen(buffer, self._found, low, high)
            self._origins.settled[access] = _seen(buffer, self._settled, low, high, NEVER)
        elif kind is Kind.ADD:
            self._last[low:high] = access
        elif word:
            buffer[word] = _Word(
                access, low, high, tuple(self._rest(buffer, rest) for rest in self._rests.get(word, ()))
            )
        else:  # no store buffer: in memory at once
            self._store(event, access, low, high)

    def _rest(self, buffer: dict[int, _Word], access: int) -> _Rest:
        low, high = self._low[access], self._high[access]
        return _Rest(access, low, high, _seen(buffer, self._last, low, high), _seen(buffer, self._found, low, high))

    def _drain(self, event: int, number: int) -> None:
        word = self._buffers[self._unit[number]].pop(number)
        for access, low, high, last, found in word.rests:
            undone = self._origins.undone[access] = self._last[low:high] != last
            self._last[low:high] = last
            self._found[low:high][undone] = found[undone]
            self._settled[low:high][undone] = event
        self._store(event, word.access, word.low, word.high)

    def _store(self, event: int, access: int, low: int, high: int) -> None:
        self._origins.drained[access] = event
        self._last[low:high] = self._found[low:high] = access
        self._settled[low:high] = event


def _seen(buffer: dict[int, _Word], memory: Ints, low: int, high: int, own: int | None = None) -> Ints:
    """What a unit sees in cells [low, high): memory, and over it its own words, as `own` or else by their accesses."""
    seen = memory[low:high].copy()
    for word in buffer.values():
        if word.low < high and low < word.high:
            seen[max(word.low - low, 0) : word.high - low] = word.access if own is None else own
    return seen
