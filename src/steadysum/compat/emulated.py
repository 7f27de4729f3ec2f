"""The active emulated device: while there is one, the vendor's operators of compat.torch_npu run on it.

So a script that was written for the chip meets the chip's faults, unedited, inside of `active(device)`. Nothing is
active by itself: which device is meant is said, and not guessed from those that are alive. It holds for this thread
alone. Not here: the device (steadysum.cores).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from steadysum.errors import GradientError, OperandTypeError, OptionError
from steadysum.ops.vendor_arguments import accept_tensors

if TYPE_CHECKING:
    from steadysum.cores.device import Device
    from steadysum.ops.online_max_sum import OnlineMaxSum

__all__ = ["active", "current"]

NONE_ACTIVE = "no emulated device is active: see steadysum.compat.emulated.active"


class _Stack(threading.local):
    """Of each thread: the devices that are active, the innermost last."""

    def __init__(self) -> None:
        self.devices: list[Device] = []


_stack = _Stack()


@contextmanager
def active(device: Device) -> Iterator[Device]:
    """Inside, in this thread, compat.torch_npu's operators run on the device, and its tools act on it.

    Args:
        device: a steadysum.cores.device.Device.

    Raises:
        OperandTypeError: anything else.

    >>> from steadysum.compat import torch_npu
    >>> from steadysum.cores.device import Device
    >>> with active(Device(cores=2)) as device:
    ...     p = torch_npu.fused_linear_online_max_sum(torch.ones(1, 2), torch.zeros(2, 4))
    >>> p, device.calls
    (tensor([[0.2500, 0.2500, 0.2500, 0.2500]]), 1)
    """
    from steadysum.cores.device import Device

    if not isinstance(device, Device):
        raise OperandTypeError(
            "type of device", type(device).__name__, "steadysum.cores.device.Device", "For example Device(cores=24)."
        )
    _stack.devices.append(device)
    try:
        yield device
    finally:
        _stack.devices.remove(device)


def current() -> Device | None:
    """The active device of this thread, the innermost; None: none is. Compiled code never runs on one."""
    if torch.compiler.is_compiling() or not _stack.devices:
        return None
    return _stack.devices[-1]


# ---- the operators on it -------------------------------------------------------------------------------------------


def max_sum_on(
    device: Device,
    input: Tensor,  # [BT, H]
    weight: Tensor,  # [V, H]
    target: Tensor,  # [BT]
    vocab_start_index: int,
    vocab_end_index: int,
    return_logits: bool,
    options: dict[str, object],
) -> OnlineMaxSum:
    """The vendor's form. Raises OptionError for options that only kernels have; else what the device raises."""
    accept_tensors({"input": input, "weight": weight, "target": target})
    _refuse_options(options)
    return device.fused_linear_online_max_sum(
        input.detach(), weight.detach(), target, vocab_start_index, vocab_end_index, return_logits
    )


def softmax_on(
    device: Device,
    x: Tensor,  # [..., in]
    weight: Tensor,  # [in, out]
    options: dict[str, object],
) -> Tensor:  # [..., out], fp32
    """The report's form: exp(logit - max) / sum, all three as the device leaves them. Raises as max_sum_on.

    Also GradientError: gradients are wanted.
    """
    _refuse_options(options)
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        raise GradientError(
            "gradients of fused_linear_online_max_sum(x, weight)",
            seen="operands that require grad, on an emulated device",
            allowed="results without gradients",
            remedy="Call it under torch.no_grad(), or outside of emulated.active.",
        )
    wide = torch.float32 if x.dtype in (torch.bfloat16, torch.float16) else x.dtype  # logits in 16 bits were rounded
    rows = x.detach().reshape(x.shape[:-1].numel(), x.shape[-1]).to(wide)
    nowhere = torch.full(rows.shape[:1], -1, dtype=torch.int64)
    found = device.fused_linear_online_max_sum(rows, weight.detach().T.to(wide), nowhere, 0, weight.shape[1], True)
    assert found.vocab_parallel_logits is not None
    softmax = (found.vocab_parallel_logits - found.logits_max[:, None]).exp() / found.sum_exp_logits[:, None]
    return softmax.reshape(*x.shape[:-1], weight.shape[1])


def _refuse_options(options: dict[str, object]) -> None:
    defaults = {"round_logits": False, "vocab_size": None, "kernel": "auto", "verify": "off"}
    given = [f"{name}={value!r}" for name, value in options.items() if value != defaults[name]]
    if given:
        raise OptionError(
            "options of fused_linear_online_max_sum on an emulated device",
            seen=", ".join(given),
            allowed="none: a device has settings of its own, such as logits_dtype and allreduce_policy",
            remedy="Set them where the device is made, or call outside of emulated.active.",
        )
