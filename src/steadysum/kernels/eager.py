"""Kernel `eager`: tile by tile with torch operations, on any device, for fp32, bf16, fp16 and fp64.

Not for speed, and not for bits that hold across batches or thread counts: torch's own product keeps neither, so the
only promise is run to run. 16-bit operands are widened tile by tile; logits, statistics and every sum that goes into a
gradient are fp32 (fp64 for fp64).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import torch
from torch import Tensor

from steadysum.kernels.autocast import without_autocast
from steadysum.kernels.chunks import room_for_logits, row_chunks
from steadysum.kernels.derived import entropy as entropy
from steadysum.kernels.derived import log as log
from steadysum.kernels.derived import logprobs as logprobs
from steadysum.kernels.gradients import Gradients, LogitGradient, PullBack, Wanted, zeros
from steadysum.kernels.problem import FLOATS, Operands, Problem, Statistics
from steadysum.kernels.promise import Promise
from steadysum.maxsum import distances, fold, rescale
from steadysum.tiling import TILE, Tile, segments, tiles, tiles_of

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
    ties: Tensor | None


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


def chunk_statistics(call: Operands) -> Statistics:
    """The statistics and all sums that the call asks for, storing the logits of one chunk of rows at a time."""
    chunks = list(row_chunks(call, stored=True)) or [(0, 0)]  # once even without rows, for the empty results
    with without_autocast(call.input.device.type):
        z = room_for_logits(call, chunks)
        return _joined([_stored_statistics(call.rows(start, stop), z[: stop - start]) for start, stop in chunks])


def gradients(call: Operands, pull_back: PullBack, wanted: Wanted, known: Statistics | None = None) -> Gradients:
    """The wanted gradients, from the gradient of the logits that `pull_back` describes chunk by chunk.

    Args:
        call: the operands.
        pull_back: called once per chunk, with its statistics.
        wanted: which gradients to compute.
        known: the statistics of all rows. With them logits are computed anew, tile by tile; without, the logits of one
            chunk of rows are stored while its statistics are found.
    """
    if known is not None and known.ties is not None:
        # torch's product need not repeat a logit's bits among other rows, and then no logit would equal the known max.
        call = replace(call, wants_ties=True, wants_weighted_sum=known.weighted_sum is not None)
        known = None

    results = zeros(call, wanted)
    chunks = list(row_chunks(call, stored=known is None))
    with without_autocast(call.input.device.type):
        room = room_for_logits(call, chunks) if known is None else None
        for start, stop in chunks:
            chunk = call.rows(start, stop)
            chunk = replace(chunk, input=chunk.input.to(call.dtype))  # once for all products; no copy unless 16-bit
            stored = None if room is None else room[: stop - start]
            if known is not None:
                found = known.rows(start, stop)
            else:
                assert stored is not None
                found = _stored_statistics(chunk, stored)
            terms = pull_back(found, start, stop)
            of_rows = _add_chunk(chunk, stored, found.max, terms, results)
            if results.input is not None and of_rows is not None:
                results.input[slice(start, stop) if call.kept is None else call.kept[start:stop]] = of_rows
    return results


def _by_row_blocks(call: Operands, out: Tensor | None) -> Statistics:
    rows, hidden = call.input.shape
    block = max(1, BLOCK_BYTES // ((hidden + TEMPORARIES * TILE) * call.dtype.itemsize))
    with without_autocast(call.input.device.type):
        parts = [
            _fold_tiles(call.rows(start, start + block), None if out is None else out[start : start + block])
            for start in range(0, max(rows, 1), block)  # once even without rows, for the empty results
        ]
    return _joined(parts)


def _joined(parts: Sequence[Statistics]) -> Statistics:
    """The statistics of consecutive rows as one."""
    if len(parts) == 1:
        return parts[0]
    return Statistics(*map(_cat, zip(*parts, strict=True)))  # type: ignore[arg-type]


def _cat(column: tuple[Tensor | None, ...]) -> Tensor | None:
    present = [part for part in column if part is not None]
    return torch.cat(present) if present else None


def _fold_tiles(call: Operands, out: Tensor | None) -> Statistics:
    x = call.input.to(call.dtype)  # [rows, H]; no copy unless 16-bit

    def partials(index: int, segment: range) -> Iterator[Partial]:
        for tile in tiles_of(index, segment):
            z = _tile_logits(call, x, tile)
            if out is not None:
                out[:, tile.start : tile.stop] = z
            yield _partial(call, z, tile)

    cut = segments(call.weight.shape[0], call.shard)
    return Statistics(*fold((partials(index, segment) for index, segment in enumerate(cut)), _merge))


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
    largest, distance = distances(z)
    terms = distance.exp()
    target_logit = weighted_sum = ties = None
    if call.target is not None:
        inside, local = _targets(call.target, tile.start, tile.stop)
        target_logit = torch.where(inside, z.gather(1, local[:, None])[:, 0], 0.0)
    if call.wants_ties:  # masked columns never tie, not even in a row of nothing but -inf
        tied = z[:, : max(call.valid_vocab - tile.start, 0)] == largest[:, None]
        ties = tied.sum(dim=1, dtype=z.dtype).masked_fill_(largest.isnan(), torch.nan)
    if call.wants_weighted_sum:
        weighted_sum = distance.mul_(terms).masked_fill_(terms == 0, 0.0).sum(dim=1)
    return Partial(largest, terms.sum(dim=1), target_logit, weighted_sum, ties)


def _targets(
    target: Tensor,  # [rows]
    start: int,
    stop: int,
) -> tuple[Tensor, Tensor]:  # [rows], [rows]
    """Whether each row's target is among the columns [start, stop), and at which place; any place where it isn't."""
    return (target >= start) & (target < stop), (target - start).clamp(0, stop - start - 1)


def _merge(first: Partial, second: Partial) -> Partial:
    largest = torch.maximum(first.max, second.max)
    factor1, factor2 = rescale(first.max, largest), rescale(second.max, largest)
    target_logit = weighted_sum = ties = None
    if first.target_logit is not None and second.target_logit is not None:
        target_logit = first.target_logit + second.target_logit  # at most one of them isn't 0: exact
    if first.weighted_sum is not None and second.weighted_sum is not None:
        weighted_sum = _moved(first, factor1, largest) + _moved(second, factor2, largest)
    if first.ties is not None and second.ties is not None:
        ties = _ties_with(first, largest) + _ties_with(second, largest)
    return Partial(largest, first.sum_exp * factor1 + second.sum_exp * factor2, target_logit, weighted_sum, ties)


def _ties_with(partial: Partial, largest: Tensor) -> Tensor:
    """The number of logits equal to `largest`; NaN where that is NaN."""
    assert partial.ties is not None
    return torch.where(partial.max == largest, partial.ties, 0.0).masked_fill_(largest.isnan(), torch.nan)


def _moved(partial: Partial, factor: Tensor, largest: Tensor) -> Tensor:
    """weighted_sum measured from `largest`: each logit is further from it by partial.max - largest."""
    assert partial.weighted_sum is not None
    further = (partial.max - largest) * partial.sum_exp
    return torch.where(factor * partial.sum_exp == 0, 0.0, factor * (partial.weighted_sum + further.nan_to_num()))


def _unmasked_tiles(call: Operands) -> Iterator[tuple[Tile, slice]]:
    """The tiles, and their columns that aren't masked: what stands in masked ones, be it NaN, is never read."""
    for tile in tiles(call.weight.shape[0], call.shard):
        if tile.start < call.valid_vocab:
            yield tile, slice(tile.start, min(tile.stop, call.valid_vocab))


def _stored_statistics(
    call: Operands,
    z: Tensor,  # [rows, V]; the logits are written here
) -> Statistics:
    found = _fold_tiles(call, z)
    column_sum = dense_total = dense_sum = dense_exp = None
    if call.wants_column_sum:
        column_sum = torch.zeros_like(found.max)
    if call.dense is not None:
        dense_total, dense_sum, dense_exp = (torch.zeros_like(found.max) for _ in range(3))
    if column_sum is None and dense_total is None:
        return found
    for _, columns in _unmasked_tiles(call):
        distance = z[:, columns] - found.max[:, None]
        if column_sum is not None:
            column_sum += _weighted(call, distance, columns).sum(dim=1)
        if call.dense is not None and dense_total is not None and dense_sum is not None and dense_exp is not None:
            q = call.dense[:, columns].to(call.dtype)
            weighted = _weighted(call, q, columns)
            dense_total += weighted.sum(dim=1)
            dense_sum += (weighted * distance).sum(dim=1)
            dense_exp += distance.exp_().mul_(q).sum(dim=1)
    return found._replace(column_sum=column_sum, dense_total=dense_total, dense_sum=dense_sum, dense_exp=dense_exp)


def _weighted(
    call: Operands,
    values: Tensor,  # [rows, columns]
    columns: slice,
) -> Tensor:
    return values if call.column_weight is None else values * call.column_weight[columns]


def _add_chunk(
    call: Operands,  # of the chunk, the input widened
    stored: Tensor | None,  # [rows, V]; None: compute the logits anew
    largest: Tensor,  # [rows]
    terms: LogitGradient,
    results: Gradients,  # of the whole call
) -> Tensor | None:  # [rows, H]
    """Add what the chunk's rows give to the gradients of weight and bias, and return that of the rows, if wanted."""
    of_rows = None if results.input is None else torch.zeros_like(call.input, memory_format=torch.contiguous_format)
    if of_rows is None and results.weight is None and results.bias is None:
        return None
    for tile, columns in _unmasked_tiles(call):
        if stored is not None:
            z = stored[:, columns]
        else:  # the whole tile, as when the statistics were found: bits of a product depend on its width
            z = _tile_logits(call, call.input, tile)[:, : columns.stop - columns.start]
        g = _before_options(call, z, _logit_gradient(call, z, largest, terms, columns))
        if results.bias is not None:
            results.bias[columns] += g.sum(dim=0)
        if results.weight is not None:
            results.weight[columns].addmm_(g.T, call.input)
        if of_rows is not None:
            of_rows.addmm_(g, call.weight[columns].to(call.dtype))
    return of_rows


def _logit_gradient(
    call: Operands,
    z: Tensor,  # [rows, columns]
    largest: Tensor,  # [rows]
    terms: LogitGradient,
    columns: slice,
) -> Tensor:  # [rows, columns]
    """The gradient of the logits of some columns, as LogitGradient writes it."""
    distance = z - largest[:, None]
    e = distance.exp()
    g = torch.zeros_like(e)
    if terms.exp is not None or terms.slope is not None:  # else e, NaN beside an infinite max, has no part in it
        if terms.exp is not None:
            g += terms.exp[:, None]
        if terms.slope is not None:
            g += (terms.slope[:, None] * distance).masked_fill_(e == 0, 0.0)
        g *= e
    q = None if call.dense is None else call.dense[:, columns].to(call.dtype)
    if terms.center is not None:
        assert q is not None
        g *= q - terms.center[:, None]
    if terms.keep_above is not None:
        g.masked_fill_(e < terms.keep_above[:, None], 0.0)
    if terms.dense is not None:
        assert q is not None
        g += _weighted(call, terms.dense[:, None] * q, columns)
    if terms.column is not None:
        g += _weighted(call, terms.column[:, None].expand_as(g), columns)
    if terms.tie is not None:
        g += torch.where(z == largest[:, None], terms.tie[:, None], 0.0)
    if terms.target is not None:
        assert call.target is not None
        inside, local = _targets(call.target, columns.start, columns.stop)
        g.scatter_add_(1, local[:, None], torch.where(inside, terms.target, 0.0)[:, None])
    return g


def _before_options(
    call: Operands,
    z: Tensor,  # [rows, columns]
    g: Tensor,  # [rows, columns]; overwritten
) -> Tensor:
    """From the gradient of the logits to that of product plus bias: back through temperature, softcap and scale."""
    if call.temperature is not None:
        g.div_(call.temperature[:, None])
    if call.softcap is not None:
        capped = z if call.temperature is None else z * call.temperature[:, None]
        t = (capped / call.softcap).clamp_(-1.0, 1.0)  # infinite where z overflowed after softcap
        g.mul_((1.0 - t).mul_(1.0 + t))  # 1 - t t would lose what is left near |t| = 1
    if call.scale != 1.0:
        g.mul_(call.scale)
    return g
