"""The statistics with all their sums, and the gradients, of a call: chunk of rows by chunk of rows, logits stored.

Not here: the kernels of each step. With known statistics a chunk's logits are computed once more, by the same tiles,
and so have the same bits.
"""

from __future__ import annotations

from torch import Tensor

from steadysum.kernels.chunks import room_for_logits, row_chunks
from steadysum.kernels.gradients import Gradients, PullBack, Wanted, zeros
from steadysum.kernels.problem import Operands, Statistics
from steadysum.kernels.triton_code.grid import grid_of
from steadysum.kernels.triton_code.logit_gradient import logit_gradient_
from steadysum.kernels.triton_code.logits import tile_partials
from steadysum.kernels.triton_code.products import (
    add_bias_gradient,
    add_weight_gradient,
    input_gradient,
    product_precision,
)
from steadysum.kernels.triton_code.statistics import joined, precision, statistics
from steadysum.kernels.triton_code.sums import with_sums

__all__ = ["chunk_statistics", "gradients"]


def chunk_statistics(call: Operands) -> Statistics:
    """The statistics and all sums that the call asks for, storing the logits of one chunk of rows at a time."""
    stored = call.wants_column_sum or call.dense is not None
    chunks = list(row_chunks(call, stored=True))
    room = room_for_logits(call, chunks) if stored else None
    parts = []
    for start, stop in chunks:
        z = None if room is None else room[: stop - start]
        parts.append(_chunk_statistics(call.rows(start, stop), z))
    return joined(parts, call)


def gradients(call: Operands, pull_back: PullBack, wanted: Wanted, known: Statistics | None) -> Gradients:
    """The wanted gradients."""

    results = zeros(call, wanted)
    grid = grid_of(call)
    chosen = precision(call.input.dtype)
    of_products = product_precision(call.input.dtype, chosen)
    chunks = list(row_chunks(call, stored=True))
    room = room_for_logits(call, chunks)
    for start, stop in chunks:
        chunk, z = call.rows(start, stop), room[: stop - start]
        if known is None:
            found = _chunk_statistics(chunk, z)
        else:
            found = known.rows(start, stop)
            tile_partials(chunk, grid, chosen, z)
        terms = pull_back(found, start, stop)
        if any(wanted):
            logit_gradient_(chunk, z, found.max, terms)
        if results.bias is not None:
            add_bias_gradient(chunk, z, results.bias)
        if results.weight is not None:
            add_weight_gradient(chunk, grid, z, of_products, results.weight)
        if results.input is not None:
            every_row = call.kept is None
            rows = results.input[start:stop] if every_row else results.input.new_empty(chunk.input.shape)
            input_gradient(chunk, grid, z, of_products, rows)
            if call.kept is not None:
                results.input[call.kept[start:stop]] = rows
    return results


def _chunk_statistics(chunk: Operands, room: Tensor | None) -> Statistics:
    found = statistics(chunk, room)
    return found if room is None else with_sums(chunk, grid_of(chunk), room, found)
