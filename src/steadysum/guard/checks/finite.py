"""Finite: no NaN and no infinity, but where the operands have some.

Not here: numbers that are finite and wrong; NaN and infinity are about 1 % of silent corruptions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from steadysum.guard.checks.operands import all_finite, excused_rows, finite
from steadysum.guard.checks.protocol import Finding, Made
from steadysum.guard.tensors import as_rows, tensors_of

__all__ = ["Finite"]

MOST_ROWS: Final = 16


@dataclass(frozen=True)
class Finite:
    """Every element of every tensor of the output is a finite number, unless operands of its row are not.

    An overflow of finite operands is reported: whoever takes infinities for a result leaves this check out.

    Source: gate-level study of silent corruptions, arXiv 2605.04213: NaN and infinity are about 1 % of them.

    >>> x = torch.tensor([1.0, 2.0])
    >>> Finite().judge(Made(torch.log, (x,), {}, torch.tensor([0.0, torch.nan]))).rows
    (1,)
    """

    @property
    def name(self) -> str:
        """finite."""
        return "finite"

    def fits(self, made: Made) -> str | None:
        """An output that holds a tensor of floating-point numbers."""
        found = any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors_of(made.output))
        return None if found else "its output holds no floating-point numbers"

    def judge(self, made: Made) -> Finding:
        """Rows of the first tensor at fault; `measured` is the number of its elements at fault."""
        with torch.no_grad():
            for place, tensor in enumerate(tensors_of(made.output)):
                bad = _bad_elements(made, tensor.detach())
                if bad is None or not bool(bad.any()):
                    continue
                rows = bad.any(dim=1).nonzero().flatten()
                return Finding(
                    self.name,
                    passed=False,
                    summary=f"tensor {place} of the output holds {int(bad.sum())} NaN or infinities, in {len(rows)} of "
                    f"{bad.shape[0]} rows, where the operands hold none",
                    rows=tuple(rows[:MOST_ROWS].tolist()),
                    places=tuple((int(row), int(column)) for row, column in bad.nonzero()[:MOST_ROWS].tolist()),
                    measured=float(bad.sum()),
                    allowed=0.0,
                )
        return Finding(self.name, passed=True)


def _bad_elements(made: Made, tensor: Tensor) -> Tensor | None:
    """NaN and infinities [rows, columns] that no operand excuses; None: no element can be bad."""
    if tensor.is_meta or tensor.layout != torch.strided or all_finite(tensor):
        return None
    bad = ~finite(as_rows(tensor)).cpu()
    excused = excused_rows(made, bad.shape[0])
    return None if excused is None else bad & ~excused[:, None]
