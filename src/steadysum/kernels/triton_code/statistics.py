"""The statistics of a call: its tiles, then their fold, for so many rows at a time as the partials' memory allows.

Not here: gradients (gradients.py), sums over columns (sums.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from steadysum.kernels.chunks import BLOCK_ROWS
from steadysum.kernels.problem import Operands, Statistics
from steadysum.kernels.triton_code.fold import fold_partials
from steadysum.kernels.triton_code.grid import grid_of
from steadysum.kernels.triton_code.logits import tile_partials

__all__ = ["joined", "plain", "precision", "statistics"]

PARTIALS_BYTES: Final = 32 * 2**20  # half of the bar on memory above operands and results
OPERANDS: Final = ("input", "weight", "bias", "temperature", "target", "dense", "column_weight")
PARTIALS: Final = 4  # max, sum_exp, weighted_sum, ties


def plain(call: Operands) -> Operands:
    """The call with operands that a pointer and strides describe: without grad, lazy negation resolved."""

    def resolved(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.detach().resolve_neg()

    tensors = {name: resolved(getattr(call, name)) for name in OPERANDS}
    return replace(call, **tensors)  # type: ignore[arg-type]


def precision(dtype: torch.dtype) -> str:
    """How products of fp32 operands are formed: in fp32, unless the user lets torch's own products round to tf32.

    On ROCm always in fp32: few of its devices have tf32, and Triton doesn't compile it for the others.
    """
    if dtype != torch.float32 or torch.version.hip:
        return "ieee"  # of 16-bit operands nothing is rounded
    matmul = torch.backends.cuda.matmul
    chosen = getattr(matmul, "fp32_precision", None)  # torch >= 2.9, where reading allow_tf32 may warn or raise
    if chosen is None:
        chosen = "tf32" if matmul.allow_tf32 else "ieee"
    return "tf32" if chosen == "tf32" else "ieee"


def statistics(call: Operands, out: Tensor | None) -> Statistics:
    """max, sum_exp, and what else the call asks for but sums over columns; with `out` [N, V], also the logits."""
    grid = grid_of(call)
    rows = max(PARTIALS_BYTES // (4 * PARTIALS * len(grid.tiles)) // BLOCK_ROWS, 1) * BLOCK_ROWS
    if out is not None:
        out[:, call.valid_vocab :] = -torch.inf
    parts = []
    for start in range(0, call.size, rows):
        piece = call.rows(start, start + rows)
        z = None if out is None else out[start : start + rows]
        partials = tile_partials(piece, grid, precision(call.input.dtype), z)
        parts.append(fold_partials(partials, grid.leaf_tiles, grid.longest))
    return joined(parts, call)


def joined(parts: Sequence[Statistics], call: Operands) -> Statistics:
    """The statistics of consecutive rows as one; of no rows, those that the call asks for."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        none = call.input.new_empty(0, dtype=call.dtype)
        dense = none if call.dense is not None else None
        return Statistics(
            none,
            none.clone(),
            None if call.target is None else none.clone(),
            none.clone() if call.wants_weighted_sum else None,
            none.clone() if call.wants_ties else None,
            none.clone() if call.wants_column_sum else None,
            *(None if dense is None else none.clone() for _ in range(3)),
        )
    return Statistics(*(None if column[0] is None else torch.cat(column) for column in zip(*parts, strict=True)))  # type: ignore[arg-type]
