"""fused_linear_cross_entropy_loss_with_max_sum_backward: the gradients of input and weight, the vendor's signature.

Not here: the loss (loss_with_max_sum.py), or the sum of the cards' input gradients, which is the caller's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

import torch
from torch import Tensor

from steadysum import _library
from steadysum.errors import DtypeError, OperandTypeError, OptionError, ShapeError, TargetRangeError
from steadysum.kernels.chunks import BLOCK_ROWS
from steadysum.kernels.gradients import Gradients, LogitGradient, Wanted
from steadysum.kernels.problem import FLOATS, SIXTEEN_BIT, Operands, Statistics, statistics_dtype
from steadysum.kernels.registry import Kernel, select
from steadysum.kernels.target_mask import unpack_mask
from steadysum.ops.arguments import TARGET_DTYPES, Arguments, check_devices, check_storage, first_bad, operands, rows
from steadysum.ops.derivative import nan_where_infinite_max
from steadysum.ops.kernel_choice import accept_kernel
from steadysum.ops.rounded_logits import round_in_place
from steadysum.ops.vendor_arguments import (
    accept_bool,
    accept_int,
    accept_label_smoothing,
    accept_tensors,
    check_label_smoothing,
    check_mask,
    check_matrices,
    check_rows,
    check_shard,
)
from steadysum.tiling import Shard

__all__ = ["fused_linear_cross_entropy_loss_with_max_sum_backward"]


def fused_linear_cross_entropy_loss_with_max_sum_backward(
    grad: Tensor,  # [BT]
    input: Tensor,  # [BT, H]
    weight: Tensor,  # [V, H]
    target_mask: Tensor,  # [(BT + 7) // 8]
    masked_target: Tensor,  # [BT]
    label_smoothing: float | None = 0.0,
    logits_max: Tensor | None = None,  # [BT]
    sum_exp_logits: Tensor | None = None,  # [BT]
    softmax: Tensor | None = None,  # [BT, V]
    *,
    vocab_start_index: int = 0,
    vocab_size: int | None = None,
    grad_dtype: torch.dtype | None = None,
    round_logits: bool = False,
    kernel: str = "auto",
    verify: str = "off",
) -> tuple[Tensor, Tensor]:
    """What this card's share of the vocabulary gives to the gradients of a cross-entropy's input and weight.

    The vendor's npu_fused_linear_cross_entropy_loss_with_max_sum_backward, on any device; its limit V >= 128 isn't
    ours. With P the softmax, given or computed once more from logits_max and sum_exp_logits, the gradient of the logits
    G is P, less 1 at each unmasked row's masked_target, times grad; input_grad = G W and weight_grad = G^T X. All of it
    is formed and summed in fp32 (fp64 for fp64 operands) and rounded once.

    Args:
        grad: [BT], the gradient of each row's loss, any floating dtype.
        input, weight: [BT, H] and [V, H], as in fused_linear_online_max_sum.
        target_mask, masked_target: what that returned; the mask may be longer.
        label_smoothing: 0.0 or None, as in the vendor's operator.
        logits_max, sum_exp_logits: [BT], fp32 (fp64 for fp64 operands), of the whole vocabulary, over all cards.
        softmax: [BT, V], this card's columns, any floating dtype; it goes before logits_max and sum_exp_logits. Not
            faster: the kernel's own products form the gradients, so that what it promises holds, and it computes
            logits in any case.
        vocab_start_index, vocab_size: where the weight lies in the whole vocabulary, as in fused_linear_online_max_sum,
            so that the gradients of equal shards have the bits of the unsharded call. None: the weight is cut by its
            own size.
        grad_dtype: of both results; None: that of input. torch.float32 for input gradients which are then summed over
            cards: rounding each card's first costs accuracy (Megatron-LM issue 2739).
        round_logits: round logits that are computed once more to the dtype of input, as A2 and A3 chips do. For
            comparisons: logits are computed twice, and up to 64 MiB + 1 KiB * V of them and a second weight_grad in
            fp32 are held for it.
        kernel: "auto" or a kernel's name; see steadysum.kernels.
        verify: as in linear_max_sum.

    Returns:
        (input_grad [BT, H], weight_grad [V, H]). As in torch, a row whose maximum is infinite gives NaN.

    Raises:
        OperandTypeError, ShapeError, DtypeError, DeviceError, LayoutError, RangeError: arguments that don't fit.
        OptionError: label_smoothing; neither a softmax, nor both statistics.
        TargetRangeError: the masked_target of an unmasked row isn't a row of weight, with its position.
        UnknownKernelError, KernelUnavailableError: the named kernel doesn't exist, or can't run or verify this call.
        AccuracyError: as in linear_max_sum, only with verify.

    Results have no gradients of their own. Tensors that require grad are taken as if detached.

    Source: torch_npu's operator of this name.

    >>> input, weight = torch.tensor([[1.0]]), torch.tensor([[0.0], [0.0]])  # two equal logits: P = 1/2
    >>> fused_linear_cross_entropy_loss_with_max_sum_backward(
    ...     torch.ones(1), input, weight, torch.zeros(1, dtype=torch.uint8), torch.tensor([1]),
    ...     logits_max=torch.zeros(1), sum_exp_logits=torch.full((1,), 2.0))
    (tensor([[0.]]), tensor([[ 0.5000],
            [-0.5000]]))
    """
    required = {
        "grad": grad,
        "input": input,
        "weight": weight,
        "target_mask": target_mask,
        "masked_target": masked_target,
    }
    optional = {"logits_max": logits_max, "sum_exp_logits": sum_exp_logits, "softmax": softmax}
    accept_tensors(required, optional)
    accept_label_smoothing(label_smoothing)
    vocab_start_index = accept_int("vocab_start_index", vocab_start_index)
    vocab_size = None if vocab_size is None else accept_int("vocab_size", vocab_size, allowed="int or None")
    accept_bool("round_logits", round_logits)
    kernel = accept_kernel(kernel, verify)
    if grad_dtype is not None and not isinstance(grad_dtype, torch.dtype):
        raise OperandTypeError(
            "type of grad_dtype", type(grad_dtype).__name__, "torch.dtype or None", "E.g. torch.float32."
        )
    detached = {name: None if value is None else value.detach() for name, value in {**required, **optional}.items()}
    input_grad, weight_grad = torch.ops.steadysum.npu_fused_linear_cross_entropy_loss_with_max_sum_backward(
        **detached,
        vocab_start_index=vocab_start_index,
        vocab_size=vocab_size,
        grad_dtype=grad_dtype,
        round_logits=round_logits,
        kernel_name=kernel,
    )
    return input_grad, weight_grad


# ---- the operator ------------------------------------------------------------------------------------------------


class _Call(NamedTuple):
    """The operator's arguments, checked."""

    arguments: Arguments
    grad: Tensor  # [BT]
    target_mask: Tensor  # [>= (BT + 7) // 8]
    masked_target: Tensor  # [BT]
    known: Statistics | None
    softmax: Tensor | None  # [BT, V]
    shard: Shard | None
    grad_dtype: torch.dtype
    round_logits: bool


class _Rows(NamedTuple):
    """Per row [BT]."""

    grad: Tensor
    outside: Tensor  # bool

    def of_target(self, start: int, stop: int) -> Tensor:
        """What the logit of each row's target gets beside its part of the softmax: -grad, 0 where it is elsewhere."""
        return (-self.grad[start:stop]).masked_fill_(self.outside[start:stop], 0.0)


_WANTED: Final = Wanted(input=True, weight=True, bias=False)


def _backward(*values: object) -> tuple[Tensor, Tensor]:
    given = _checked(*values)
    outside = unpack_mask(given.target_mask, given.masked_target.shape[0])
    target = given.masked_target.to(torch.int64).masked_fill(outside, 0)
    _refuse_beyond_weight(given, target)
    call = operands(given.arguments, target=target.contiguous(), dense=given.softmax, shard=given.shard)
    rounds = given.known is not None and given.round_logits and call.input.dtype in SIXTEEN_BIT
    kernel = select(call.problem(wants_logits=rounds, wants_gradients=True), given.arguments.kernel)
    per_row = _Rows(rows(given.grad.to(call.dtype)), outside)
    if given.known is None:
        found = _from_softmax(kernel, call, per_row)
    else:
        known = Statistics(*(rows(each) for each in given.known[:2]))
        found = (_from_rounded_logits if rounds else _from_statistics)(kernel, call, per_row, known)
    assert found.input is not None
    assert found.weight is not None
    return found.input.to(given.grad_dtype), found.weight.to(given.grad_dtype)


def _from_statistics(kernel: Kernel, call: Operands, per_row: _Rows, known: Statistics) -> Gradients:
    """As linear_cross_entropy's: the same coefficients, so that shards which are nodes of the fold have its bits."""

    def pull_back(found: Statistics, start: int, stop: int) -> LogitGradient:
        exp = nan_where_infinite_max(per_row.grad[start:stop] / found.sum_exp, found)
        return LogitGradient(exp=exp, target=per_row.of_target(start, stop))

    return kernel.gradients(call, pull_back, _WANTED, known)


def _from_softmax(
    kernel: Kernel,
    call: Operands,  # its dense matrix is the softmax
    per_row: _Rows,
) -> Gradients:
    """By the kernel's own products: it computes the logits once more, for nothing, and what it promises holds."""

    def pull_back(_: Statistics, start: int, stop: int) -> LogitGradient:
        return LogitGradient(dense=per_row.grad[start:stop], target=per_row.of_target(start, stop))

    unread = per_row.grad.new_zeros(call.size)  # no coefficient needs the statistics
    return kernel.gradients(call, pull_back, _WANTED, Statistics(unread, unread))


def _from_rounded_logits(kernel: Kernel, call: Operands, per_row: _Rows, known: Statistics) -> Gradients:
    """From the softmax of some rows at a time. How many doesn't depend on any size, so that no bit does."""
    of_input = call.input.new_empty(call.input.shape, dtype=call.dtype)
    of_weight = call.input.new_zeros(call.weight.shape, dtype=call.dtype)
    total = nan_where_infinite_max(known.sum_exp, known)[:, None]
    for start in range(0, call.size, BLOCK_ROWS):
        stop = min(start + BLOCK_ROWS, call.size)
        chunk = call.rows(start, stop)
        p = call.input.new_empty((stop - start, call.weight.shape[0]), dtype=call.dtype)
        kernel.logits(chunk, p)
        round_in_place(chunk, p).sub_(known.max[start:stop, None]).exp_().div_(total[start:stop])
        part = _from_softmax(kernel, replace(chunk, dense=p), _Rows(*(each[start:stop] for each in per_row)))
        assert part.input is not None
        assert part.weight is not None
        of_input[start:stop] = part.input
        of_weight += part.weight
    return Gradients(of_input, of_weight, None)


# ---- checks ------------------------------------------------------------------------------------------------------


def _checked(*values: object) -> _Call:
    grad, input, weight, target_mask, masked_target, label_smoothing, *rest = values
    logits_max, sum_exp, softmax, start, vocab_size, grad_dtype, round_logits, kernel = rest
    assert isinstance(grad, Tensor)  # the dispatcher has checked all types against the schema
    assert isinstance(target_mask, Tensor)
    assert isinstance(masked_target, Tensor)
    arguments = check_matrices(input, weight, kernel)  # type: ignore[arg-type]
    input, weight = arguments.input, arguments.weight
    size = input.shape[0]
    check_label_smoothing(label_smoothing)
    check_rows({"grad": grad}, size)
    check_rows({"masked_target": masked_target}, size, TARGET_DTYPES)
    check_mask(target_mask, size)
    devices = {"input": input, "grad": grad, "target_mask": target_mask, "masked_target": masked_target}
    known = None
    if softmax is None:
        if logits_max is None or sum_exp is None:
            given = [
                name for name, each in (("logits_max", logits_max), ("sum_exp_logits", sum_exp)) if each is not None
            ]
            raise OptionError(
                "logits_max, sum_exp_logits and softmax",
                seen=f"{given[0]} alone" if given else "none of them",
                allowed="softmax, or both logits_max and sum_exp_logits",
                remedy="Pass what the forward operators returned, over all cards.",
            )
        assert isinstance(logits_max, Tensor)
        assert isinstance(sum_exp, Tensor)
        statistics = {"logits_max": logits_max, "sum_exp_logits": sum_exp}
        check_rows(statistics, size, (statistics_dtype(input.dtype),))
        devices.update(statistics)
        known = Statistics(logits_max, sum_exp)
    else:
        assert isinstance(softmax, Tensor)
        _check_softmax(softmax, size, weight.shape[0])
        devices["softmax"] = softmax
    check_devices({name: tensor.device for name, tensor in devices.items()})
    if grad_dtype is not None and grad_dtype not in FLOATS:
        allowed = f"{', '.join(map(str, FLOATS))}, or None"
        raise DtypeError("grad_dtype", str(grad_dtype), allowed, "Pass torch.float32 for gradients to be summed.")
    return _Call(
        arguments,
        grad,
        target_mask,
        masked_target,
        known,
        softmax,
        check_shard(start, weight.shape[0], vocab_size),  # type: ignore[arg-type]
        input.dtype if grad_dtype is None else grad_dtype,
        round_logits,  # type: ignore[arg-type]
    )


def _check_softmax(softmax: Tensor, size: int, vocab: int) -> None:
    check_storage("softmax", softmax)
    if softmax.shape != (size, vocab):
        raise ShapeError(
            "shape of softmax",
            seen=str(list(softmax.shape)),
            allowed=f"[{size}, {vocab}], rows of input, rows of weight",
            remedy="Pass what fused_cross_entropy_loss_with_max_sum returned.",
        )
    if softmax.dtype not in FLOATS:
        raise DtypeError("dtype of softmax", str(softmax.dtype), ", ".join(map(str, FLOATS)), "Pass fp32.")


def _refuse_beyond_weight(given: _Call, target: Tensor) -> None:
    vocab = given.arguments.weight.shape[0]
    position = first_bad((target >= 0) & (target < vocab), "masked_target out of range")
    if position is not None:
        raise TargetRangeError(
            "masked_target",
            seen=f"{given.masked_target[position].item()} at position {list(position)}",
            allowed=f"0 to {vocab - 1}, the rows of weight, where target_mask is 0",
            remedy="Pass what fused_linear_online_max_sum returned.",
        )


def _fake(*values: object) -> tuple[Tensor, Tensor]:
    given = _checked(*values)
    input, weight = given.arguments.input, given.arguments.weight
    return (
        input.new_empty(input.shape, dtype=given.grad_dtype),
        weight.new_empty(weight.shape, dtype=given.grad_dtype),
    )


PARAMETERS: Final = (
    "Tensor grad, Tensor input, Tensor weight, Tensor target_mask, Tensor masked_target, float label_smoothing=0.0, "
    "Tensor? logits_max=None, Tensor? sum_exp_logits=None, Tensor? softmax=None, "
    "*, int vocab_start_index=0, int? vocab_size=None, ScalarType? grad_dtype=None, bool round_logits=False, "
    'str kernel_name="auto"'
)
_library.register(
    f"npu_fused_linear_cross_entropy_loss_with_max_sum_backward({PARAMETERS}) -> "
    "(Tensor input_grad, Tensor weight_grad)",
    _backward,
    _fake,
)
