"""Kernel `eager`: tile by tile with torch operations, on any device, for fp32, bf16, fp16 and fp64.

Not for speed, and not for bits that hold across batches or thread counts: torch's own product keeps neither, so the
only promise is run to run. 16-bit operands are widened tile by tile; logits and statistics are fp32 (fp64 for fp64).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final, NamedTuple

import torch
from torch import Tensor

from steadysum.kernels.derived import entropy as entropy
from steadysum.kernels.derived import log as log
from steadysum.kernels.derived import logprobs as logprobs
from steadysum.kernels.problem import FLOATS, Operands, Problem, Statistics
from steadysum.kernels.promise import Promise
from steadysum.maxsum import fold, rescale
from steadysum.tiling import TILE, Tile, segments, tiles_of

name: Final = "eager"
promises: Final = frozenset({Promise.RUN_TO_RUN})

# The temporaries of one row block: half of the bar on memory above operands and results, 64 MiB.
BLOCK_BYTES: Final = 32 * 2**20
TEMPORARIES: Final = 5  # tile-sized: logits, distances, terms, their product, a mask


class Partial(NamedTuple):
    """A tile's statistics [rows], or those of several merged tiles."""

    max: Tensor
    sum_exp: Tensor
    target_logit: Tensor | None  # 0 where the target isn't among the columns
    weighted_sum: Tensor | None


def missing() -> str | None:
    """It runs wherever torch does."""
    return None


def supports(problem: Problem) -> str | None:
    """Any floating-point problem."""
    return None if problem.dtype in FLOATS else f"eager computes floating-point operands, not {problem.dtype}"


def statistics(calls: Sequence[Operands]) -> list[Statistics]:
    """max, sum_exp, and what else each call asks for."""
    return [_by_row_blocks(call, None) for call in calls]


def logits(call: Operands, out: Tensor) -> Statistics:
    """Write the logits [N, V] and return their statistics."""
    return _by_row_blocks(call, out)


def softmax(call: Operands, out: Tensor) -> None:
    """Write the softmax [N, V], using `out` for the logits."""
    found = logits(call, out)
    # As in torch, a row that holds +inf, or nothing but -inf, is NaN: there inf - inf and 0 / 0 give it by themselves,
    # and a NaN sum spreads it to the row's finite logits.
    total = found.sum_exp.masked_fill(found.max == torch.inf, torch.nan)
    out.sub_(found.max[:, None]).exp_().div_(total[:, None])


def _by_row_blocks(call: Operands, out: Tensor | None) -> Statistics:
    rows, hidden = call.input.shape
    block = max(1, BLOCK_BYTES // ((hidden + TEMPORARIES * TILE) * call.dtype.itemsize))
    with _without_autocast(call.input.device.type):
        parts = [
            _fold_tiles(call.rows(start, start + block), None if out is None else out[start : start + block])
            for start in range(0, max(rows, 1), block)  # once even without rows, for the empty results
        ]
    if len(parts) == 1:
        return parts[0]
    largest, sum_exp, target_logit, weighted_sum = zip(*parts, strict=True)
    return Statistics(torch.cat(largest), torch.cat(sum_exp), _cat(target_logit), _cat(weighted_sum))


def _cat(column: tuple[Tensor | None, ...]) -> Tensor | None:
    present = [part for part in column if part is not None]
    return torch.cat(present) if present else None


def _without_autocast(device: str) -> AbstractContextManager[object]:
    """The caller's autocast would round the fp32 product to 16 bits."""
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()


def _fold_tiles(call: Operands, out: Tensor | None) -> Statistics:
    x = call.input.to(call.dtype)  # [rows, H]; no copy unless 16-bit

    def partials(index: int, segment: range) -> Iterator[Partial]:
        for tile in tiles_of(index, segment):
            z = _tile_logits(call, x, tile)
            if out is not None:
                out[:, tile.start : tile.stop] = z
            yield _partial(call, z, tile)

    folded = fold((partials(index, segment) for index, segment in enumerate(segments(call.weight.shape[0]))), _merge)
    return Statistics(*folded)


def _tile_logits(
    call: Operands,
    x: Tensor,  # [rows, H]
    tile: Tile,
) -> Tensor:  # [rows, columns]
    columns = slice(tile.start, tile.stop)
    z = x @ call.weight[columns].to(call.dtype).T
    if call.bias is not None:
        z.add_(call.bias[columns].to(call.dtype))
    if call.scale != 1.0:
        z.mul_(call.scale)
    if call.softcap is not None:
        z.div_(call.softcap).tanh_().mul_(call.softcap)
    if call.temperature is not None:
        z.div_(call.temperature[:, None])
    if tile.stop > call.valid_vocab:
        z[:, max(call.valid_vocab - tile.start, 0) :] = -torch.inf
    return z


def _partial(
    call: Operands,
    z: Tensor,  # [rows, columns]
    tile: Tile,
) -> Partial:
    largest = z.amax(dim=1)
    # A wholly masked row is measured from 0, not from -inf, so that its terms are exp(-inf) = 0. Logits equal to the
    # max are at distance 0 even if both are +inf, so that a row's +inf logits are counted.
    origin = largest.masked_fill(largest == -torch.inf, 0.0)[:, None]
    distance = (z - origin).masked_fill_(z == origin, 0.0)
    terms = distance.exp()
    target_logit = weighted_sum = None
    if call.target is not None:
        local = call.target - tile.start
        width = tile.stop - tile.start
        gathered = z.gather(1, local.clamp(0, width - 1)[:, None])[:, 0]
        target_logit = torch.where((local >= 0) & (local < width), gathered, 0.0)
    if call.wants_weighted_sum:
        weighted_sum = distance.mul_(terms).masked_fill_(terms == 0, 0.0).sum(dim=1)
    return Partial(largest, terms.sum(dim=1), target_logit, weighted_sum)


def _merge(first: Partial, second: Partial) -> Partial:
    largest = torch.maximum(first.max, second.max)
    factor1, factor2 = rescale(first.max, largest), rescale(second.max, largest)
    target_logit = weighted_sum = None
    if first.target_logit is not None and second.target_logit is not None:
        target_logit = first.target_logit + second.target_logit  # at most one of them isn't 0: exact
    if first.weighted_sum is not None and second.weighted_sum is not None:
        weighted_sum = _moved(first, factor1, largest) + _moved(second, factor2, largest)
    return Partial(largest, first.sum_exp * factor1 + second.sum_exp * factor2, target_logit, weighted_sum)


def _moved(partial: Partial, factor: Tensor, largest: Tensor) -> Tensor:
    """weighted_sum measured from `largest`: each logit is further from it by partial.max - largest."""
    assert partial.weighted_sum is not None
    further = (partial.max - largest) * partial.sum_exp
    return torch.where(factor * partial.sum_exp == 0, 0.0, factor * (partial.weighted_sum + further.nan_to_num()))
