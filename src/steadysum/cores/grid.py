"""How the vendor's kernel cuts a problem over cores: tiles, their order, who computes which, who holds which rows.

This is the emulated kernel's own cut, 128 rows by 256 columns; the operator itself is cut by steadysum.tiling. Not
here: where partial results lie in memory (layout.py).
"""

from __future__ import annotations

from functools import cached_property
from typing import Final, NamedTuple

__all__ = ["HALVES", "VENDOR", "CoreTile", "Geometry", "Grid", "split_rows"]

HALVES: Final = 2  # vector units of a core; each takes one half of a tile's rows
_SWIZZLE: Final = 8  # row blocks and column blocks of a group that is visited before the next one
_MOST_UNSWIZZLED: Final = 5  # row blocks; with more the vendor's kernel swizzles


class Geometry(NamedTuple):
    """The size of a tile."""

    rows: int = 128
    columns: int = 256

    @property
    def half_rows(self) -> int:
        """Rows of a tile that one vector unit takes."""
        return -(-self.rows // HALVES)


VENDOR: Final = Geometry()


class CoreTile(NamedTuple):
    """Rows [row, row + rows) by columns [column, column + columns)."""

    row_block: int
    row: int
    rows: int
    column: int
    columns: int

    def half(self, half: int, geometry: Geometry) -> range:
        """The rows that a vector unit takes, in the whole matrix; may be empty."""
        start = min(self.row + half * geometry.half_rows, self.row + self.rows)
        stop = self.row + self.rows if half == HALVES - 1 else min(start + geometry.half_rows, self.row + self.rows)
        return range(start, stop)


class Grid:
    """The tiles of one problem on a device.

    Args:
        rows, vocab: N and V of the problem; rows may be 0.
        cores: cores of the device; no more are used than there are tiles.
        geometry: size of a tile.
        floors: a fault of the program: tails of rows and columns that don't fill a tile are forgotten.
    """

    def __init__(self, rows: int, vocab: int, cores: int, geometry: Geometry = VENDOR, floors: bool = False) -> None:
        self.rows, self.vocab, self.geometry = rows, vocab, geometry
        self.row_blocks = -(-rows // geometry.rows)
        columns = range(0, vocab, geometry.columns)
        if floors and vocab >= geometry.columns:
            columns = columns[: vocab // geometry.columns]
        self.tiles = tuple(
            CoreTile(
                block,
                block * geometry.rows,
                min(geometry.rows, rows - block * geometry.rows),
                column,
                min(geometry.columns, vocab - column),
            )
            for block, column in _order(self.row_blocks, columns)
        )
        self.cores = max(1, min(cores, len(self.tiles)))

    def tiles_of(self, core: int) -> tuple[CoreTile, ...]:
        """The tiles that a core computes, in its order: every cores-th."""
        return self.tiles[core :: self.cores]

    @cached_property
    def owners(self) -> tuple[dict[int, int], ...]:
        """By row block, the cores that hold a part of it, ascending, and how many tiles of it each has."""
        found: list[dict[int, int]] = [{} for _ in range(self.row_blocks)]
        for number, tile in enumerate(self.tiles):
            core = number % self.cores
            found[tile.row_block][core] = found[tile.row_block].get(core, 0) + 1
        return tuple(dict(sorted(counts.items())) for counts in found)


def _order(row_blocks: int, columns: range) -> list[tuple[int, int]]:
    """(row block, first column) of the tiles in the order in which they are dealt to the cores."""
    if row_blocks <= _MOST_UNSWIZZLED:
        return [(block, column) for block in range(row_blocks) for column in columns]
    return [
        (block, column)
        for first_block in range(0, row_blocks, _SWIZZLE)
        for first_column in range(0, len(columns), _SWIZZLE)
        for block in range(first_block, min(first_block + _SWIZZLE, row_blocks))
        for column in columns[first_column : first_column + _SWIZZLE]
    ]


def split_rows(rows: int, parts: int, multiple: int) -> list[range]:
    """Rows in consecutive parts of equal size, a multiple of `multiple`; the last ones may be shorter, or empty.

    >>> split_rows(100, 3, 16)
    [range(0, 48), range(48, 96), range(96, 100)]
    """
    size = -(-rows // (parts * multiple)) * multiple
    return [range(min(part * size, rows), min((part + 1) * size, rows)) for part in range(parts)]
