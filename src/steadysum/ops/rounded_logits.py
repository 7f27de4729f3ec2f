"""Statistics of logits that are rounded to the operands' 16-bit dtype first, as the vendor's A2 and A3 chips do.

For comparisons with such a chip, not for training. Not here: computing the logits (kernels/).
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from steadysum.kernels.problem import Operands, Statistics
from steadysum.maxsum import MaxSum, distances, fold, merge
from steadysum.tiling import segments, tiles_of

__all__ = ["round_in_place", "rounded_statistics"]


def round_in_place(call: Operands, z: Tensor) -> Tensor:
    """Round logits to the dtype of the call's input; their own, wider dtype stays."""
    return z.copy_(z.to(call.input.dtype))


def rounded_statistics(
    call: Operands,
    z: Tensor,  # [rows, V], the call's logits; rounded here
) -> Statistics:
    """max, sum_exp and target logit of the rounded logits, folded as all statistics are."""

    def partials(index: int, segment: range) -> Iterator[MaxSum]:
        for tile in tiles_of(index, segment):
            largest, distance = distances(round_in_place(call, z[:, tile.start : tile.stop]))
            yield MaxSum(largest, distance.exp_().sum(dim=1))

    cut = segments(z.shape[1], call.shard)
    found = fold((partials(index, segment) for index, segment in enumerate(cut)), merge)
    target_logit = None if call.target is None else z.gather(1, call.target[:, None])[:, 0]
    return Statistics(found.max, found.sum_exp, target_logit)
