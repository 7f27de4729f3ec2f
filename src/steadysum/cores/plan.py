"""A plan: what a launch's programs share that depends on shapes and settings alone, and so serves many calls.

Not here: operands and the call (job.py).
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steadysum.cores.grid import HALVES, CoreTile, Geometry, Grid, split_rows
from steadysum.cores.layout import Layout
from steadysum.sync.actions import Flag
from steadysum.sync.memory import Span
from steadysum.trace.events import Unit

__all__ = ["ROLES", "Cut", "Plan", "Share", "units_of"]

ROLES: Final = ("cube", "v0", "v1")
AT_ONCE: Final = 4  # cores whose slots one strided copy brings to a vector unit in P3


def units_of(cores: int) -> tuple[Unit, ...]:
    """All units of so many cores, in the order in which they are numbered."""
    return tuple(Unit(core, role) for core in range(cores) for role in ROLES)


class Share(NamedTuple):
    """A tile that a core computes, for itself or, where partials are duplicated, for its neighbour."""

    tile: CoreTile
    owner: int  # the core whose partial it is part of
    copy: int  # which set of slots
    earlier: int  # tiles of the same partial that the core computes before it


class Cut(NamedTuple):
    """What a plan depends on."""

    rows: int
    vocab: int
    cores: int
    geometry: Geometry
    floors: bool  # a fault of the program: tiles are counted by floor division
    overlaps: bool  # enable_async: two product buffers, so that the cube can go ahead
    stores_logits: bool  # every tile has a product buffer of its own
    duplicates: bool  # every partial is computed by two cores
    alignment: int  # bytes to which slots and outputs are aligned
    target_dtype: np.dtype[Any]


class Plan:
    """Who computes what, and where it lies."""

    def __init__(self, cut: Cut) -> None:
        self.cut = cut
        self.grid = Grid(cut.rows, cut.vocab, cut.cores, cut.geometry, cut.floors)
        copies = 1 + cut.duplicates
        tiles = copies * -(-len(self.grid.tiles) // self.grid.cores)
        buffers = tiles if cut.stores_logits else 1 + cut.overlaps
        self.layout = Layout(self.grid, max(1, buffers), copies, cut.alignment, cut.target_dtype)
        self.units = units_of(self.grid.cores) if self.grid.tiles else ()
        self.members = tuple(unit for unit in self.units if unit.role != "cube")  # those that come to barriers
        self.flags: dict[str, tuple[Flag, ...]] = {}  # the members' flags by name
        self._combined: dict[int, tuple[tuple[Span, ...], ...]] = {}

    @staticmethod
    def number(unit: Unit) -> int:
        """A vector unit's position among all."""
        return unit.core * HALVES + (unit.role == "v1")

    @cached_property
    def output_rows(self) -> list[range]:
        """The rows that each vector unit combines and writes in P3, by its number."""
        return split_rows(self.grid.rows, max(1, len(self.members)), self.layout.row_multiple)

    @cached_property
    def target_rows(self) -> list[range]:
        """The rows whose target mask each vector unit writes in P1, by its number."""
        return split_rows(self.grid.rows, max(1, len(self.members)), self.layout.target_multiple)

    @cached_property
    def shares(self) -> tuple[tuple[Share, ...], ...]:
        """By core, what it computes, in order: its own tiles, then its neighbour's where partials are duplicated."""
        return tuple(self._shares(core) for core in range(self.grid.cores))

    def _shares(self, core: int) -> tuple[Share, ...]:
        found: list[Share] = []
        for copy in range(1 + self.cut.duplicates):
            owner = (core + copy) % self.grid.cores
            counts: dict[int, int] = {}
            for tile in self.grid.tiles_of(owner):
                earlier = counts.get(tile.row_block, 0)
                counts[tile.row_block] = earlier + 1
                found.append(Share(tile, owner, copy, earlier))
        return tuple(found)

    @cached_property
    def cleared(self) -> dict[str, NDArray[np.float32]]:
        """What P0 writes into a core's slots, by region."""
        return {"max": self.layout.cleared(-np.inf), "sum": self.layout.cleared(0.0)}

    def slots_of(self, rows: range) -> tuple[tuple[Span, ...], ...]:
        """The slots that hold these rows, some cores at a time: spans of "max", core after core, then of "sum"."""
        if rows.start not in self._combined:
            layout = self.layout
            pieces = []  # (where they begin in core 0's slots, rows)
            for half_block, piece in layout.pieces(rows):
                skipped = piece.start - layout.half_block_rows(half_block).start
                pieces.append((layout.slot_start(0, half_block) + skipped, len(piece)))
            starts = [layout.slot_start(core, 0) for core in range(self.grid.cores)]
            self._combined[rows.start] = tuple(
                tuple(
                    Span(region, core + start, core + start + length)
                    for region in ("max", "sum")
                    for core in starts[first : first + AT_ONCE]
                    for start, length in pieces
                )
                for first in range(0, self.grid.cores, AT_ONCE)
            )
        return self._combined[rows.start]
