"""The gradient of the logits from its coefficients, in place of the stored logits, taken back through the options.

Not here: the coefficients (ops/), the products with it (products.py). It stays in fp32: "softmax - 1" is what is left
of two nearly equal numbers, and must not be formed from rounded ones.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from steadysum.kernels.gradients import LogitGradient
from steadysum.kernels.problem import Operands
from steadysum.kernels.triton_code import blocks
from steadysum.kernels.triton_code.mode import options

__all__ = ["logit_gradient_"]


def logit_gradient_(call: Operands, logits: Tensor, row_max: Tensor, terms: LogitGradient) -> None:
    """Turn the logits of the columns that aren't masked into the gradient of product plus bias.

    Args:
        call: the operands, all of whose rows take part.
        logits: [N, V] fp32, contiguous; overwritten.
        row_max: [N], their maxima.
        terms: the coefficients, [N] each.
    """
    coefficients = [None if each is None else each.contiguous() for each in terms]
    rows = call.size
    most_rows, most_columns = blocks.BLOCKS.elements
    block_rows, block_columns = blocks.fitting(most_rows, rows), blocks.fitting(most_columns, call.valid_vocab)
    _logit_gradient[(triton.cdiv(call.valid_vocab, block_columns), triton.cdiv(rows, block_rows))](
        logits,
        row_max.contiguous(),
        *coefficients,
        call.column_weight,
        call.dense,
        call.target,
        call.temperature,
        rows,
        call.weight.shape[0],
        call.valid_vocab,
        float(call.scale),
        float(call.softcap or 1.0),
        *((0, 0) if call.dense is None else call.dense.stride()),
        int(call.temperature_per_row),
        **{f"HAS_{name.upper()}": each is not None for name, each in zip(terms._fields, coefficients, strict=True)},
        HAS_COLUMN_WEIGHT=call.column_weight is not None,
        READS_DENSE=terms.center is not None or terms.dense is not None,
        HAS_SOFTCAP=call.softcap is not None,
        HAS_TEMPERATURE=call.temperature is not None,
        ROWS=block_rows,
        COLUMNS=block_columns,
        **options(warps=4),
    )


@triton.jit(do_not_specialize=["rows", "vocab", "valid_vocab"])
def _logit_gradient(
    logits: tl.tensor,  # [N, V]
    row_max: tl.tensor,  # [N], as the next eight
    of_exp: tl.tensor,
    of_slope: tl.tensor,
    of_center: tl.tensor,
    of_column: tl.tensor,
    of_dense: tl.tensor,
    of_tie: tl.tensor,
    of_target: tl.tensor,
    keep_above: tl.tensor,
    column_weight: tl.tensor,  # [V]
    dense: tl.tensor,  # [N, V]
    target: tl.tensor,  # [N], int64
    temperature: tl.tensor,  # [N] or [1]
    rows: tl.tensor,
    vocab: tl.tensor,
    valid_vocab: tl.tensor,
    scale: tl.tensor,
    softcap: tl.tensor,
    dense_row: tl.tensor,
    dense_column: tl.tensor,
    temperature_row: tl.tensor,
    HAS_EXP: tl.constexpr,
    HAS_SLOPE: tl.constexpr,
    HAS_CENTER: tl.constexpr,
    HAS_COLUMN: tl.constexpr,
    HAS_DENSE: tl.constexpr,
    HAS_TIE: tl.constexpr,
    HAS_TARGET: tl.constexpr,
    HAS_KEEP_ABOVE: tl.constexpr,
    HAS_COLUMN_WEIGHT: tl.constexpr,
    READS_DENSE: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_TEMPERATURE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    column = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(1).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = (row < rows)[:, None] & (column < valid_vocab)[None, :]
    row = tl.minimum(row, rows - 1)  # what is loaded beyond the end is dropped with the rest of the block
    at = logits + row[:, None] * vocab + column[None, :]
    z = tl.load(at, mask=inside, other=0.0)
    largest = tl.load(row_max + row)[:, None]
    distance = z - largest
    e = tl.exp(distance)
    g = tl.full([ROWS, COLUMNS], 0.0, tl.float32)
    if HAS_EXP:
        g += tl.load(of_exp + row)[:, None]
    if HAS_SLOPE:
        g += tl.where(e == 0.0, 0.0, tl.load(of_slope + row)[:, None] * distance)
    if HAS_EXP or HAS_SLOPE:  # else e, NaN beside an infinite max, has no part in it
        g *= e
    if HAS_COLUMN_WEIGHT:
        w = tl.load(column_weight + column, mask=column < valid_vocab, other=0.0)[None, :]
    if READS_DENSE:
        q_at = dense + row[:, None] * dense_row + column[None, :] * dense_column
        q = tl.load(q_at, mask=inside, other=0.0).to(tl.float32)
    if HAS_CENTER:
        g *= q - tl.load(of_center + row)[:, None]
    if HAS_KEEP_ABOVE:
        g = tl.where(e < tl.load(keep_above + row)[:, None], 0.0, g)
    if HAS_DENSE:
        term = tl.load(of_dense + row)[:, None] * q
        if HAS_COLUMN_WEIGHT:
            term *= w
        g += term
    if HAS_COLUMN:
        term = tl.load(of_column + row)[:, None]
        if HAS_COLUMN_WEIGHT:
            term = term * w
        g += term
    if HAS_TIE:
        g += tl.where(z == largest, tl.load(of_tie + row)[:, None], 0.0)
    if HAS_TARGET:
        hit = column[None, :] == tl.load(target + row)[:, None]
        g += tl.where(hit, tl.load(of_target + row)[:, None], 0.0)
    # Back through the options, the last one first.
    if HAS_TEMPERATURE:
        heat = tl.load(temperature + row * temperature_row)[:, None]
        g = tl.div_rn(g, heat)
        z = z * heat
    if HAS_SOFTCAP:
        t = tl.minimum(tl.maximum(tl.div_rn(z, softcap), -1.0), 1.0)  # infinite where z overflowed after softcap
        g *= (1.0 - t) * (1.0 + t)  # 1 - t t would lose what is left near |t| = 1
    tl.store(at, g * scale, mask=inside)
