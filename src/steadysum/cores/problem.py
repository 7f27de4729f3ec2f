"""The vendor operator's arguments, checked, as the device takes them: on the CPU, in fp32.

Not here: how it is cut (grid.py) and computed (job.py and the programs).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steadysum.errors import DeviceError, DtypeError, RangeError, TargetRangeError
from steadysum.ops.arguments import check_target
from steadysum.ops.vendor_arguments import accept_bool, accept_int, accept_tensors, check_matrices, check_shard
from steadysum.sync.memory import LINE

__all__ = ["Problem", "problem_of"]


class Problem(NamedTuple):
    """One call's operands."""

    input: Tensor  # [N, H], fp32
    weight: Tensor  # [V, H], fp32
    target: NDArray[np.int64]  # [N], column in this weight where it isn't masked
    masked: NDArray[np.bool_]  # [N]
    target_dtype: np.dtype[Any]
    pad: int  # bits of target_mask beyond the last row
    return_logits: bool
    dtype: torch.dtype  # of the operands


def problem_of(input: Tensor, weight: Tensor, target: Tensor, start: int, end: int, return_logits: bool) -> Problem:
    """Checks the arguments of fused_linear_online_max_sum, and brings the operands to the device.

    Raises:
        OperandTypeError, ShapeError, DtypeError, DeviceError, LayoutError, RangeError, TargetRangeError: arguments that
            don't fit.
    """
    accept_tensors({"input": input, "weight": weight, "target": target})
    start, end = accept_int("vocab_start_index", start), accept_int("vocab_end_index", end)
    accept_bool("return_logits", return_logits)
    arguments = check_matrices(input, weight, "auto")
    check_target(arguments, target)
    check_shard(start, weight.shape[0], None)
    _check_place(input)
    if end < start:
        raise RangeError("vocab_end_index", f"{end}", f">= {start}, the id after the last", "It is exclusive.")
    ids = target.detach().to(torch.int64).numpy()
    masked = (ids < start) | (ids >= end)
    column = np.where(masked, 0, ids - start)
    beyond = np.flatnonzero(column >= weight.shape[0])
    if beyond.size:
        raise TargetRangeError(
            "target",
            seen=f"{ids[beyond[0]]} at position [{beyond[0]}]",
            allowed=f"at most {start + weight.shape[0] - 1} of those below vocab_end_index {end}",
            remedy="Pass vocab_end_index = vocab_start_index + rows of weight.",
        )
    return Problem(
        _on_device(input),
        _on_device(weight),
        column,
        masked,
        np.dtype(np.int32 if target.dtype == torch.int32 else np.int64),
        int(start > 0),
        return_logits,
        input.dtype,
    )


def _check_place(input: Tensor) -> None:
    if input.device.type != "cpu":
        raise DeviceError(
            "device of input", str(input.device), "cpu: the device is emulated there", "Move the operands with .cpu()."
        )
    if input.dtype == torch.float64:
        raise DtypeError(
            "dtype of input", "torch.float64", "torch.float32, torch.bfloat16, torch.float16", "Use .float()."
        )


def _on_device(operand: Tensor) -> Tensor:
    """The operand in fp32 on whole lines: a product's bits may depend on how its operands are aligned."""
    found = operand.detach().to(torch.float32).contiguous()
    return found.clone() if found.data_ptr() % LINE else found
