"""Softmax from stored logits and their statistics, in place.

Not here: the statistics (statistics.py).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from steadysum.kernels.problem import Statistics
from steadysum.kernels.triton_code import blocks
from steadysum.kernels.triton_code.mode import options

__all__ = ["softmax_"]


def softmax_(logits: Tensor, found: Statistics) -> None:
    """Turn logits [N, V] fp32, contiguous, into their softmax."""
    rows, vocab = logits.shape
    # As in torch, a row that holds +inf, or nothing but -inf, is NaN: there inf - inf and 0 / 0 give it by themselves,
    # and a NaN sum spreads it to the row's finite logits.
    total = found.sum_exp.masked_fill(found.max == torch.inf, torch.nan)
    most_rows, most_columns = blocks.BLOCKS.elements
    block_rows, block_columns = blocks.fitting(most_rows, rows), blocks.fitting(most_columns, vocab)
    # Rows go along the grid's first dimension: the second one has at most 65535 programs.
    _softmax[(triton.cdiv(rows, block_rows), triton.cdiv(vocab, block_columns))](
        logits, found.max, total, rows, vocab, ROWS=block_rows, COLUMNS=block_columns, **options(warps=4)
    )


@triton.jit(do_not_specialize=["rows", "vocab"])
def _softmax(
    logits: tl.tensor,  # [N, V]
    row_max: tl.tensor,  # [N]
    row_sum: tl.tensor,  # [N]
    rows: tl.tensor,
    vocab: tl.tensor,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < vocab)[None, :]
    at = logits + row[:, None] * vocab + column[None, :]
    largest = tl.load(row_max + row, mask=row < rows, other=0.0)[:, None]
    total = tl.load(row_sum + row, mask=row < rows, other=1.0)[:, None]
    tl.store(at, tl.div_rn(tl.exp(tl.load(at, mask=inside, other=0.0) - largest), total), mask=inside)
