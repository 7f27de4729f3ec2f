"""fused_cross_entropy_loss_with_max_sum: from statistics of the whole vocabulary to losses, the vendor's signature.

Not here: the statistics (online_max_sum.py), or their gradients (loss_with_max_sum_backward.py).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from steadysum import _library
from steadysum.errors import DtypeError, OptionError, ShapeError
from steadysum.kernels.problem import FLOATS, Problem, Statistics, statistics_dtype
from steadysum.kernels.registry import select
from steadysum.ops.arguments import check_devices, check_storage
from steadysum.ops.derivative import nan_where_infinite_max
from steadysum.ops.kernel_choice import accept_kernel
from steadysum.ops.vendor_arguments import (
    accept_label_smoothing,
    accept_tensors,
    check_label_smoothing,
    check_rows,
)

__all__ = ["LossWithMaxSum", "fused_cross_entropy_loss_with_max_sum"]


class LossWithMaxSum(NamedTuple):
    """The vendor's two results."""

    loss: Tensor  # [BT]
    softmax: Tensor | None  # [BT, V]


def fused_cross_entropy_loss_with_max_sum(
    logits_max: Tensor,  # [BT]
    sum_exp_logits: Tensor,  # [BT]
    predicted_logits: Tensor,  # [BT]
    *,
    label_smoothing: float | None = 0.0,
    input: Tensor | None = None,
    weight: Tensor | None = None,
    vocab_parallel_logits: Tensor | None = None,  # [BT, V]
    kernel: str = "auto",
    verify: str = "off",
) -> LossWithMaxSum:
    """The cross-entropy of each row, log(sum_exp_logits) - predicted_logits, and the softmax of stored logits.

    The vendor's npu_fused_cross_entropy_loss_with_max_sum, on any device. With several cards, maximum, sum and
    predicted_logits must be those of the whole vocabulary: each card's are relative to its own maximum.

    Args:
        logits_max, sum_exp_logits, predicted_logits: [BT], fp32 (or all fp64).
        label_smoothing: 0.0 or None; input, weight: None. The vendor's operator has them, and allows nothing else.
        vocab_parallel_logits: [BT, V], this card's logits, any floating dtype.
        kernel: "auto" or the name of the kernel whose logarithm is used; see steadysum.kernels.
        verify: "sampled": all logarithms are computed once more, in float64. There is no product here for "checksum" to
            look at, and the softmax isn't verified.

    Returns:
        (loss, softmax): loss [BT], fp32 (fp64 for fp64 statistics); softmax [BT, V], in the same dtype,
        exp(logit - logits_max) / sum_exp_logits, or None without logits. As in torch, a row whose maximum is infinite
        is NaN, in both, wherever its target is.

    Raises:
        OperandTypeError, ShapeError, DtypeError, DeviceError, LayoutError: tensors that don't fit each other.
        OptionError: label_smoothing, input or weight.
        UnknownKernelError, KernelUnavailableError: the named kernel doesn't exist, or can't run here, or not in fp64.
        AccuracyError: as in linear_max_sum, only with verify.

    Results have no gradients, as on the chip. Tensors that require grad are taken as if detached.

    Source: torch_npu's operator of this name.

    >>> fused_cross_entropy_loss_with_max_sum(torch.tensor([5.0]), torch.tensor([4.0]), torch.tensor([0.0]))
    LossWithMaxSum(loss=tensor([1.3863]), softmax=None)
    """
    statistics = {"logits_max": logits_max, "sum_exp_logits": sum_exp_logits, "predicted_logits": predicted_logits}
    accept_tensors(dict(statistics), {"input": input, "weight": weight, "vocab_parallel_logits": vocab_parallel_logits})
    accept_label_smoothing(label_smoothing)
    kernel = accept_kernel(kernel, verify)
    return LossWithMaxSum(
        *torch.ops.steadysum.npu_fused_cross_entropy_loss_with_max_sum(
            logits_max.detach(),
            sum_exp_logits.detach(),
            predicted_logits.detach(),
            input=input,
            weight=weight,
            vocab_parallel_logits=None if vocab_parallel_logits is None else vocab_parallel_logits.detach(),
            kernel_name=kernel,
        )
    )


def _loss_with_max_sum(*values: object) -> tuple[Tensor, Tensor | None]:
    logits_max, sum_exp, predicted, logits, kernel = _checked(*values)
    # Of the operands it is only known what statistics they have. Those in fp32 may be of 16-bit operands, which every
    # kernel but float64's takes; which one runs them decides whose logarithm this is.
    dtype = torch.float64 if logits_max.dtype == torch.float64 else torch.bfloat16
    problem = Problem(rows=logits_max.shape[0], hidden=1, vocab=1, dtype=dtype, device=logits_max.device)
    log_sum = select(problem, kernel).log(sum_exp.contiguous())
    loss = nan_where_infinite_max(log_sum - predicted, Statistics(logits_max, sum_exp))
    return loss.contiguous(), None if logits is None else _softmax(logits, logits_max, sum_exp)


def _softmax(logits: Tensor, logits_max: Tensor, sum_exp: Tensor) -> Tensor:
    """Formed in the result itself: no other memory that grows with it."""
    result = torch.empty(logits.shape, dtype=sum_exp.dtype, device=logits.device).copy_(logits)
    total = sum_exp.masked_fill(logits_max == torch.inf, torch.nan)
    return result.sub_(logits_max[:, None]).exp_().div_(total[:, None])


def _checked(*values: object) -> tuple[Tensor, Tensor, Tensor, Tensor | None, str]:
    logits_max, sum_exp, predicted, label_smoothing, input, weight, logits, kernel = values
    assert isinstance(logits_max, Tensor)  # the dispatcher has checked all types against the schema
    assert isinstance(sum_exp, Tensor)
    assert isinstance(predicted, Tensor)
    assert logits is None or isinstance(logits, Tensor)
    check_label_smoothing(label_smoothing)
    for name, value in (("input", input), ("weight", weight)):
        if value is not None:
            raise OptionError(
                name, "a tensor", "None, as in the vendor's operator", "The loss needs no more than the statistics."
            )
    if logits_max.dim() != 1:
        allowed = "[BT], rank 1"
        raise ShapeError("rank of logits_max", str(list(logits_max.shape)), allowed, "Flatten it with .reshape(-1).")
    dtype = statistics_dtype(logits_max.dtype)
    statistics = {"logits_max": logits_max, "sum_exp_logits": sum_exp, "predicted_logits": predicted}
    check_rows(statistics, logits_max.shape[0], (dtype,), beside="logits_max")
    if logits is not None:
        check_storage("vocab_parallel_logits", logits)
        if logits.dim() != 2 or logits.shape[0] != logits_max.shape[0]:
            raise ShapeError(
                "shape of vocab_parallel_logits",
                seen=str(list(logits.shape)),
                allowed=f"[{logits_max.shape[0]}, V], one row per row of logits_max",
                remedy="Pass what fused_linear_online_max_sum returned with return_logits=True.",
            )
        if logits.dtype not in FLOATS:
            allowed = ", ".join(map(str, FLOATS))
            raise DtypeError("dtype of vocab_parallel_logits", str(logits.dtype), allowed, "Convert it with .to(...).")
        check_devices({"logits_max": logits_max.device, "vocab_parallel_logits": logits.device})
    return logits_max, sum_exp, predicted, logits, kernel  # type: ignore[return-value]


def _fake(*values: object) -> tuple[Tensor, Tensor | None]:
    logits_max, _, _, logits, _ = _checked(*values)
    return (
        logits_max.new_empty(logits_max.shape[0]),
        None if logits is None else logits.new_empty(logits.shape, dtype=logits_max.dtype),
    )


# softmax is None without logits, though the schema, the vendor's, says Tensor: see online_max_sum.py.
_library.register(
    "npu_fused_cross_entropy_loss_with_max_sum(Tensor logits_max, Tensor sum_exp_logits, Tensor predicted_logits, *, "
    "float? label_smoothing=0.0, Tensor? input=None, Tensor? weight=None, Tensor? vocab_parallel_logits=None, "
    'str kernel_name="auto") -> (Tensor loss, Tensor softmax)',
    _loss_with_max_sum,
    _fake,
)
