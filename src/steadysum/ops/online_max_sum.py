"""fused_linear_online_max_sum: the statistics of one card's share of the vocabulary, with the vendor's signature.

Where the vendor's documents and its kernel disagree we do as the kernel does; docs/torch-npu.md lists each case.
Not here: the loss (loss_with_max_sum.py), its gradients (loss_with_max_sum_backward.py), what happens between cards.
"""

from __future__ import annotations

import sys
import warnings
from typing import Final, NamedTuple

import torch
from torch import Tensor

from steadysum import _library
from steadysum.errors import RangeError, TargetRangeError
from steadysum.kernels.chunks import room_for_logits, row_chunks
from steadysum.kernels.problem import SIXTEEN_BIT, Operands, Statistics, statistics_dtype
from steadysum.kernels.registry import Kernel, select
from steadysum.kernels.target_mask import mask_bytes, pack_mask
from steadysum.ops.arguments import Arguments, check_target, column, first_bad, operands
from steadysum.ops.kernel_choice import accept_kernel
from steadysum.ops.rounded_logits import rounded_statistics
from steadysum.ops.vendor_arguments import (
    accept_bool,
    accept_int,
    accept_tensors,
    check_matrices,
    check_shard,
)
from steadysum.tiling import Shard

__all__ = ["OnlineMaxSum", "fused_linear_online_max_sum"]


class _SixResults(NamedTuple):
    logits_max: Tensor  # [BT]
    sum_exp_logits: Tensor  # [BT]
    predicted_logits: Tensor  # [BT]
    target_mask: Tensor  # [(BT + 7) // 8], uint8
    masked_target: Tensor  # [BT], dtype of target
    vocab_parallel_logits: Tensor | None  # [BT, V], dtype of input


class OnlineMaxSum(_SixResults):
    """The vendor's six results, a tuple, and one attribute beside them, as os.stat_result has some."""

    # [BT], the target's logit itself, 0 where masked. predicted_logits is rounded: moved to the maximum of all cards it
    # would be rounded twice.
    target_logits: Tensor


def fused_linear_online_max_sum(
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
    """Per row the maximum of the logits of this card, the sum of exp(logit - maximum), and where its target is.

    The vendor's npu_fused_linear_online_max_sum, on any device. Beyond its limits: fp32 and fp64 operands are accepted,
    any H and V >= 1, any strides; targets are compared exactly (there in fp32: up to 2^24).

    Args:
        input: [BT, H], fp32, bf16, fp16 or fp64.
        weight: [V, H] in the dtype of input, the rows of the vocabulary on this card.
        target: [BT], int64 or int32, ids in the whole vocabulary; any value.
        vocab_start_index: the id of the first row of weight, >= 0.
        vocab_end_index: the id after the last one (exclusive, as in the vendor's kernel; its document says inclusive).
            Targets outside of [vocab_start_index, vocab_end_index) are masked. One less than the end of weight, which
            a caller passes who counts inclusively, warns once.
        return_logits: also return all logits.
        round_logits: round each logit to the dtype of input before the maximum and the exponential, as A2 and A3 chips
            do; newer ones, and False, keep fp32. For comparisons; up to 64 MiB + 1 KiB * V of logits are held for it.
        vocab_size: the size of the whole vocabulary, over all cards: the weight is cut where that is, so that the
            results of equal shards, folded, have the bits of the unsharded call. None: by the weight's own size.
        kernel: "auto" or a kernel's name; see steadysum.kernels.
        verify: as in linear_max_sum.

    Returns:
        OnlineMaxSum, a tuple of: logits_max, sum_exp_logits, predicted_logits (the target's logit - logits_max; 0
        where masked), each [BT], fp32 (fp64 for fp64 operands); target_mask [(BT + 7) // 8], uint8, bit i of byte k
        is row 8 k + i, 1 = masked, bits beyond the last row are 0 if vocab_start_index is 0, else 1; masked_target
        [BT], dtype of target, target - vocab_start_index, or 0 where masked; vocab_parallel_logits [BT, V], dtype of
        input, or None. Its attribute target_logits [BT] is the target's logit, 0 where masked.

    Raises:
        OperandTypeError, ShapeError, DtypeError, DeviceError, LayoutError, RangeError: arguments that don't fit.
        TargetRangeError: a target in the range of ids, but beyond the weight, with its position.
        UnknownKernelError, KernelUnavailableError: the named kernel doesn't exist, or can't run or verify this call.
        AccuracyError: as in linear_max_sum, only with verify.

    Results have no gradients, as on the chip: operands that require grad are taken as if detached.
    fused_linear_cross_entropy_loss_with_max_sum_backward forms the gradients.

    Source: torch_npu's operator of this name; Milakov and Gimelshein, "Online normalizer calculation for softmax",
    arXiv 1805.02867.

    >>> input, weight = torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0], [1.0], [0.0]])
    >>> result = fused_linear_online_max_sum(input, weight, torch.tensor([12, 7]), 10, 13)
    >>> result.logits_max, result.predicted_logits, result.target_mask  # the second target is on another card
    (tensor([1., 2.]), tensor([-1.,  0.]), tensor([254], dtype=torch.uint8))
    """
    accept_tensors({"input": input, "weight": weight, "target": target})
    vocab_start_index = accept_int("vocab_start_index", vocab_start_index)
    vocab_end_index = accept_int("vocab_end_index", vocab_end_index)
    accept_bool("return_logits", return_logits)
    accept_bool("round_logits", round_logits)
    vocab_size = None if vocab_size is None else accept_int("vocab_size", vocab_size, allowed="int or None")
    kernel = accept_kernel(kernel, verify)
    *six, target_logits = torch.ops.steadysum.shard_max_sum(
        input.detach(),
        weight.detach(),
        target,
        vocab_start_index,
        vocab_end_index,
        return_logits,
        round_logits=round_logits,
        vocab_size=vocab_size,
        kernel_name=kernel,
    )
    result = OnlineMaxSum(*six)
    result.target_logits = target_logits
    return result


# ---- the operator ------------------------------------------------------------------------------------------------


class _Call(NamedTuple):
    """The operator's arguments, checked."""

    arguments: Arguments
    target: Tensor  # [BT]
    start: int
    end: int
    return_logits: bool
    round_logits: bool
    shard: Shard | None


def _shard_max_sum(*values: object) -> tuple[Tensor | None, ...]:
    given = _checked(*values)
    arguments, start = given.arguments, given.start
    _warn_of_inclusive_end(given)
    ids = given.target.to(torch.int64)
    outside = (ids < start) | (ids >= given.end)
    local = (ids - start).masked_fill_(outside, 0)
    _refuse_beyond_weight(given, local)
    call = operands(arguments, target=local.contiguous(), shard=given.shard)
    found, logits = _statistics(given, call)
    assert found.target_logit is not None
    predicted = (found.target_logit - found.max).masked_fill_(outside, 0.0)
    return (
        column(arguments, found.max),
        column(arguments, found.sum_exp),
        column(arguments, predicted),
        pack_mask(outside, pad=int(start > 0)),
        local.to(given.target.dtype).contiguous(),
        logits,
        column(arguments, found.target_logit.masked_fill(outside, 0.0)),
    )


def _statistics(given: _Call, call: Operands) -> tuple[Statistics, Tensor | None]:
    """The statistics, and the logits [BT, V] where they are to be returned."""
    rows, vocab = call.size, call.weight.shape[0]
    round_logits = given.round_logits and call.input.dtype in SIXTEEN_BIT and rows > 0
    kernel = select(call.problem(wants_logits=given.return_logits or round_logits), given.arguments.kernel)
    logits = call.input.new_empty((rows, vocab)) if given.return_logits else None
    if logits is not None and logits.dtype == call.dtype:
        return kernel.logits(call, logits), logits
    if round_logits or (logits is not None and rows > 0):
        return _by_chunks(kernel, call, logits, round_logits=round_logits), logits
    (found,) = kernel.statistics([call])
    return found, logits


def _by_chunks(kernel: Kernel, call: Operands, narrow: Tensor | None, *, round_logits: bool) -> Statistics:
    """The statistics, some rows at a time, from logits of which a rounded copy is kept if `narrow` is there."""
    chunks = list(row_chunks(call, stored=True))
    room = room_for_logits(call, chunks)
    parts = []
    for start, stop in chunks:
        chunk, wide = call.rows(start, stop), room[: stop - start]
        found = kernel.logits(chunk, wide)
        if narrow is not None:
            narrow[start:stop] = wide
        if round_logits:
            found = rounded_statistics(chunk, wide)
        parts.append(found)
    columns = [None if each[0] is None else torch.cat(each) for each in zip(*parts, strict=True)]
    return Statistics(*columns)  # type: ignore[arg-type]  # max and sum_exp are always there


def _refuse_beyond_weight(given: _Call, local: Tensor) -> None:
    """A range of ids may end beyond the weight, but no target may be there: there is no such logit."""
    vocab = given.arguments.weight.shape[0]
    if given.end - given.start <= vocab:
        return
    position = first_bad(local < vocab, "target beyond the rows of weight")
    if position is not None:
        raise TargetRangeError(
            "target",
            seen=f"{given.target[position].item()} at position {list(position)}",
            allowed=f"at most {given.start + vocab - 1} of those below vocab_end_index {given.end}, "
            f"for weight has {vocab} rows, from id {given.start}",
            remedy="Pass vocab_end_index = vocab_start_index + rows of weight.",
        )


_has_warned = False


def _warn_of_inclusive_end(given: _Call) -> None:
    """Warn of the end that a caller passes who counts it in; once in a process."""
    global _has_warned
    vocab = given.arguments.weight.shape[0]
    if _has_warned or given.end - given.start != vocab - 1:
        return
    _has_warned = True
    warnings.warn(
        f"vocab_end_index: got {given.end}, one less than vocab_start_index + rows of weight = {given.start + vocab}. "
        f"It is exclusive, as in the vendor's kernel (its document says inclusive): targets equal to {given.end} are "
        "masked. Pass the id after the last one, unless that is meant. This is said once.",
        UserWarning,
        stacklevel=_frames_to_caller(),
    )


def _frames_to_caller() -> int:
    """How many frames up the code is that called the package, or torch: a warning names its line."""
    frames, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("steadysum", "torch"):
        frames, frame = frames + 1, frame.f_back
    return frames


def _checked(*values: object) -> _Call:
    input, weight, target, start, end, return_logits, round_logits, vocab_size, kernel = values
    # The dispatcher has checked their types against the schema.
    arguments = check_matrices(input, weight, kernel)  # type: ignore[arg-type]
    check_target(arguments, target)  # type: ignore[arg-type]
    shard = check_shard(start, arguments.weight.shape[0], vocab_size)  # type: ignore[arg-type]
    if end < start:  # type: ignore[operator]
        raise RangeError(
            "vocab_end_index",
            seen=f"{end}, with vocab_start_index {start}",
            allowed=f">= {start}, the id after the last of this card",
            remedy="Pass vocab_end_index = vocab_start_index + rows of weight.",
        )
    return _Call(arguments, target, start, end, return_logits, round_logits, shard)  # type: ignore[arg-type]


def _fake(*values: object) -> tuple[Tensor | None, ...]:
    given = _checked(*values)
    input, weight = given.arguments.input, given.arguments.weight
    rows = input.shape[0]
    columns = [input.new_empty(rows, dtype=statistics_dtype(input.dtype)) for _ in range(4)]
    return (
        *columns[:3],
        input.new_empty(mask_bytes(rows), dtype=torch.uint8),
        given.target.new_empty(rows),
        input.new_empty(rows, weight.shape[0]) if given.return_logits else None,
        columns[3],
    )


def _six(*values: object) -> tuple[Tensor | None, ...]:
    return _shard_max_sum(*values)[:6]


def _fake_six(*values: object) -> tuple[Tensor | None, ...]:
    return _fake(*values)[:6]


# The vendor's parameters, and behind them ours (torch's inductor has a keyword argument `kernel` of its own, hence
# kernel_name). vocab_parallel_logits is None without return_logits, though the schema,
# the vendor's, says Tensor: torch's C++ operators return an undefined tensor there, which Python sees as None, too.
PARAMETERS: Final = (
    "Tensor input, Tensor weight, Tensor target, int vocab_start_index, int vocab_end_index, bool return_logits=False, "
    '*, bool round_logits=False, int? vocab_size=None, str kernel_name="auto"'
)
RESULTS: Final = (
    "Tensor logits_max, Tensor sum_exp_logits, Tensor predicted_logits, Tensor target_mask, Tensor masked_target, "
    "Tensor vocab_parallel_logits"
)

_library.register(f"npu_fused_linear_online_max_sum({PARAMETERS}) -> ({RESULTS})", _six, _fake_six)
_library.register(f"shard_max_sum({PARAMETERS}) -> ({RESULTS}, Tensor target_logits)", _shard_max_sum, _fake)
