"""The vendor's fused loss operators, in every spelling that releases of its package have had.

They are those of steadysum.ops, or of the emulated device that is active (compat/emulated.py); beside the vendor's form
of the first one there is the field report's, which gives a softmax. Not here: what they compute.
"""

from __future__ import annotations

from typing import overload

from torch import Tensor

from steadysum.compat import emulated
from steadysum.errors import OperandTypeError, ShapeError
from steadysum.ops import online_max_sum
from steadysum.ops.arguments import accept_tensor
from steadysum.ops.loss_with_max_sum import fused_cross_entropy_loss_with_max_sum
from steadysum.ops.loss_with_max_sum_backward import fused_linear_cross_entropy_loss_with_max_sum_backward
from steadysum.ops.online_max_sum import OnlineMaxSum
from steadysum.ops.softmax import linear_softmax

__all__ = [
    "fused_cross_entropy_loss_with_max_sum",
    "fused_linear_cross_entropy_loss_with_max_sum_backward",
    "fused_linear_cross_entropy_loss_with_max_sum_grad",
    "fused_linear_online_max_sum",
    "npu_fused_cross_entropy_loss_with_max_sum",
    "npu_fused_linear_cross_entropy_loss_with_max_sum_backward",
    "npu_fused_linear_cross_entropy_loss_with_max_sum_grad",
    "npu_fused_linear_online_max_sum",
]

npu_fused_cross_entropy_loss_with_max_sum = fused_cross_entropy_loss_with_max_sum
fused_linear_cross_entropy_loss_with_max_sum_grad = fused_linear_cross_entropy_loss_with_max_sum_backward
npu_fused_linear_cross_entropy_loss_with_max_sum_grad = fused_linear_cross_entropy_loss_with_max_sum_backward
npu_fused_linear_cross_entropy_loss_with_max_sum_backward = fused_linear_cross_entropy_loss_with_max_sum_backward


def npu_fused_linear_online_max_sum(
    input: Tensor,  # [BT, H]
    weight: Tensor,  # [V, H]
    target: Tensor,  # [BT]
    vocab_start_index: int,
    vocab_end_index: int,
    return_logits: bool = False,
    *,
    round_logits: bool = False,
    vocab_size: int | None = None,
    kernel: str = "auto",
    verify: str = "off",
) -> OnlineMaxSum:
    """steadysum.ops.fused_linear_online_max_sum, on the emulated device if one is active.

    Args:
        input, weight, target and all others: as there.

    Returns:
        As there.

    Raises:
        OptionError: an option that only kernels have, on an emulated device. Else as there, and as
            cores.device.Device.fused_linear_online_max_sum.

    >>> import torch
    >>> found = npu_fused_linear_online_max_sum(torch.ones(1, 2), torch.ones(3, 2), torch.tensor([1]), 0, 3)
    >>> found.logits_max, found.sum_exp_logits
    (tensor([2.]), tensor([3.]))
    """
    device = emulated.current()
    if device is not None:
        options: dict[str, object] = {
            "round_logits": round_logits,
            "vocab_size": vocab_size,
            "kernel": kernel,
            "verify": verify,
        }
        return emulated.max_sum_on(
            device, input, weight, target, vocab_start_index, vocab_end_index, return_logits, options
        )
    return online_max_sum.fused_linear_online_max_sum(
        input,
        weight,
        target,
        vocab_start_index,
        vocab_end_index,
        return_logits,
        round_logits=round_logits,
        vocab_size=vocab_size,
        kernel=kernel,
        verify=verify,
    )


@overload
def fused_linear_online_max_sum(input: Tensor, weight: Tensor, *, kernel: str = ..., verify: str = ...) -> Tensor: ...


@overload
def fused_linear_online_max_sum(
    input: Tensor,
    weight: Tensor,
    target: Tensor,
    vocab_start_index: int,
    vocab_end_index: int,
    return_logits: bool = ...,
    *,
    round_logits: bool = ...,
    vocab_size: int | None = ...,
    kernel: str = ...,
    verify: str = ...,
) -> OnlineMaxSum: ...


def fused_linear_online_max_sum(
    input: Tensor,
    weight: Tensor,
    target: Tensor | None = None,
    vocab_start_index: int | None = None,
    vocab_end_index: int | None = None,
    return_logits: bool = False,
    *,
    round_logits: bool = False,
    vocab_size: int | None = None,
    kernel: str = "auto",
    verify: str = "off",
) -> Tensor | OnlineMaxSum:
    """The vendor's operator; or, with two arguments, the softmax of a linear layer as the field report writes it.

    Args:
        input, weight: with a target [BT, H] and [V, H], as in steadysum.ops.fused_linear_online_max_sum. Without one
            [..., in] and [in, out]: the report's weight lies the other way round.
        target, vocab_start_index, vocab_end_index: all three, or none.
        return_logits, round_logits, vocab_size: of the vendor's form alone.
        kernel: "auto" or a kernel's name.
        verify: as in linear_max_sum.

    Returns:
        The vendor's results; or the softmax [..., out], fp32 (fp64 for fp64 operands), which has gradients (on an
        emulated device it has none).

    Raises:
        OperandTypeError: some of target, vocab_start_index and vocab_end_index, or an option of the vendor's form
            without them. Else what the two forms raise.

    >>> import torch
    >>> fused_linear_online_max_sum(torch.ones(1, 2), torch.zeros(2, 4))
    tensor([[0.2500, 0.2500, 0.2500, 0.2500]])
    """
    if target is not None and vocab_start_index is not None and vocab_end_index is not None:
        return npu_fused_linear_online_max_sum(
            input,
            weight,
            target,
            vocab_start_index,
            vocab_end_index,
            return_logits,
            round_logits=round_logits,
            vocab_size=vocab_size,
            kernel=kernel,
            verify=verify,
        )
    given = {
        "target": target is not None,
        "vocab_start_index": vocab_start_index is not None,
        "vocab_end_index": vocab_end_index is not None,
        "return_logits": return_logits is not False,
        "round_logits": round_logits is not False,
        "vocab_size": vocab_size is not None,
    }
    present = [name for name, is_given in given.items() if is_given]
    if present:
        raise OperandTypeError(
            "arguments of fused_linear_online_max_sum",
            seen=f"input, weight, {', '.join(present)}",
            allowed="input, weight, target, vocab_start_index and vocab_end_index; or x and weight [in, out] alone",
            remedy="Pass all five for the vendor's statistics, or two for the softmax.",
        )
    _check_report_weight(input, weight)
    device = emulated.current()
    if device is not None:
        return emulated.softmax_on(device, input, weight, {"kernel": kernel, "verify": verify})
    return linear_softmax(input, weight.T, kernel=kernel, verify=verify)


def _check_report_weight(x: Tensor, weight: Tensor) -> None:
    """The operator's own check would speak of the transposed weight."""
    accept_tensor("x", x)
    accept_tensor("weight", weight)
    if weight.dim() != 2 or x.dim() < 1 or x.shape[-1] != weight.shape[0]:
        raise ShapeError(
            "x and weight of fused_linear_online_max_sum(x, weight)",
            seen=f"x {list(x.shape)}, weight {list(weight.shape)}",
            allowed="x [..., in], weight [in, out]",
            remedy="A weight laid out [out, in] is passed as weight.T. For statistics pass a target, too.",
        )
