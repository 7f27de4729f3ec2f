"""Which rows of an output may be NaN or infinite, since their operands are.

Not here: whether rows that may not be are (finite.py and others).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from steadysum.guard.checks.calls import call_of, linear_product
from steadysum.guard.checks.protocol import Made
from steadysum.guard.tensors import as_rows, memories_of, memory_of, tensors_of

__all__ = ["all_finite", "excused_rows", "finite"]


def all_finite(tensor: Tensor) -> bool:
    """Whether there is no NaN and no infinity, in one pass without a copy."""
    if tensor.numel() == 0 or not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    if tensor.is_complex() or tensor.element_size() == 1:  # aminmax knows neither
        return bool(finite(tensor).all())
    return all(bool(each.isfinite()) for each in torch.aminmax(tensor))  # NaN comes through


def finite(tensor: Tensor) -> Tensor:
    """Which elements are neither NaN nor an infinity, of any dtype."""
    return (tensor.float() if tensor.element_size() == 1 else tensor).isfinite()


def excused_rows(made: Made, rows: int) -> Tensor | None:  # [rows] bool
    """Rows of an output of so many rows that may hold NaN or infinity, because operands do; None: every row.

    If the first tensor of the call has as many rows and the callable works row by row (linear products, embeddings,
    softmax over the last dimension, the operators of this package), one of its rows excuses the same row. With another
    callable it excuses every row, and so does any other operand, a module's parameters and buffers among them. What the
    call has changed, and nobody has a copy of, excuses nothing.
    """
    operands = _operands(made)
    first = next(operands, None)
    if first is None:
        return torch.zeros(rows, dtype=torch.bool)
    # What the call has written to says nothing of what it was given: an operator in place would excuse itself.
    written = memories_of(made.written)
    if not all(memory_of(tensor) in written or all_finite(tensor) for tensor in operands):
        return None
    if memory_of(first) in written or all_finite(first):
        return torch.zeros(rows, dtype=torch.bool)
    by_row = as_rows(first)
    if by_row.shape[0] != rows or not _works_row_by_row(made):
        return None
    return ~finite(by_row).all(dim=1).cpu()


def _operands(made: Made) -> Iterator[Tensor]:
    function, args, kwargs = call_of(made)
    values: list[Any] = [args, dict(kwargs)]
    if isinstance(function, torch.nn.Module):
        values += [list(function.parameters()), list(function.buffers())]
    for tensor in tensors_of(values):
        if not tensor.is_meta and tensor.layout == torch.strided:
            yield tensor.detach()


def _works_row_by_row(made: Made) -> bool:
    function, args, kwargs = call_of(made)
    if function in (torch.nn.functional.softmax, torch.softmax, torch.nn.functional.log_softmax, torch.log_softmax):
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        return isinstance(args[0], Tensor) and dim in (-1, args[0].dim() - 1)
    if getattr(function, "__module__", "").startswith(("steadysum.ops.", "steadysum.compat.torch_npu")):
        return True
    return not isinstance(linear_product(made), str)
