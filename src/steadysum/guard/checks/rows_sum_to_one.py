"""RowsSumToOne: whether the rows of an output are probabilities.

Not here: whether they are the right ones; a wrong logit leaves a row that sums to one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from steadysum.guard.checks.calls import call_of, only_output, unusable
from steadysum.guard.checks.logits import largest_logits, logit_call, operator_of
from steadysum.guard.checks.operands import excused_rows
from steadysum.guard.checks.protocol import Finding, Made
from steadysum.guard.tensors import as_rows
from steadysum.kernels.softmax_bound import rounding_bound

__all__ = ["RowsSumToOne"]

MOST_ROWS: Final = 16
_NO_PROBABILITIES: Final = ("linear_logprobs", "linear_cross_entropy")


@dataclass(frozen=True)
class RowsSumToOne:
    """Every row of the output, along its last dimension, is at least 0 and sums to 1, within rounding.

    Derived bound: of this package's operators kernels.softmax_bound says by how many units of the precision that the
    softmax is computed in (fp32, or fp64) its sum may be off. Others may add a row up one by one, as torch
    does along a dimension that isn't the last in memory: as many units as there are columns. Each probability is then
    rounded once to the dtype of the output, which is one unit of that, by its own size, or half of the smallest
    subnormal number. A lost or a stale partial shows as a sum that isn't 1; a row of NaN is no fault where operands
    hold NaN or infinities, or may overflow.

    Args:
        tolerance: what a sum may differ from 1 by; None: the derived bound.

    >>> p = torch.tensor([[0.5, 0.5], [0.5, 0.75]])
    >>> RowsSumToOne().judge(Made(torch.softmax, (torch.zeros(2, 2), -1), {}, p)).rows
    (1,)
    """

    tolerance: float | None = None

    @property
    def name(self) -> str:
        """rows_sum_to_one."""
        return "rows_sum_to_one"

    def fits(self, made: Made) -> str | None:
        """An output that is one tensor of floating-point numbers with at least one dimension."""
        output = only_output(made)
        if output is None or output.dim() == 0:
            return "its output isn't one tensor with rows"
        if operator_of(call_of(made).function) in _NO_PROBABILITIES:
            return "it gives no probabilities"
        reason = unusable(output)
        return None if reason is None else f"its output {reason}"

    def judge(self, made: Made) -> Finding:
        """`measured` is the largest difference of a sum from 1."""
        with torch.no_grad():
            rows = as_rows(made.output.detach()) if made.output.dim() > 1 else made.output.detach()[None]
            if rows.numel() == 0:
                return Finding(self.name, passed=True)
            allowed = _allowed(made, rows) if self.tolerance is None else self.tolerance
            far = _distances(rows, allowed)
            wrong = {
                f"differ from 1 by more than {allowed:.3g}": (far > allowed).cpu(),
                "hold a number below 0": (rows.amin(dim=1) < 0).cpu(),
            }
            empty = far.isnan().cpu()
            if bool(empty.any()):
                excused = excused_rows(made, rows.shape[0])
                if excused is not None:
                    wrong["hold NaN, where the operands hold none"] = empty & ~excused & ~_may_overflow(made, empty)
        for what, mask in wrong.items():
            bad = mask.nonzero().flatten().tolist()
            if bad:
                return Finding(
                    self.name,
                    passed=False,
                    summary=f"{len(bad)} of {rows.shape[0]} rows {what} (row {bad[0]}: sum "
                    f"{float(rows[bad[0]].sum(dtype=torch.float64)):.9g})",
                    rows=tuple(bad[:MOST_ROWS]),
                    measured=float(far[bad].max()),
                    allowed=allowed,
                )
        return Finding(self.name, passed=True, measured=float(far.nan_to_num(nan=0.0).max()), allowed=allowed)


def _allowed(made: Made, rows: Tensor) -> float:
    stored = torch.finfo(rows.dtype)
    columns = rows.shape[1]
    units = rounding_bound(columns)
    if isinstance(logit_call(made), str):
        units += columns
    unit = torch.finfo(torch.float64 if rows.dtype == torch.float64 else torch.float32).eps / 2
    subnormal = columns * (stored.smallest_normal * stored.eps / 2)
    return units * unit + stored.eps / 2 + subnormal


def _distances(rows: Tensor, allowed: float) -> Tensor:  # float64 [n]
    """|sum - 1| of each row; in float64 of rows which a sum in fp32 finds too far off, or nearly."""
    narrow = rows.dtype if rows.dtype == torch.float64 else torch.float32
    far = (rows.sum(dim=1, dtype=narrow).double() - 1).abs()
    # Sums of torch add at most a few hundred numbers in a row; half of the bound is left to them.
    again = (far > allowed / 2).nonzero().flatten()
    for some in torch.split(again, max(1, (1 << 20) // rows.shape[1])):
        far[some] = (rows[some].sum(dim=1, dtype=torch.float64) - 1).abs()
    return far


def _may_overflow(made: Made, rows: Tensor) -> Tensor:  # [n] bool
    """Rows of a softmax of a linear layer whose logits may be too large for fp32."""
    call = logit_call(made)
    if isinstance(call, str):
        return torch.zeros_like(rows)
    return largest_logits(call).cpu() >= torch.finfo(torch.float32).max
