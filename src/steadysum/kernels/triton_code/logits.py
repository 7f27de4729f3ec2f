"""A tile's logits and its partial: product, options, mask, and what the fold needs of each row.

Not here: the fold of the tiles' partials (fold.py).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from steadysum.kernels.problem import Operands
from steadysum.kernels.triton_code import blocks
from steadysum.kernels.triton_code.arithmetic import capped, exp_of_difference, multiply_add
from steadysum.kernels.triton_code.grid import Grid
from steadysum.kernels.triton_code.mode import options

__all__ = ["Partials", "tile_partials"]


class Partials(NamedTuple):
    """Of all tiles; target logits are whole, as one tile holds each of them."""

    max: Tensor  # [tiles, N]
    sum_exp: Tensor  # [tiles, N]
    weighted_sum: Tensor | None  # [tiles, N]
    ties: Tensor | None  # [tiles, N]
    target_logit: Tensor | None  # [N]


def tile_partials(call: Operands, grid: Grid, precision: str, logits: Tensor | None) -> Partials:
    """Compute every tile of a call whose rows all take part.

    Args:
        call: the operands, without grad.
        grid: their cut.
        precision: how fp32 operands are multiplied: "ieee" or "tf32".
        logits: [N, V] fp32, contiguous, in which to store the logits that are not masked; None stores none.
    """
    rows, tiles, hidden = call.size, len(grid.tiles), call.weight.shape[1]
    block_rows = blocks.fitting(blocks.BLOCKS.rows, rows)
    depth = blocks.depth(hidden, call.input.element_size())

    def room(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=call.input.device)

    partials = Partials(
        room(tiles, rows),
        room(tiles, rows),
        room(tiles, rows) if call.wants_weighted_sum else None,
        room(tiles, rows) if call.wants_ties else None,
        None if call.target is None else room(rows),
    )
    _tile_partials[(tiles * triton.cdiv(rows, block_rows),)](
        call.input,
        call.weight,
        call.bias,
        call.temperature,
        call.target,
        grid.tiles,
        logits,
        *partials,
        rows,
        hidden,
        tiles,
        call.valid_vocab,
        call.weight.shape[0],
        float(call.scale),
        float(call.softcap or 1.0),
        *call.input.stride(),
        *call.weight.stride(),
        0 if call.bias is None else call.bias.stride(0),
        int(call.temperature_per_row),
        HAS_BIAS=call.bias is not None,
        HAS_SOFTCAP=call.softcap is not None,
        HAS_TEMPERATURE=call.temperature is not None,
        HAS_TARGET=call.target is not None,
        STORE_LOGITS=logits is not None,
        WANTS_WEIGHTED=call.wants_weighted_sum,
        WANTS_TIES=call.wants_ties,
        WHOLE_DEPTH=hidden % depth == 0,
        PRECISION=precision,
        DEPTH=depth,
        GROUP=blocks.GROUP,
        ROWS=block_rows,
        COLUMNS=blocks.BLOCKS.columns,
        **options(warps=8 if call.input.dtype == torch.float32 and precision == "ieee" else 4),
    )
    return partials


# The numbers of rows and columns don't decide which variant is compiled: they change from call to call.
@triton.jit(do_not_specialize=["rows", "tiles", "valid_vocab", "vocab"])
def _tile_partials(  # type: ignore[no-untyped-def]
    input: tl.tensor,  # [N, H]
    weight: tl.tensor,  # [V, H]
    bias: tl.tensor,  # [V]
    temperature: tl.tensor,  # [N] or [1]
    target: tl.tensor,  # [N], int64
    columns_of_tiles: tl.tensor,  # [tiles, 2], int64
    logits: tl.tensor,  # [N, V]
    tile_max: tl.tensor,  # [tiles, N], as the next three
    tile_sum: tl.tensor,
    tile_weighted: tl.tensor,
    tile_ties: tl.tensor,
    target_logit: tl.tensor,  # [N]
    rows: tl.tensor,
    hidden: tl.tensor,
    tiles: tl.tensor,
    valid_vocab: tl.tensor,
    vocab: tl.tensor,
    scale: tl.tensor,
    softcap: tl.tensor,
    input_row: tl.tensor,
    input_depth: tl.tensor,
    weight_column: tl.tensor,
    weight_depth: tl.tensor,
    bias_column: tl.tensor,
    temperature_row: tl.tensor,
    HAS_BIAS: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_TEMPERATURE: tl.constexpr,
    HAS_TARGET: tl.constexpr,
    STORE_LOGITS: tl.constexpr,
    WANTS_WEIGHTED: tl.constexpr,
    WANTS_TIES: tl.constexpr,
    WHOLE_DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
    DEPTH: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    # Programs that run side by side share weights: tiles outside, and inside the row blocks of a group.
    program = tl.program_id(0)
    group = program // (GROUP * tiles)
    in_group = program % (GROUP * tiles)
    blocks = tl.minimum(tl.cdiv(rows, ROWS) - group * GROUP, GROUP)
    tile = in_group // blocks
    row = ((group * GROUP + in_group % blocks) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    row_inside = row < rows
    # Rows and columns beyond the end repeat the last ones: loads without a mask, of values that are dropped later.
    row_read = tl.minimum(row, rows - 1)

    start = tl.load(columns_of_tiles + 2 * tile)
    stop = tl.minimum(tl.load(columns_of_tiles + 2 * tile + 1), valid_vocab)
    k = tl.arange(0, DEPTH)
    k_far = k.to(tl.int64)
    deeper = tl.full([], DEPTH, tl.int64)  # times a stride, it may not fit into 32 bits
    inputs = input + row_read[:, None] * input_row + k_far[None, :] * input_depth
    if HAS_TEMPERATURE:
        heat = tl.load(temperature + row_read * temperature_row)[:, None]
    if HAS_TARGET:
        wanted = tl.load(target + row_read)
        if tile == 0:  # no tile holds a masked target
            tl.store(target_logit + row, float("-inf"), mask=row_inside & (wanted >= valid_vocab))

    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.full([ROWS], 0.0, tl.float32)
    weighted = tl.full([ROWS], 0.0, tl.float32)
    ties = tl.full([ROWS], 0.0, tl.float32)
    local = tl.arange(0, COLUMNS)  # columns are counted in 32 bits within a block, and in 64 outside
    for first in range(start, stop, COLUMNS):
        left = tl.minimum(stop - first, COLUMNS).to(tl.int32)
        inside = (local < left)[None, :]
        column_read = first + tl.minimum(local, left - 1)

        z = tl.full([ROWS, COLUMNS], 0.0, tl.float32)
        x_at = inputs
        w_at = weight + column_read[None, :] * weight_column + k_far[:, None] * weight_depth
        for done in range(0, hidden, DEPTH):
            if WHOLE_DEPTH:
                x = tl.load(x_at)
                w = tl.load(w_at)
            else:
                x = tl.load(x_at, mask=(k < hidden - done)[None, :], other=0.0)
                w = tl.load(w_at, mask=(k < hidden - done)[:, None], other=0.0)
            z = multiply_add(x, w, z, PRECISION)
            x_at += deeper * input_depth
            w_at += deeper * weight_depth
        if HAS_BIAS:
            z += tl.load(bias + column_read * bias_column).to(tl.float32)[None, :]
        z *= scale
        if HAS_SOFTCAP:
            z = capped(z, softcap)
        if HAS_TEMPERATURE:
            z = tl.div_rn(z, heat)
        z = tl.where(inside, z, float("-inf"))  # whatever stands in the weights there
        if STORE_LOGITS:
            row_at = logits + row * vocab + first
            tl.store(row_at[:, None] + local[None, :], z, mask=row_inside[:, None] & inside)

        new = tl.maximum(largest, tl.max(z, axis=1))
        # A row of nothing but -inf is measured from 0, so that its terms are exp(-inf) = 0. Logits equal to the max are
        # at distance 0 even if both are +inf, so that a row's +inf logits are counted.
        origin = tl.where(new == float("-inf"), 0.0, new)[:, None]
        distance = tl.where(z == origin, 0.0, z - origin)
        terms = tl.exp(distance)
        factor = exp_of_difference(largest, new)
        if WANTS_WEIGHTED:
            own = tl.sum(tl.where(terms == 0.0, 0.0, terms * distance), axis=1)
            # Each logit so far is further from the new max by largest - new.
            moved = tl.where(factor * total == 0.0, 0.0, factor * (weighted + (largest - new) * total))
            weighted = tl.where(largest == new, weighted, moved) + own
        if WANTS_TIES:  # masked columns never tie, not even in a row of nothing but -inf
            tied = tl.sum(tl.where(inside & (z == new[:, None]), 1.0, 0.0), axis=1)
            ties = tl.where(largest == new, ties, 0.0) + tied
        if HAS_TARGET:  # the one block that holds it stores it
            place = tl.where((wanted >= first) & (wanted < first + left), wanted - first, -1).to(tl.int32)
            found = tl.sum(tl.where(local[None, :] == place[:, None], z, 0.0), axis=1)
            tl.store(target_logit + row, found, mask=row_inside & (place >= 0))
        total = total * factor + tl.sum(terms, axis=1)
        largest = new

    at = tile.to(tl.int64) * rows + row
    # A max over numbers and NaN need not be NaN; the sum is.
    tl.store(tile_max + at, tl.where(total != total, total, largest), mask=row_inside)
    tl.store(tile_sum + at, total, mask=row_inside)
    if WANTS_WEIGHTED:
        tl.store(tile_weighted + at, weighted, mask=row_inside)
    if WANTS_TIES:
        tl.store(tile_ties + at, ties, mask=row_inside)
