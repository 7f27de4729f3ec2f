"""Sums over a row's columns that need its finished max: of distances, and with a dense matrix; from stored logits.

Not here: the statistics themselves (logits.py, fold.py). The parts of tiles are added in the order of the fold.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from steadysum.kernels.problem import Operands, Statistics
from steadysum.kernels.triton_code import blocks
from steadysum.kernels.triton_code.fold import fold_sums
from steadysum.kernels.triton_code.grid import Grid
from steadysum.kernels.triton_code.mode import options
from steadysum.tiling import TILE

__all__ = ["with_sums"]

DENSE_SUMS = 3  # dense_total, dense_sum, dense_exp


def with_sums(call: Operands, grid: Grid, logits: torch.Tensor, found: Statistics) -> Statistics:
    """The statistics with the sums that the call asks for besides; logits [N, V] fp32, contiguous."""
    has_dense = call.dense is not None
    sums = int(call.wants_column_sum) + (DENSE_SUMS if has_dense else 0)
    if sums == 0:
        return found
    rows, tiles = call.size, len(grid.tiles)
    parts = logits.new_empty(sums, tiles, rows)
    block = blocks.fitting(blocks.BLOCKS.tile_rows, rows)
    _tile_sums[(tiles, triton.cdiv(rows, block))](
        logits,
        found.max,
        call.column_weight,
        call.dense,
        grid.tiles,
        parts,
        rows,
        tiles,
        call.weight.shape[0],
        call.valid_vocab,
        *((0, 0) if call.dense is None else call.dense.stride()),
        HAS_COLUMN_WEIGHT=call.column_weight is not None,
        WANTS_COLUMN_SUM=call.wants_column_sum,
        HAS_DENSE=has_dense,
        ROWS=block,
        COLUMNS=TILE,
        **options(warps=4),
    )
    out = logits.new_empty(sums, rows)
    fold_sums(parts, grid.leaf_tiles, grid.longest, out)
    if call.wants_column_sum:
        found = found._replace(column_sum=out[0])
    if has_dense:
        total, with_distance, with_exp = out[-DENSE_SUMS:]
        found = found._replace(dense_total=total, dense_sum=with_distance, dense_exp=with_exp)
    return found


@triton.jit(do_not_specialize=["rows", "tiles", "vocab", "valid_vocab"])
def _tile_sums(
    logits: tl.tensor,  # [N, V]
    row_max: tl.tensor,  # [N]
    column_weight: tl.tensor,  # [V]
    dense: tl.tensor,  # [N, V]
    columns_of_tiles: tl.tensor,  # [tiles, 2]
    parts: tl.tensor,  # [sums, tiles, N]
    rows: tl.tensor,
    tiles: tl.tensor,
    vocab: tl.tensor,
    valid_vocab: tl.tensor,
    dense_row: tl.tensor,
    dense_column: tl.tensor,
    HAS_COLUMN_WEIGHT: tl.constexpr,
    WANTS_COLUMN_SUM: tl.constexpr,
    HAS_DENSE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    tile = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.load(columns_of_tiles + 2 * tile) + tl.arange(0, COLUMNS)
    real = column < tl.minimum(tl.load(columns_of_tiles + 2 * tile + 1), valid_vocab)
    inside = (row < rows)[:, None] & real[None, :]
    z = tl.load(logits + row[:, None] * vocab + column[None, :], mask=inside, other=0.0)
    distance = z - tl.load(row_max + row, mask=row < rows, other=0.0)[:, None]
    at = parts + tile * rows + row
    one_sum = tiles.to(tl.int64) * rows
    if HAS_COLUMN_WEIGHT:
        w = tl.load(column_weight + column, mask=real, other=0.0)[None, :]
    if WANTS_COLUMN_SUM:
        value = distance
        if HAS_COLUMN_WEIGHT:
            value = w * distance
        tl.store(at, tl.sum(tl.where(inside, value, 0.0), axis=1), mask=row < rows)
        at += one_sum
    if HAS_DENSE:
        q_at = dense + row[:, None] * dense_row + column[None, :] * dense_column
        q = tl.load(q_at, mask=inside, other=0.0).to(tl.float32)
        value = q
        if HAS_COLUMN_WEIGHT:
            value = w * q
        tl.store(at, tl.sum(tl.where(inside, value, 0.0), axis=1), mask=row < rows)
        tl.store(at + one_sum, tl.sum(tl.where(inside, value * distance, 0.0), axis=1), mask=row < rows)
        value = q * tl.exp(distance)
        tl.store(at + 2 * one_sum, tl.sum(tl.where(inside, value, 0.0), axis=1), mask=row < rows)
