"""Vocabulary parallelism: how a vocabulary is cut into shards, and how the shards' results become the whole's.

Each rank calls the vendor's operator 1 (online_max_sum.py) on its rows of the weight. The ranks exchange three numbers
per row and shard, and `merge_shards` makes of them what operator 2 takes; operator 3 gives each rank its weight's
gradient, and a part of the input's gradient that `add_input_gradients` adds up. Not here: the exchange itself, and the
operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from steadysum.errors import DtypeError, OperandTypeError, RangeError, ShapeError
from steadysum.kernels.problem import FLOATS
from steadysum.kernels.target_mask import unpack_mask
from steadysum.maxsum import MaxSum, fold_tree, merge, rescale
from steadysum.ops.online_max_sum import OnlineMaxSum
from steadysum.ops.vendor_arguments import accept_int, check_mask, check_rows
from steadysum.tiling import SEGMENTS, Shard, is_node, segment_columns, segments

__all__ = [
    "MergedShards",
    "ShardStatistics",
    "add_input_gradients",
    "merge_max_sum",
    "merge_shards",
    "other_bits",
    "rescale_predicted",
    "rescale_sum",
    "split_vocab",
    "to_send",
]

T = TypeVar("T")


class ShardStatistics(NamedTuple):
    """What a rank sends to the others: three numbers per row, and a bit."""

    logits_max: Tensor  # [BT]
    sum_exp_logits: Tensor  # [BT]
    target_logits: Tensor  # [BT]: the target's logit itself, 0 where masked
    target_mask: Tensor  # [(BT + 7) // 8], uint8


class MergedShards(NamedTuple):
    """What operator 2 takes, of all shards together."""

    logits_max: Tensor  # [BT]
    sum_exp_logits: Tensor  # [BT]
    predicted_logits: Tensor  # [BT]: target logit - logits_max; 0 where no shard holds the target


# ---- the cut -----------------------------------------------------------------------------------------------------


def split_vocab(vocab_size: int, shards: int) -> tuple[range, ...]:
    """Cut a vocabulary into shards of nearly equal size, if possible such that sharding changes no bits.

    Args:
        vocab_size: columns of the vocabulary.
        shards: how many to make, 1 to vocab_size.

    Returns:
        The columns of each shard, ascending. Where the fold's tree can be shared out over so many shards they are nodes
        of it, so that `other_bits` has nothing to say: for 1, 2, 4, 8 or 16 shards of 8192 columns or more, with a
        shorter last shard where 16 doesn't divide. Below, nodes are multiples of 512 columns, and shards may be far
        from even. Any other number of shards is cut as evenly as can be.

    Raises:
        OperandTypeError: sizes that aren't integers.
        RangeError: there are more shards than columns.

    >>> split_vocab(128256, 4)
    (range(0, 32064), range(32064, 64128), range(64128, 96192), range(96192, 128256))
    >>> split_vocab(50257, 2)  # one segment of 16 has 3142 columns
    (range(0, 25136), range(25136, 50257))
    """
    accept_int("vocab_size", vocab_size)
    accept_int("shards", shards)
    if vocab_size < 1:
        raise RangeError("vocab_size", str(vocab_size), ">= 1", "Pass the number of columns of the whole vocabulary.")
    if not 1 <= shards <= vocab_size:
        raise RangeError("shards", str(shards), f"1 to {vocab_size}, the columns", "Use fewer shards.")
    width, leaves = segment_columns(vocab_size), len(segments(vocab_size))
    tree = 1
    while tree < leaves:
        tree *= 2
    size = tree // shards * width
    if tree % shards == 0 and (shards - 1) * size < vocab_size:
        starts = [shard * size for shard in range(shards)]
    else:
        starts = [shard * vocab_size // shards for shard in range(shards)]
    return tuple(range(start, stop) for start, stop in pairwise((*starts, vocab_size)))


def other_bits(cut: Sequence[range]) -> str | None:
    """Why merged results of this cut may differ in their last bits from the unsharded call's; None if they don't.

    It is about kernels that promise `shards` (`native`, `triton`), called with vocab_size. Without equal bits the
    results are as right, and equal from run to run.

    Args:
        cut: the columns of all shards, ascending.

    >>> other_bits([range(0, 16000), range(16000, 32000)])
    >>> print(other_bits([range(0, 10000), range(10000, 32000)]))
    columns 0 to 9999 are no node of the fold's tree over 16 segments of 2000 columns
    """
    vocab_size = _checked(cut)
    for columns in cut:
        if not is_node(len(columns), Shard(columns.start, vocab_size)):
            return (
                f"columns {columns.start} to {columns.stop - 1} are no node of the fold's tree over "
                f"{len(segments(vocab_size))} segments of {segment_columns(vocab_size)} columns"
            )
    return None


# ---- all shards at once ------------------------------------------------------------------------------------------


def merge_max_sum(shards: Sequence[MaxSum], cut: Sequence[range] | None = None) -> MaxSum:
    """The statistics of a vocabulary from those of all its shards, folded in the canonical order.

    Args:
        shards: each shard's (max, sum_exp), [...] each; ascending by their columns.
        cut: the columns of all shards, ascending. None: they are equally large.

    Returns:
        MaxSum [...]; with the bits of the unsharded call where `other_bits(cut)` is None, and the shards were computed
        with the vocabulary's cut (vocab_size).

    Raises:
        ShapeError, DtypeError, DeviceError: shards that don't fit each other, or the cut.

    >>> one = MaxSum(torch.tensor([2.0]), torch.tensor([1.0]))
    >>> merge_max_sum([one, one, one])
    MaxSum(max=tensor([2.]), sum_exp=tensor([3.]))
    """
    return _fold(list(shards), cut, merge)


def to_send(found: OnlineMaxSum) -> ShardStatistics:
    """What a rank sends to the others: of the results of operator 1 on its shard, what `merge_shards` needs.

    Args:
        found: what fused_linear_online_max_sum returned.

    >>> from steadysum import fused_linear_online_max_sum
    >>> input, target = torch.tensor([[1.0]]), torch.tensor([1])
    >>> to_send(fused_linear_online_max_sum(input, torch.tensor([[1.0], [2.0]]), target, 0, 2)).target_logits
    tensor([2.])
    """
    return ShardStatistics(found.logits_max, found.sum_exp_logits, found.target_logits, found.target_mask)


def merge_shards(
    shards: Iterable[OnlineMaxSum | ShardStatistics | Sequence[Tensor | None]], cut: Sequence[range] | None = None
) -> MergedShards:
    """From the results of operator 1 on all shards to the arguments of operator 2.

    Args:
        shards: for each shard what fused_linear_online_max_sum returned, or what `to_send` made of it, ascending by
            their columns. Plain tuples of the first four results serve as well; then predicted, which was rounded when
            the shard's maximum was taken off it, is moved to the whole row's, and rounded once more.
        cut: the columns of all shards, ascending. None: they are equally large.

    Returns:
        MergedShards(logits_max, sum_exp_logits, predicted_logits), [BT] each, relative to the maximum of the whole row.

    Raises:
        OperandTypeError, ShapeError, DtypeError, DeviceError, RangeError: shards that don't fit each other, or the cut.

    >>> from steadysum import fused_linear_online_max_sum
    >>> input, weight, target = torch.tensor([[1.0]]), torch.tensor([[1.0], [2.0], [4.0], [4.0]]), torch.tensor([1])
    >>> first = fused_linear_online_max_sum(input, weight[:2], target, 0, 2, vocab_size=4)
    >>> second = fused_linear_online_max_sum(input, weight[2:], target, 2, 4, vocab_size=4)
    >>> merge_shards([first, to_send(second)])
    MergedShards(logits_max=tensor([4.]), sum_exp_logits=tensor([2.1851]), predicted_logits=tensor([-2.]))
    """
    parts = [_part(shard) for shard in shards]
    for part in parts:
        _check_part(part)
    merged = merge_max_sum([MaxSum(part.max, part.sum_exp) for part in parts], cut)
    predicted = torch.zeros_like(merged.max)
    for part in parts:
        here = ~unpack_mask(part.mask, part.max.shape[0])
        if part.is_relative:
            moved = _moved(part.target, part.max, merged.max)
        else:
            moved = part.target - merged.max
        predicted = torch.where(here, moved, predicted)
    return MergedShards(merged.max, merged.sum_exp, predicted)


def add_input_gradients(parts: Sequence[Tensor], cut: Sequence[range] | None = None) -> Tensor:
    """The gradient of the input from each shard's part of it, added in the canonical order.

    Args:
        parts: what operator 3 returned as input_grad for each shard, [BT, H], ascending by their columns. For a 16-bit
            input ask it for grad_dtype=torch.float32: else the rounding of each part stays in the sum.
        cut: the columns of all shards, ascending. None: they are equally large.

    Returns:
        [BT, H], fp32 (fp64 for fp64 parts), with the bits of the unsharded call under the conditions of merge_max_sum;
        round it with .to(input.dtype).

    Raises:
        ShapeError: no parts, parts of different shapes, or a number of parts that isn't the cut's.
        DtypeError: parts of integers.
        RangeError: a cut with gaps.

    Source: Megatron-LM issue 2739 (parts that were added up in 16 bits).

    >>> add_input_gradients([torch.ones(1, 2), torch.ones(1, 2)])
    tensor([[2., 2.]])
    """
    for part in parts:
        if part.dtype not in FLOATS:
            raise DtypeError(
                "dtype of the parts", str(part.dtype), ", ".join(map(str, FLOATS)), "Pass what operator 3 returned."
            )
    wide = [part if part.dtype == torch.float64 else part.to(torch.float32) for part in parts]
    for part in wide[1:]:
        if part.shape != wide[0].shape:
            seen = f"{list(wide[0].shape)} and {list(part.shape)}"
            raise ShapeError("shapes of the parts", seen, "equal shapes", "Pass parts of one call's rows.")
    return _fold(wide, cut, torch.add) if len(wide) != 1 else wide[0].clone()  # never a part itself


# ---- one shard at a time, for exchanges by all-reduce --------------------------------------------------------------


def rescale_sum(
    sum_exp_logits: Tensor,  # [BT]
    logits_max: Tensor,  # [BT]
    global_max: Tensor,  # [BT]
) -> Tensor:  # [BT]
    """A shard's sum of exponentials, moved from its own maximum to the whole row's: s exp(m - M).

    For an all-reduce of sums, whose order, and so whose last bits, are the communication library's.

    >>> rescale_sum(torch.tensor([2.0]), torch.tensor([-torch.inf]), torch.tensor([1.0]))
    tensor([0.])
    """
    rows = logits_max.shape[0] if logits_max.dim() == 1 else -1
    values = {"sum_exp_logits": sum_exp_logits, "logits_max": logits_max, "global_max": global_max}
    check_rows(values, rows, beside="logits_max")
    return sum_exp_logits * rescale(logits_max, global_max)


def rescale_predicted(
    predicted_logits: Tensor,  # [BT]
    logits_max: Tensor,  # [BT]
    global_max: Tensor,  # [BT]
    target_mask: Tensor,  # [(BT + 7) // 8]
) -> Tensor:  # [BT]
    """A shard's predicted logits, moved from its own maximum to the whole row's; 0 on masked rows, so that they add up.

    >>> mask = torch.tensor([0], dtype=torch.uint8)
    >>> rescale_predicted(torch.tensor([-1.0]), torch.tensor([3.0]), torch.tensor([5.0]), mask)
    tensor([-3.])
    """
    _check_part(_Part(logits_max, global_max, predicted_logits, target_mask, is_relative=True))
    here = ~unpack_mask(target_mask, predicted_logits.shape[0])
    return torch.where(here, _moved(predicted_logits, logits_max, global_max), 0.0)


def _moved(predicted: Tensor, own: Tensor, largest: Tensor) -> Tensor:
    """A target's distance from a shard's maximum, as one from the row's. (-inf from a maximum of -inf is NaN.)"""
    further = own - largest
    return torch.where(own == -torch.inf, further, predicted + further)


# ---- the fold ----------------------------------------------------------------------------------------------------


def _fold(parts: list[T], cut: Sequence[range] | None, join: Callable[[T, T], T]) -> T:
    """The canonical fold of shards; one by one where there are more of them than leaves."""
    if not parts:
        raise ShapeError("number of shards", "0", "1 or more", "Pass each shard's results.")
    if cut is not None and len(cut) != len(parts):
        raise ShapeError("number of shards", str(len(parts)), f"{len(cut)}, as in the cut", "Pass each shard once.")
    if cut is not None and other_bits(cut) is None:
        width = segment_columns(cut[-1].stop)
        leaves: list[T | None] = [None] * SEGMENTS
        for part, columns in zip(parts, cut, strict=True):
            leaves[columns.start // width] = part  # its other leaves are absent, so that it passes up to its node
        return fold_tree(leaves, join)
    return fold_tree(parts, join) if len(parts) <= SEGMENTS else reduce(join, parts)


def _checked(cut: Sequence[range]) -> int:
    """The vocabulary's size. Raises unless the cut's ranges cover it, ascending, without gaps."""
    if not all(isinstance(columns, range) for columns in cut):
        seen = ", ".join(type(columns).__name__ for columns in cut)
        raise OperandTypeError("types in the cut", seen, "range", "Pass [range(start, stop), ...], or use split_vocab.")
    starts = [0, *(columns.stop for columns in cut)]
    if not cut or any(
        columns.start != start or columns.step != 1 or not columns for columns, start in zip(cut, starts, strict=False)
    ):
        raise RangeError(
            "cut",
            seen=str([f"{columns.start} to {columns.stop}" for columns in cut]),
            allowed="ranges of columns, ascending from 0, without gaps",
            remedy="Use split_vocab, or the ranks' vocab_start_index and vocab_end_index.",
        )
    return cut[-1].stop


class _Part(NamedTuple):
    """A shard's results, in whichever form they came."""

    max: Tensor
    sum_exp: Tensor
    target: Tensor  # the target's logit
    mask: Tensor
    is_relative: bool  # target is measured from max


def _part(shard: Any) -> _Part:
    values = tuple(shard[:4]) if isinstance(shard, (tuple, list)) else ()
    if len(values) < 4 or not all(isinstance(value, Tensor) for value in values):
        raise OperandTypeError(
            "a shard's results",
            seen=f"{type(shard).__name__} of {len(values)}" if values else type(shard).__name__,
            allowed="the results of fused_linear_online_max_sum, or to_send of them",
            remedy="Pass (logits_max, sum_exp_logits, predicted_logits, target_mask, ...).",
        )
    largest, sum_exp, target, mask = values
    target_logits = getattr(shard, "target_logits", None)  # an attribute beside the tuple, or a member of it
    if target_logits is None:
        return _Part(largest, sum_exp, target, mask, is_relative=True)
    return _Part(largest, sum_exp, target_logits, mask, is_relative=False)


def _check_part(part: _Part) -> None:
    values = {"logits_max": part.max, "sum_exp_logits": part.sum_exp, "the target's logit": part.target}
    check_rows(values, part.max.shape[0] if part.max.dim() == 1 else -1, beside="logits_max")
    check_mask(part.mask, part.max.shape[0])
