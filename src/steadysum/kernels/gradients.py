"""What a kernel's gradients are made of: the gradient of the logits by terms, which ones are wanted, and the results.

Not here: where the coefficients come from (ops/), or how a kernel forms the gradients (each kernel's own file).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from steadysum.kernels.problem import Operands, Statistics

__all__ = ["Gradients", "LogitGradient", "PullBack", "Wanted", "zeros"]


class LogitGradient(NamedTuple):
    """Coefficients, one per row of a chunk [R] each, of the gradient of the logits; None: the term is left out.

    With z the logits after all options, d_ij = z_ij - max_i, e_ij = exp(d_ij), w the call's column_weight (1 without)
    and Q the call's dense matrix:

        G_ij = e_ij (exp_i + slope_i d_ij)                 without center
               e_ij exp_i (Q_ij - center_i)                with center
             + column_i w_j  +  dense_i w_j Q_ij  +  tie_i [z_ij = max_i]  +  target_i [j = t_i]

    A term with e_ij = 0 contributes 0 to the slope part even where d_ij = -inf. Rows whose max is infinite need
    exp = NaN where they are to be NaN, as they are in torch.softmax.
    """

    exp: Tensor | None = None
    slope: Tensor | None = None
    center: Tensor | None = None
    column: Tensor | None = None
    dense: Tensor | None = None
    tie: Tensor | None = None
    target: Tensor | None = None
    keep_above: Tensor | None = None  # where e_ij < keep_above_i, the first line counts as 0 (gradient filter)


class Wanted(NamedTuple):
    """Which gradients to compute."""

    input: bool
    weight: bool
    bias: bool


class Gradients(NamedTuple):
    """The gradients that were wanted, in the dtype of the statistics (fp32, or fp64 for fp64 operands)."""

    input: Tensor | None  # [rows of the operands' input, H]; 0 for rows that take no part
    weight: Tensor | None  # [V, H]
    bias: Tensor | None  # [V]


def zeros(call: Operands, wanted: Wanted) -> Gradients:
    """The wanted gradients of a call, all 0."""

    def of(shape: Sequence[int], is_wanted: bool) -> Tensor | None:
        return call.input.new_zeros(shape, dtype=call.dtype) if is_wanted else None

    return Gradients(
        of(call.input.shape, wanted.input),
        of(call.weight.shape, wanted.weight),
        of(call.weight.shape[:1], wanted.bias),
    )


# From the statistics of rows [start, stop) of the call (counted among the rows that take part) to the coefficients of
# their logits' gradient. Called once per chunk, chunks in ascending order. A kernel that verifies its results may begin
# again: what was given for chunks up to then is void when row 0 comes once more.
PullBack = Callable[[Statistics, int, int], LogitGradient]
