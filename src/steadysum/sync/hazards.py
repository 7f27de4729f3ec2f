"""Hazards: pairs of accesses to shared memory that nothing but luck puts in the order that the program means.

What is meant comes from the places of actions: (epoch, index of the phase, step). In each cell of memory the accesses
form a chain in that order, and each link that two units share must be ordered by the model of happens_before.py:

- read-after-write: a read, and the last write that is meant before it;
- write-after-read: a write, and the reads since the write that is meant before it;
- write-after-write: a write, and the one that is meant before it; or a write, and the rest of a 64-byte line that
  another unit's write drains with (crosstalk): whichever comes last undoes the other.

Atomic adds are no hazard to each other; to reads and plain writes they are what a write is. Since the model's order is
transitive, a chain whose links are ordered is ordered as a whole: a run without a report has no unordered pair at all.
Where places name no order, nothing is meant, and the pair is a hazard unless the units have put it into some order.

A hazard is *manifest* if this run has gone wrong there: the read got another value than that of the write meant, the
later write didn't outlast the earlier one, or a value was undone. Else it was only possible: in this run luck had it
right. A clean report is about the schedules that share this run's synchronisation, and about order only: a record that
a fault has damaged, or a program that means the wrong thing, is no hazard.

Not here: the reports' text and JSON (hazard_report.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, islice
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steadysum.errors import RangeError
from steadysum.sync.happens_before import Access, History, Kind, history
from steadysum.sync.origins import NEVER, NOBODY, Cells, Origins, cells_of, origins
from steadysum.trace.events import Event, Unit

__all__ = ["MOST", "RAW", "WAR", "WAW", "Hazard", "Hazards", "Side", "find_hazards"]

RAW: Final = "read-after-write"
WAR: Final = "write-after-read"
WAW: Final = "write-after-write"
MOST: Final = 100  # reports that are kept: more than people read, few enough for a file of every call

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Side:
    """One of a hazard's two accesses."""

    unit: Unit
    phase: str
    action: str  # "read", "write" or "add"
    place: tuple[int, int, int]
    at: float  # time of the access: a write's words enter the store buffer then
    in_memory: float | None  # time at which a write's word reached memory; None: never, or it isn't a write
    event: int  # number of the access's event
    memory_event: int | None  # number of the event in which a write's word reached memory


@dataclass(frozen=True)
class Hazard:
    """Two accesses that aren't ordered: the one seen, and all like it."""

    kind: str  # RAW, WAR or WAW
    region: str
    start: int  # elements [start, stop) of the region
    stop: int
    epoch: int  # number of the call; of the reading one, where two calls meet
    first: Side  # the access that is meant first
    second: Side
    meant: bool  # whether places order the two; else `first` is the one that came first
    crosstalk: bool  # the two only share a 64-byte line
    manifest: bool  # the run went wrong here
    count: int = 1  # pairs of the same kind, units, region, phases and call; the first manifest one is shown


class Hazards(NamedTuple):
    """What was found in a run. False if there is nothing."""

    found: tuple[Hazard, ...]  # the manifest ones first, then in the order of their second access
    left_out: int  # reports beyond `most`
    pairs: int  # unordered pairs of accesses, all reports together

    def __bool__(self) -> bool:
        return bool(self.found)

    @property
    def manifest(self) -> tuple[Hazard, ...]:
        """Those that this run has gone wrong at."""
        return tuple(hazard for hazard in self.found if hazard.manifest)


def find_hazards(events: Sequence[Event], most: int = MOST) -> Hazards:
    """The hazards of one run.

    Args:
        events: all that the run's log has (steadysum.sync.log.events), from its begin.
        most: how many reports to keep, at least 1.

    Raises:
        RangeError: events that aren't one whole run's, or no room for a report.
    """
    _check(events, most)
    past = history(events)
    if not past.accesses:
        return Hazards((), 0, 0)
    cells = cells_of(past.accesses)
    ranks = _ranks(events, past.accesses)
    pairs = _unordered(past, cells, ranks)
    if not pairs.first:
        return Hazards((), 0, 0)
    met = origins(events, past.accesses, cells)
    return _reports(events, past, cells, ranks, pairs, met, most)


def _check(events: Sequence[Event], most: int) -> None:
    if most < 1:
        raise RangeError("most", seen=str(most), allowed="at least 1 report", remedy="Leave it out for 100.")
    for position, event in enumerate(events):
        if event.number != position:
            raise RangeError(
                "events",
                seen=f"number {event.number} at position {position}",
                allowed="all events of one run, numbered from 0",
                remedy="Pass one run's events as steadysum.sync.log.events gives them; of a part nothing can be said.",
            )


class _Pairs(NamedTuple):
    """Links of the chains: the access meant first, the second one, and the cell."""

    first: list[int]
    second: list[int]
    cell: list[int]


def _ranks(events: Sequence[Event], accesses: Sequence[Access]) -> Ints:
    """The places of accesses as numbers in the order that is meant."""
    places = [events[access.event].place for access in accesses]
    order = {place: rank for rank, place in enumerate(sorted(set(places)))}
    return np.array([order[place] for place in places], dtype=np.int64)


def _unordered(past: History, cells: Cells, ranks: Ints) -> _Pairs:
    """The links that the run hasn't ordered."""
    lengths = cells.end - cells.first
    access = np.repeat(np.arange(len(lengths)), lengths)
    cell = np.arange(len(access)) - np.repeat(np.cumsum(lengths) - lengths, lengths) + np.repeat(cells.first, lengths)
    came = np.array([each.event for each in past.accesses], dtype=np.int64)
    order = np.lexsort((came[access], ranks[access], cell))
    links = _Pairs([], [], [])
    kinds = [each.kind for each in past.accesses]
    for first, second, where in _links(cell[order].tolist(), access[order].tolist(), kinds):
        links.first.append(first)
        links.second.append(second)
        links.cell.append(where)
    unordered = ~past.ordered(np.array(links.first, np.int64), np.array(links.second, np.int64))
    return _Pairs(*(list(compress(column, unordered)) for column in links))


def _links(cells: list[int], accesses: list[int], kinds: list[Kind]) -> Iterator[tuple[int, int, int]]:
    """The pairs that have to be ordered: (first, second, cell), of accesses sorted by cell and by what is meant."""
    current = -1
    writes: list[int] = []  # the last plain write, if there is one
    reads: list[int] = []  # since then
    adds: list[int] = []
    besides: list[int] = []
    for cell, access in zip(cells, accesses, strict=True):
        if cell != current:
            current, writes, reads, adds, besides = cell, [], [], [], []
        kind = kinds[access]
        if kind is Kind.READ:
            earlier = adds or writes
            reads.append(access)
        elif kind is Kind.BESIDE:
            earlier = writes + adds
            besides.append(access)
        elif kind is Kind.ADD:
            earlier = writes + reads + besides
            adds.append(access)
        else:
            earlier = writes + reads + adds + besides
            writes, reads, adds, besides = [access], [], [], []
        for other in earlier:
            if other != access:
                yield other, access, cell


class _Found(NamedTuple):
    """A pair of accesses that isn't ordered, in all cells that both touch."""

    first: int
    second: int
    low: int  # the first of these cells
    high: int  # the last one
    manifest: bool


def _reports(
    events: Sequence[Event], past: History, cells: Cells, ranks: Ints, pairs: _Pairs, met: Origins, most: int
) -> Hazards:
    accesses, rank = past.accesses, ranks.tolist()
    found = _pairs_of_accesses(pairs, _Harm(accesses, rank, cells.first.tolist(), met))
    found.sort(key=lambda pair: (not pair.manifest, accesses[pair.second].event, accesses[pair.first].event))
    alike: dict[tuple[Any, ...], list[_Found]] = {}
    for pair in found:
        alike.setdefault(_likeness(events, accesses[pair.first], accesses[pair.second]), []).append(pair)
    reports = [
        Hazard(
            kind=kind,
            region=cells.regions[pair.low],
            start=int(cells.starts[pair.low]),
            stop=int(cells.stops[pair.high]),
            epoch=epoch,
            first=_side(events, accesses[pair.first], met.drained.get(pair.first)),
            second=_side(events, accesses[pair.second], met.drained.get(pair.second)),
            meant=rank[pair.first] != rank[pair.second],
            crosstalk=crosstalk,
            manifest=pair.manifest,
            count=len(others) + 1,
        )
        for (kind, crosstalk, epoch, *_), (pair, *others) in islice(alike.items(), most)
    ]
    return Hazards(tuple(reports), len(alike) - len(reports), len(found))


def _pairs_of_accesses(pairs: _Pairs, harm: _Harm) -> list[_Found]:
    found: dict[tuple[int, int], _Found] = {}
    for first, second, cell in zip(*pairs, strict=True):
        *_, low, high, manifest = found.get((first, second), _Found(first, second, cell, cell, False))
        manifest = manifest or harm.is_done(first, second, cell)
        found[first, second] = _Found(first, second, min(low, cell), max(high, cell), manifest)
    return list(found.values())


def _likeness(events: Sequence[Event], first: Access, second: Access) -> tuple[Any, ...]:
    """What pairs of one report have in common: (kind, crosstalk, call, units, region, phases)."""
    kind = _kind(first.kind, second.kind)
    earlier, later = events[first.event], events[second.event]
    epoch = earlier.epoch if kind == WAR else later.epoch
    crosstalk = Kind.BESIDE in (first.kind, second.kind)
    return kind, crosstalk, epoch, first.unit, second.unit, first.region, earlier.phase, later.phase


def _kind(first: Kind, second: Kind) -> str:
    if second is Kind.READ:
        return RAW
    return WAR if first is Kind.READ else WAW


def _side(events: Sequence[Event], access: Access, drained: int | None) -> Side:
    event = events[access.event]
    action = "write" if access.kind is Kind.BESIDE else event.action
    in_memory = event.begin if access.kind is Kind.ADD else None if drained is None else events[drained].begin
    reached = access.event if access.kind is Kind.ADD else drained
    return Side(event.unit, event.phase, action, event.place, event.begin, in_memory, access.event, reached)


class _Harm:
    """Whether a run went wrong at a hazard."""

    def __init__(self, accesses: Sequence[Access], rank: list[int], low: list[int], met: Origins) -> None:
        self._accesses, self._rank, self._low, self._met = accesses, rank, low, met

    def is_done(self, first: int, second: int, cell: int) -> bool:
        """Of a pair in the order that is meant."""
        kinds = self._accesses[first].kind, self._accesses[second].kind
        for access, kind in zip((first, second), kinds, strict=True):
            if kind is Kind.BESIDE:
                return bool(self._met.undone[access][cell - self._low[access]])
        if self._rank[first] == self._rank[second]:
            return False  # nothing is meant, so nothing is wrong
        if kinds == (Kind.ADD, Kind.READ):
            return not self._holds(second, first, cell)
        if kinds == (Kind.READ, Kind.ADD):
            return self._holds(first, second, cell)
        if kinds[1] is Kind.READ:
            return self._got(second, cell) != first
        if kinds[0] is Kind.READ:
            got = self._got(first, cell)
            return got != NOBODY and self._rank[got] >= self._rank[second]
        return self._in_memory(first) > self._in_memory(second)

    def _got(self, read: int, cell: int) -> int:
        return int(self._met.found[read][cell - self._low[read]])

    def _holds(self, read: int, add: int, cell: int) -> bool:
        """Whether what a read got holds what an add has added: it came before, and no plain write came between."""
        settled = int(self._met.settled[read][cell - self._low[read]])
        return settled < self._accesses[add].event < self._accesses[read].event

    def _in_memory(self, access: int) -> int:
        if self._accesses[access].kind is Kind.ADD:
            return self._accesses[access].event
        return self._met.drained.get(access, NEVER)
