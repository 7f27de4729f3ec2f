"""The products of a logits' gradient G with the operands: the gradients of input, weight and bias.

Not here: G (logit_gradient.py). Every sum has an order of its own that neither the number of rows nor that of programs
changes: over columns ascending in a segment, and the segments by the tree; over rows ascending, across chunks.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from steadysum.kernels.chunks import BLOCK_ROWS
from steadysum.kernels.problem import Operands
from steadysum.kernels.triton_code import blocks
from steadysum.kernels.triton_code.arithmetic import multiply_add
from steadysum.kernels.triton_code.fold import fold_sums
from steadysum.kernels.triton_code.grid import Grid
from steadysum.kernels.triton_code.mode import options
from steadysum.tiling import TILE

__all__ = ["add_bias_gradient", "add_weight_gradient", "input_gradient", "product_precision"]

LEAVES_BYTES: Final = 32 * 2**20  # of the leaves' values of the input's gradient that are held at once


def product_precision(dtype: torch.dtype, chosen: str) -> str:
    """How G is multiplied by operands of this dtype: in fp32.

    bf16 and fp16 values are tf32 values, so that three tf32 products, one for each part of G and one of nothing, are as
    good as one in fp32, and several times as fast. ROCm has no such sum of products.
    """
    if dtype == torch.float32:
        return chosen
    return "ieee" if torch.version.hip else "tf32x3"


def input_gradient(
    call: Operands,
    grid: Grid,
    g: Tensor,  # [N, V] fp32, contiguous
    precision: str,
    out: Tensor,  # [N, H] fp32, contiguous
) -> None:
    """Write G @ weight."""
    hidden, leaves = call.weight.shape[1], len(grid.leaf_columns)
    block, width = blocks.fitting(blocks.BLOCKS.input_rows, call.size), blocks.fitting(blocks.BLOCKS.hidden, hidden)
    if hidden == 0:
        return
    group = max(LEAVES_BYTES // (4 * leaves * hidden) // block, 1) * block
    for start in range(0, call.size, group):
        rows = min(group, call.size - start)
        parts = g.new_empty(1, leaves, rows * hidden)
        _leaf_products[(triton.cdiv(hidden, width) * triton.cdiv(rows, block), leaves)](
            g[start:],
            call.weight,
            grid.leaf_columns,
            parts,
            rows,
            hidden,
            call.weight.shape[0],
            call.valid_vocab,
            *call.weight.stride(),
            PRECISION=precision,
            DEPTH=blocks.BLOCKS.summed_columns,
            ROWS=block,
            HIDDEN=width,
            **options(),
        )
        fold_sums(parts, grid.leaf_numbers, 1, out[start : start + rows].view(1, -1))


def add_weight_gradient(
    call: Operands,
    grid: Grid,
    g: Tensor,  # [N, V] fp32, contiguous
    precision: str,
    total: Tensor,  # [V, H] fp32, contiguous
) -> None:
    """Continue the sums over rows, G^T @ input, by a chunk of rows."""
    hidden = call.weight.shape[1]
    if hidden == 0:
        return
    width = blocks.fitting(blocks.BLOCKS.hidden, hidden)
    # Tiles go along the grid's first dimension: the second one has at most 65535 programs.
    _add_weight_gradient[(len(grid.tiles), triton.cdiv(hidden, width) * (TILE // blocks.BLOCKS.columns))](
        g,
        call.input,
        grid.tiles,
        total,
        call.size,
        hidden,
        call.weight.shape[0],
        call.valid_vocab,
        *call.input.stride(),
        PRECISION=precision,
        DEPTH=blocks.BLOCKS.summed_rows,
        COLUMNS=blocks.BLOCKS.columns,
        HIDDEN=width,
        **options(),
    )


def add_bias_gradient(call: Operands, g: Tensor, total: Tensor) -> None:
    """Continue the sums over rows of G's columns, in total [V] fp32, by a chunk of rows."""
    columns = blocks.fitting(blocks.BLOCKS.bias_columns, call.valid_vocab)
    _add_bias_gradient[(triton.cdiv(call.valid_vocab, columns),)](
        g,
        total,
        call.size,
        call.weight.shape[0],
        call.valid_vocab,
        ROWS=BLOCK_ROWS,
        COLUMNS=columns,
        **options(warps=4),
    )


@triton.jit(do_not_specialize=["rows", "vocab", "valid_vocab"])
def _leaf_products(
    g: tl.tensor,  # [N, V]
    weight: tl.tensor,  # [V, H]
    columns_of_leaves: tl.tensor,  # [leaves, 2]
    parts: tl.tensor,  # [leaves, N, H]
    rows: tl.tensor,
    hidden: tl.tensor,
    vocab: tl.tensor,
    valid_vocab: tl.tensor,
    weight_column: tl.tensor,
    weight_depth: tl.tensor,
    PRECISION: tl.constexpr,
    DEPTH: tl.constexpr,
    ROWS: tl.constexpr,
    HIDDEN: tl.constexpr,
) -> None:
    blocks = tl.cdiv(rows, ROWS)
    row = (tl.program_id(0) % blocks).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    h = (tl.program_id(0) // blocks).to(tl.int64) * HIDDEN + tl.arange(0, HIDDEN)
    leaf = tl.program_id(1).to(tl.int64)
    row_read = tl.minimum(row, rows - 1)
    h_read = tl.minimum(h, hidden - 1)
    start = tl.load(columns_of_leaves + 2 * leaf)
    stop = tl.minimum(tl.load(columns_of_leaves + 2 * leaf + 1), valid_vocab)
    total = tl.full([ROWS, HIDDEN], 0.0, tl.float32)
    for first in range(start, stop, DEPTH):
        column = first + tl.arange(0, DEPTH)
        inside = column < stop  # masked columns, and those of the next leaf, are never read
        left = tl.load(g + row_read[:, None] * vocab + column[None, :], mask=inside[None, :], other=0.0)
        w_at = weight + column[:, None] * weight_column + h_read[None, :] * weight_depth
        right = tl.load(w_at, mask=inside[:, None], other=0.0).to(tl.float32)
        total = multiply_add(left, right, total, PRECISION)
    at = parts + (leaf * rows + row[:, None]) * hidden + h[None, :]
    tl.store(at, total, mask=(row < rows)[:, None] & (h < hidden)[None, :])


@triton.jit(do_not_specialize=["rows", "vocab", "valid_vocab"])
def _add_weight_gradient(
    g: tl.tensor,  # [N, V]
    input: tl.tensor,  # [N, H]
    columns_of_tiles: tl.tensor,  # [tiles, 2]
    total: tl.tensor,  # [V, H]
    rows: tl.tensor,
    hidden: tl.tensor,
    vocab: tl.tensor,
    valid_vocab: tl.tensor,
    input_row: tl.tensor,
    input_depth: tl.tensor,
    PRECISION: tl.constexpr,
    DEPTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    HIDDEN: tl.constexpr,
) -> None:
    tile = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(hidden, HIDDEN)
    h = (tl.program_id(1) % blocks).to(tl.int64) * HIDDEN + tl.arange(0, HIDDEN)
    first_column = tl.load(columns_of_tiles + 2 * tile) + (tl.program_id(1) // blocks) * COLUMNS
    stop = tl.minimum(tl.load(columns_of_tiles + 2 * tile + 1), valid_vocab)
    if first_column >= stop:
        return
    column = first_column + tl.arange(0, COLUMNS)
    column_read = tl.minimum(column, stop - 1)
    h_read = tl.minimum(h, hidden - 1)
    inside = (column < stop)[:, None] & (h < hidden)[None, :]
    at = total + column[:, None] * hidden + h[None, :]
    sums = tl.load(at, mask=inside, other=0.0)
    for first in range(0, rows, DEPTH):
        row = first + tl.arange(0, DEPTH).to(tl.int64)
        there = row < rows
        left = tl.load(g + row[None, :] * vocab + column_read[:, None], mask=there[None, :], other=0.0)
        x_at = input + row[:, None] * input_row + h_read[None, :] * input_depth
        right = tl.load(x_at, mask=there[:, None], other=0.0).to(tl.float32)
        sums = multiply_add(left, right, sums, PRECISION)
    tl.store(at, sums, mask=inside)


@triton.jit(do_not_specialize=["rows", "vocab", "valid_vocab"])
def _add_bias_gradient(
    g: tl.tensor,  # [N, V]
    total: tl.tensor,  # [V]
    rows: tl.tensor,
    vocab: tl.tensor,
    valid_vocab: tl.tensor,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    column = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    real = column < valid_vocab
    sums = tl.load(total + column, mask=real, other=0.0)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS).to(tl.int64)
        inside = (row < rows)[:, None] & real[None, :]
        sums += tl.sum(tl.load(g + row[:, None] * vocab + column[None, :], mask=inside, other=0.0), axis=0)
    tl.store(total + column, sums, mask=real)
