"""safe_fused_linear: the field report's stop-gap: run, check the accuracy, synchronise, try again, in the end raise.

Not here: the operator (operators.py), and checks of any operator's results (steadysum.guard).
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

from steadysum.compat.torch_npu.operators import fused_linear_online_max_sum
from steadysum.errors import AccuracyError, RangeError
from steadysum.kernels.problem import statistics_dtype
from steadysum.kernels.softmax_bound import rounding_bound
from steadysum.ops.vendor_arguments import accept_int

__all__ = ["safe_fused_linear"]


def safe_fused_linear(
    x: Tensor,  # [..., in]
    weight: Tensor,  # [in, out]
    max_retry: int = 3,
) -> Tensor:  # [..., out]
    """The softmax of a linear layer, checked; computed again if a check fails, at most max_retry times.

    After each call the device is synchronised. Every row must be a softmax: no probability below 0 or above 1, and the
    sum 1, within the rounding errors of its own computation; a row of NaN only where its logits have none (one of them
    NaN or +inf, or all -inf).

    Args:
        x: [..., in]. weight: [in, out].
        max_retry: further calls after a first that fails, >= 0.

    Returns:
        As fused_linear_online_max_sum(x, weight).

    Raises:
        AccuracyError: every call failed; says how many rows, and what the first of them looks like.
        OperandTypeError, RangeError: max_retry. Else what fused_linear_online_max_sum raises.

    Source: field report, R12. What it checks catches a lost or stale partial of some tile; not a wrong logit.

    >>> safe_fused_linear(torch.ones(1, 2), torch.zeros(2, 4))
    tensor([[0.2500, 0.2500, 0.2500, 0.2500]])
    """
    max_retry = accept_int("max_retry", max_retry, remedy="Pass e.g. 3.")
    if max_retry < 0:
        raise RangeError("max_retry", str(max_retry), ">= 0", "Pass 0 for one call and no other.")
    fault = ""
    for _ in range(1 + max_retry):
        result = fused_linear_online_max_sum(x, weight)
        _finish(result.device)
        found = _fault(x, weight, result)
        if found is None:
            return result
        fault = found
    raise AccuracyError(
        "softmax of fused_linear_online_max_sum",
        seen=f"{fault}, after {1 + max_retry} calls",
        allowed="rows of probabilities which sum to 1",
        remedy="Save the operands; `steadysum check` says how often the operator deviates on this machine.",
    )


def _finish(device: torch.device) -> None:
    if device.type != "cpu":
        torch.get_device_module(device).synchronize(device)


def _fault(x: Tensor, weight: Tensor, result: Tensor) -> str | None:
    """What is wrong with a softmax [..., out], or None."""
    p = result.detach().reshape(-1, result.shape[-1])
    unit = torch.finfo(p.dtype).eps / 2
    allowed = rounding_bound(p.shape[1]) * unit
    total = p.sum(dim=1, dtype=torch.float64)
    is_nan = p.isnan()
    empty = is_nan.all(dim=1)
    wrong = {
        "a probability below 0": (p < 0).any(dim=1),
        "a probability above 1": (p > 1 + allowed).any(dim=1),
        "a NaN beside numbers": is_nan.any(dim=1) & ~empty,
        f"a sum that differs from 1 by more than {allowed:.2g}": ~empty & ((total - 1).abs() > allowed),
        "NaN, where its logits have a softmax": empty & _have_softmax(x, weight, empty),
    }
    for what, rows in wrong.items():
        count = int(rows.sum())
        if count:
            first = int(rows.nonzero()[0])
            return f"{count} of {p.shape[0]} rows with {what} (row {first}: sum {float(total[first]):.9g})"
    return None


CHECKED_ROWS: Final = 256  # at a time, so that rows of NaN don't need all logits at once


def _have_softmax(x: Tensor, weight: Tensor, rows: Tensor) -> Tensor:
    """Of the rows marked, those whose logits have a softmax: none of them NaN or +inf, not all -inf."""
    x, weight = x.detach().reshape(math.prod(x.shape[:-1]), x.shape[-1]), weight.detach()  # in may be 0
    most = torch.finfo(statistics_dtype(x.dtype)).max
    found = torch.zeros_like(rows)
    marked = rows.nonzero()[:, 0]
    for start in range(0, len(marked), CHECKED_ROWS):
        part = marked[start : start + CHECKED_ROWS]
        wide = x[part].double(), weight.double()
        z = wide[0] @ wide[1]
        largest = wide[0].abs() @ wide[1].abs()  # no sum on the way to a logit is larger
        may_overflow = (largest >= most) & largest.isfinite()
        none = (z.isnan() | (z == torch.inf) | may_overflow).any(dim=1) | (z == -torch.inf).all(dim=1)
        found[part] = ~none
    return found
