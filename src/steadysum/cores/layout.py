"""Where things lie in the device's memory: product buffers, the cores' slots, stamps, outputs.

Slots are padded to whole 64-byte lines, so that no two units write into one: with a smaller alignment (the armed fault
`crosstalk`) they are packed, and neighbours undo each other's words. A line of guard words lies after each slot, stamp
and half of a product buffer, but not among packed slots. The outputs are whole arrays, as the operator returns them:
guard words lie around each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from steadysum.cores.grid import HALVES, Grid
from steadysum.sync.memory import GUARD, LINE, Asked, Cells, Span
from steadysum.sync.records import STAMP_WORDS, Slot

__all__ = ["ROWS_OF_A_MASK_LINE", "Layout"]

_FLOATS: Final = LINE // 4  # fp32 elements of a line
_STAMP: Final = Cells(2 * STAMP_WORDS, STAMP_WORDS)  # a line, and a line of guard words
ROWS_OF_A_MASK_LINE: Final = LINE * 8  # target_mask has a bit for each row


class Layout:
    """The regions that one problem needs, and the spans in them.

    Args:
        grid: the problem's tiles.
        buffers: product buffers of each core.
        copies: sets of slots: 2 where every partial is computed by two cores.
        alignment: bytes to which slots and the rows of a unit's outputs are aligned.
        target_dtype: of masked_target.
    """

    def __init__(self, grid: Grid, buffers: int, copies: int, alignment: int, target_dtype: np.dtype[Any]) -> None:
        self.grid, self.buffers = grid, buffers
        self._slots: dict[tuple[int, int, int, int], Slot] = {}  # asked for so far: a plan serves many calls
        # Each vector unit's half of a product begins on a line of its own.
        half = -(-grid.geometry.half_rows * grid.geometry.columns // _FLOATS) * _FLOATS
        self.half = Cells(half + _FLOATS, _FLOATS)
        self.half_blocks = grid.row_blocks * HALVES
        per = max(1, alignment // 4)
        guard = _FLOATS if alignment >= LINE else 0
        self.slots = Cells(-(-grid.geometry.half_rows // per) * per + guard, guard)  # padding included
        self.row_multiple = per  # of the rows that a unit of P3 writes
        self.target_multiple = ROWS_OF_A_MASK_LINE if alignment >= LINE else 8
        slots = copies * grid.cores * self.half_blocks
        units = grid.cores * HALVES
        halves = grid.cores * buffers * HALVES
        rows = grid.rows
        among = self.slots if guard else None
        self.regions: tuple[Asked, ...] = (
            ("product", np.float32, halves * self.half.size, self.half),
            ("product_stamp", np.int64, halves * _STAMP.size, _STAMP),
            ("max", np.float32, slots * self.slots.size, among),
            ("sum", np.float32, slots * self.slots.size, among),
            ("target_logit", np.float32, slots * self.slots.size, among),
            ("stamp", np.int64, slots * _STAMP.size, _STAMP),
            ("predicted", np.float32, rows),
            ("out_max", np.float32, rows),
            ("out_sum", np.float32, rows),
            ("out_predicted", np.float32, rows),
            ("out_stamp", np.int64, units * _STAMP.size, _STAMP),
            ("mask", np.uint8, -(-rows // 8)),
            ("masked_target", target_dtype, rows),
            ("target_stamp", np.int64, units * _STAMP.size, _STAMP),
        )

    def product(self, core: int, buffer: int, half: int, rows: int, columns: int) -> Span:
        """A half of a tile, of so many rows and columns, in a core's product buffer."""
        start = ((core * self.buffers + buffer) * HALVES + half) * self.half.size
        return Span("product", start, start + rows * columns)

    def product_record(self, core: int, buffer: int, half: int, rows: int, columns: int) -> Slot:
        """The record of that half: its count is the core's tile, from 1."""
        stamp = _stamp("product_stamp", (core * self.buffers + buffer) * HALVES + half)
        counted = "the product of the core's tile {} in the place of that of tile {}"
        return Slot(core, stamp, (self.product(core, buffer, half, rows, columns),), counted)

    def half_block(self, row: int) -> int:
        """The half of a row block that a row lies in."""
        block, within = divmod(row, self.grid.geometry.rows)
        return block * HALVES + (within >= self.grid.geometry.half_rows)

    def half_block_rows(self, half_block: int) -> range:
        """The rows of a half block, in the whole matrix."""
        block, half = divmod(half_block, HALVES)
        start = block * self.grid.geometry.rows + half * self.grid.geometry.half_rows
        end = start + self.grid.geometry.half_rows if half < HALVES - 1 else (block + 1) * self.grid.geometry.rows
        return range(min(start, self.grid.rows), min(end, self.grid.rows))

    def slot_start(self, core: int, half_block: int, copy: int = 0) -> int:
        """Where a core's slot of a half block begins in the regions max, sum and target_logit."""
        return ((copy * self.grid.cores + core) * self.half_blocks + half_block) * self.slots.size

    def cleared(self, value: float) -> NDArray[np.float32]:
        """A core's slots of one region as P0 leaves them, with the guard words among them."""
        whole = np.full((self.half_blocks, self.slots.size), value, np.float32)
        if self.slots.guard:
            whole[:, -self.slots.guard :].view(np.uint64)[...] = GUARD
        return whole.reshape(-1)

    def slot(self, core: int, half_block: int, writer: int, copy: int = 0) -> Slot:
        """The record of a core's partial of a half block: (max, sum, target logit) of its rows."""
        key = (core, half_block, writer, copy)
        found = self._slots.get(key)
        if found is None:
            found = self._slots[key] = self._slot(core, half_block, writer, copy)
        return found

    def _slot(self, core: int, half_block: int, writer: int, copy: int) -> Slot:
        start = self.slot_start(core, half_block, copy)
        stop = start + len(self.half_block_rows(half_block))
        stamp = _stamp("stamp", (copy * self.grid.cores + core) * self.half_blocks + half_block)
        payload = tuple(Span(region, start, stop) for region in ("max", "sum", "target_logit"))
        return Slot(writer, stamp, payload)

    def pieces(self, rows: range) -> Iterator[tuple[int, range]]:
        """The half blocks that some rows lie in, and which of the rows are in each."""
        row = rows.start
        while row < rows.stop:
            half_block = self.half_block(row)
            stop = min(rows.stop, self.half_block_rows(half_block).stop)
            yield half_block, range(row, stop)
            row = stop

    def outputs(self, unit: int, core: int, rows: range) -> Slot:
        """The record of the rows that a unit of P3 writes."""
        payload = tuple(Span(region, rows.start, rows.stop) for region in ("out_max", "out_sum", "out_predicted"))
        return Slot(core, _stamp("out_stamp", unit), payload)

    def targets(self, unit: int, core: int, rows: range) -> Slot:
        """The record of the rows whose target mask a unit of P1 writes."""
        payload = (
            Span("mask", rows.start // 8, -(-rows.stop // 8)),
            Span("masked_target", rows.start, rows.stop),
        )
        return Slot(core, _stamp("target_stamp", unit), payload)


def _stamp(region: str, number: int) -> Span:
    """A stamp's line."""
    return Span(region, number * _STAMP.size, number * _STAMP.size + STAMP_WORDS)
