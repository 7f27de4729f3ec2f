"""The shared memory of a device: regions with guard words around them, and the store buffers in front of it.

Not here: when a word drains (the runners), and which regions an operator needs (cores/layout.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

__all__ = ["GUARD", "LINE", "Cells", "Entry", "Memory", "Region", "Span", "StoreBuffer"]

LINE: Final = 64  # bytes: what a store buffer drains at once, and what two cores must not share
# Before and after each region, and after each of its slots or buffers; no plausible float, index or stamp.
GUARD: Final = 0x5AFE_C0DE_5AFE_C0DE


class Span(NamedTuple):
    """Elements [start, stop) of a region."""

    region: str
    start: int
    stop: int


class Cells(NamedTuple):
    """How a region is made of slots or buffers with guard words after each; in elements, of whole 8-byte words."""

    size: int  # of a cell, its guard words included
    guard: int  # guard words at its end


class Region(NamedTuple):
    """A named array of a memory."""

    name: str
    dtype: np.dtype[Any]
    length: int  # elements
    offset: int = 0  # bytes from the arena's start; a multiple of the memory's alignment
    cells: Cells | None = None


class Memory:
    """Regions in one arena of bytes. What a call leaves in them is what the next one finds.

    Args:
        regions: (name, dtype, number of elements) of each, in the order in which they lie in memory; and, of one that
            is made of slots or buffers, its Cells.
    """

    def __init__(self, regions: Iterable[Asked] = ()) -> None:
        self.arena = aligned_bytes(0)
        self.lay_out(regions)

    def lay_out(self, regions: Iterable[Asked]) -> None:
        """Other regions over the same bytes, whatever they hold; more bytes, of zeros, if they don't fit."""
        self.regions: dict[str, Region] = {}
        offset = LINE  # room for the first guard
        for name, dtype, length, *cells in regions:
            kind = np.dtype(dtype)
            self.regions[name] = Region(name, kind, length, offset, *cells)
            size = -(-length * kind.itemsize // LINE) * LINE
            offset += size + LINE  # a line of guard words
        if self.arena.size < offset:
            self.arena, old = aligned_bytes(offset), self.arena
            self.arena[: old.size] = old
        arena = self.arena
        self.arrays: dict[str, NDArray[Any]] = {
            region.name: arena[region.offset : region.offset + region.length * region.dtype.itemsize].view(region.dtype)
            for region in self.regions.values()
        }
        self.place_guards()

    def place_guards(self) -> None:
        """Writes the guard words around every region, slot and buffer."""
        for _, guard in self._guards():
            guard[...] = GUARD

    def broken_guards(self) -> list[tuple[str, int]]:
        """The guard words that have lost their value, in order: (the region that they guard, byte of the arena)."""
        found = []
        for name, guard in self._guards():
            start = int(guard.ctypes.data - self.arena.ctypes.data)
            for place in np.argwhere(guard != GUARD):
                found.append((name, start + int(np.dot(place, guard.strides))))
        return sorted(found, key=lambda place: place[1])

    def _guards(self) -> Iterator[tuple[str, NDArray[np.uint64]]]:
        """Views of all guard words, as [words] or [cells, words], with the names of their regions."""
        yield "(start)", self.arena[:LINE].view(np.uint64)
        for region in self.regions.values():
            end = region.offset + region.length * region.dtype.itemsize
            begin = -(-end // 8) * 8
            stop = region.offset + (-(-region.length * region.dtype.itemsize // LINE) + 1) * LINE
            yield region.name, self.arena[begin:stop].view(np.uint64)
            if region.cells is not None:
                cells = self.arrays[region.name].reshape(-1, region.cells.size)
                yield region.name, cells[:, region.cells.size - region.cells.guard :].view(np.uint64)

    def load(self, span: Span) -> NDArray[Any]:
        """A copy of what memory holds."""
        return self.arrays[span.region][span.start : span.stop].copy()

    def store(self, span: Span, values: NDArray[Any]) -> None:
        """Puts values into memory."""
        self.arrays[span.region][span.start : span.stop] = values

    def whole_lines(self, span: Span) -> Span:
        """The span, widened to whole 64-byte lines (but not beyond its region)."""
        region = self.regions[span.region]
        per_line = LINE // region.dtype.itemsize
        return Span(
            span.region,
            span.start // per_line * per_line,
            min(-(-span.stop // per_line) * per_line, region.length),
        )


# Name, dtype, number of elements; and cells, where a region has them.
Asked: TypeAlias = tuple[str, DTypeLike, int] | tuple[str, DTypeLike, int, Cells | None]


def aligned_bytes(size: int) -> NDArray[np.uint8]:
    """Zeros that begin on a line."""
    raw = np.zeros(size + LINE, dtype=np.uint8)
    skip = -raw.ctypes.data % LINE
    return raw[skip : skip + size]


@dataclass(slots=True)
class Entry:
    """A word in a store buffer, widened to whole lines."""

    number: int  # of the word, among all of its run
    span: Span  # what drains
    values: NDArray[Any]
    own: Span  # what the unit wrote
    left: float = 0.0  # virtual time at which it drains, where there is a clock


@dataclass(slots=True)
class StoreBuffer:
    """The words of one unit that haven't reached memory yet, oldest first."""

    entries: list[Entry] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.entries)

    def drainable(self) -> Iterator[int]:
        """Positions of the entries that may drain next: those that overlap no older one."""
        for position, entry in enumerate(self.entries):
            if not any(_overlap(entry.span, older.span) for older in self.entries[:position]):
                yield position

    def overlaps_older(self, position: int) -> bool:
        """Whether an older entry must drain first."""
        span = self.entries[position].span
        return any(_overlap(span, older.span) for older in self.entries[:position])

    def over(self, span: Span, values: NDArray[Any]) -> None:
        """Lays the unit's own words over values read from memory, oldest first."""
        for entry in self.entries:
            own = entry.own
            if own.region == span.region and own.start < span.stop and span.start < own.stop:
                start, stop = max(own.start, span.start), min(own.stop, span.stop)
                offset = entry.span.start
                values[start - span.start : stop - span.start] = entry.values[start - offset : stop - offset]


def _overlap(first: Span, second: Span) -> bool:
    return first.region == second.region and first.start < second.stop and second.start < first.stop
