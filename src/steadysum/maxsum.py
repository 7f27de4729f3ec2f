"""MaxSum, the statistics of a row; its merge (the operation written as a circled plus in the paper); the fold.

Not here: computing a partial from logits (kernels/). Source of the merge: Milakov and Gimelshein, "Online normalizer
calculation for softmax", arXiv 1805.02867.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Final, NamedTuple, TypeVar

import torch
from torch import Tensor

from steadysum import _extension, _library
from steadysum.errors import DeviceError, DtypeError, OperandTypeError, ShapeError
from steadysum.tiling import SEGMENTS

__all__ = ["MaxSum", "distances", "fold", "fold_tree", "identity", "merge", "merge_by_torch"]

T = TypeVar("T")


class MaxSum(NamedTuple):
    """Per row: the largest logit, and the sum of exp(logit - max) over the vocabulary.

    A row of -inf logits has max -inf and sum_exp 0; a row with +inf has max +inf and the number of its +inf logits;
    a NaN stays in its row.
    """

    max: Tensor  # [...]
    sum_exp: Tensor  # [...]

    @property
    def log_sum_exp(self) -> Tensor:
        """max + log(sum_exp), which equals torch.logsumexp of the logits, -inf and +inf rows included.

        >>> MaxSum(torch.tensor([2.0, -torch.inf]), torch.tensor([1.0, 0.0])).log_sum_exp
        tensor([2., -inf])
        """
        return self.max + self.sum_exp.log()


def identity(shape: Sequence[int], *, dtype: torch.dtype = torch.float32, device: torch.device | None = None) -> MaxSum:
    """The MaxSum of no logits at all: (-inf, 0).

    >>> identity([2]).max
    tensor([-inf, -inf])
    """
    size = tuple(shape)
    return MaxSum(
        torch.full(size, -torch.inf, dtype=dtype, device=device), torch.zeros(size, dtype=dtype, device=device)
    )


def merge(first: MaxSum, second: MaxSum) -> MaxSum:
    """Statistics of the union of two disjoint sets of columns.

    Args:
        first, second: MaxSum of equal shapes, dtypes and devices. Order matters for the last bits only.

    Returns:
        MaxSum of that shape and dtype; in fp32 on the CPU, with the `native` kernel installed, and on a GPU that the
        `triton` kernel runs on, with the published bits of their fold. Shards of a vocabulary are cut by calls of their
        own, each by its own size: merged, they are right, but in general not to the last bits of the unsharded call.
        ops.vocab_parallel has what shards need.

    Raises:
        ShapeError, DtypeError, DeviceError: the two don't fit each other.
        GradientError: one of them requires grad.

    >>> merge(MaxSum(torch.tensor(3.0), torch.tensor(2.0)), MaxSum(torch.tensor(3.0), torch.tensor(1.0)))
    MaxSum(max=tensor(3.), sum_exp=tensor(3.))
    """
    for position, given in enumerate((first, second)):
        if not isinstance(given, MaxSum):
            raise OperandTypeError(
                f"type of argument {position} of merge",
                type(given).__name__,
                "MaxSum",
                "Wrap it: MaxSum(max, sum_exp).",
            )
    return MaxSum(*torch.ops.steadysum.merge(*first, *second))


# By the type of device, the merge of fp32 statistics there, with the bits of the fold of the device's kernel. Kernels
# enter theirs here.
merges_on: Final[dict[str, Callable[[MaxSum, MaxSum], MaxSum]]] = {}


def merge_by_torch(first: MaxSum, second: MaxSum) -> MaxSum:
    """The merge in torch operations, for any device and dtype; no bits are promised."""
    largest = torch.maximum(first.max, second.max)
    return MaxSum(largest, first.sum_exp * rescale(first.max, largest) + second.sum_exp * rescale(second.max, largest))


def distances(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Of logits [rows, columns] the max [rows], and each logit's distance from it.

    A row of nothing but -inf is measured from 0, not from -inf, so that its terms are exp(-inf) = 0. Logits equal to
    the max are at distance 0 even if both are +inf, so that a row's +inf logits are counted.
    """
    largest = logits.amax(dim=1)
    origin = largest.masked_fill(largest == -torch.inf, 0.0)[:, None]
    return largest, (logits - origin).masked_fill_(logits == origin, 0.0)


def rescale(own: Tensor, largest: Tensor) -> Tensor:
    """exp(own - largest), with 1 where they are equal: this settles -inf against -inf and +inf against +inf."""
    return torch.exp(own - largest).masked_fill_(own == largest, 1.0)


def fold(segments: Iterable[Iterable[T]], merge: Callable[[T, T], T]) -> T:
    """Merge the partials of all tiles in the canonical order.

    In each segment the partials are merged in ascending tile order; the segments then by `fold_tree`. The iterables
    are consumed one partial at a time, so that a generator of tiles needs the memory of one tile.

    >>> fold([["a", "b"], ["c"], ["d"]], lambda first, second: f"({first}{second})")
    '(((ab)c)d)'
    """
    return fold_tree([reduce(merge, segment) for segment in segments], merge)


def fold_tree(leaves: Sequence[T | None], merge: Callable[[T, T], T]) -> T:
    """Merge up to 16 leaves by the fixed binary tree (0,1)(2,3)...; absent ones (None, or beyond the end) are skipped.

    Nodes of the tree can take the place of leaves: with 4 shards of 4 segments each, the tree over the 4 shards'
    statistics is the top of the tree over the 16 segments.

    >>> fold_tree(["a", "b", "c", None, "d"], lambda first, second: f"({first}{second})")
    '(((ab)c)d)'
    """
    level: list[T | None] = list(leaves)
    if len(level) > SEGMENTS or all(leaf is None for leaf in level):
        raise ShapeError(
            "leaves of the fold",
            seen=f"{len(level)}, of which {sum(leaf is not None for leaf in level)} are present",
            allowed=f"1 to {SEGMENTS} leaves, at least one of them present",
            remedy="Fold the partials of each segment first.",
        )
    while len(level) > 1:
        level.append(None)  # a partner for a last odd node; else it is dropped by zip
        level = [_merge_present(left, right, merge) for left, right in zip(level[::2], level[1::2], strict=False)]
    (root,) = level
    assert root is not None  # at least one leaf is present
    return root


def _merge_present(left: T | None, right: T | None, merge: Callable[[T, T], T]) -> T | None:
    if left is None:
        return right
    return left if right is None else merge(left, right)


def _check(max1: Tensor, sum1: Tensor, max2: Tensor, sum2: Tensor) -> None:
    tensors = (max1, sum1, max2, sum2)
    remedy = "Merge statistics of the same rows, computed in the same precision on one device."
    if any(tensor.shape != max1.shape for tensor in tensors):  # no set: symbolic sizes have no hash
        seen = ", ".join(str(list(tensor.shape)) for tensor in tensors)
        raise ShapeError("shapes of max, sum_exp, max, sum_exp in merge", seen, "four equal shapes", remedy)
    if any(tensor.dtype != max1.dtype for tensor in tensors) or not max1.is_floating_point():
        seen = ", ".join(str(tensor.dtype) for tensor in tensors)
        raise DtypeError("dtypes of max, sum_exp, max, sum_exp in merge", seen, "one floating-point dtype", remedy)
    if any(tensor.device != max1.device for tensor in tensors):
        seen = ", ".join(str(tensor.device) for tensor in tensors)
        raise DeviceError("devices of max, sum_exp, max, sum_exp in merge", seen, "one device", remedy)


def _merge(max1: Tensor, sum1: Tensor, max2: Tensor, sum2: Tensor) -> tuple[Tensor, Tensor]:
    _check(max1, sum1, max2, sum2)
    native = _extension.module
    if native is None or max1.device.type != "cpu" or max1.dtype != torch.float32:
        of_device = merges_on.get(max1.device.type, merge_by_torch) if max1.dtype == torch.float32 else merge_by_torch
        merged = of_device(MaxSum(max1, sum1), MaxSum(max2, sum2))
        return merged.max, merged.sum_exp
    largest = torch.empty_like(max1, memory_format=torch.contiguous_format)
    sum_exp = torch.empty_like(largest)
    operands = (tensor.detach().reshape(-1).contiguous() for tensor in (max1, sum1, max2, sum2))
    native.merge(*operands, largest.view(-1), sum_exp.view(-1))
    return largest, sum_exp


def _fake_merge(max1: Tensor, sum1: Tensor, max2: Tensor, sum2: Tensor) -> tuple[Tensor, Tensor]:
    _check(max1, sum1, max2, sum2)
    return torch.empty_like(max1, memory_format=torch.contiguous_format), torch.empty_like(
        max1, memory_format=torch.contiguous_format
    )


_library.register(
    "merge(Tensor max1, Tensor sum1, Tensor max2, Tensor sum2) -> (Tensor max, Tensor sum_exp)", _merge, _fake_merge
)
