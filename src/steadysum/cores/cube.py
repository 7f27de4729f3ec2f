"""The program of a core's cube unit: P2's products, through product buffers that its vector units empty.

Under the policies that prove what they read a buffer has a stamp: it is taken back before the buffer is written, and
set when the whole product is in memory, so that a vector unit knows which tile it has read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from steadysum.cores.arithmetic import product, rounded
from steadysum.cores.grid import HALVES
from steadysum.cores.job import CUBE_OPERATIONS, Job, place
from steadysum.cores.plan import Share
from steadysum.cores.waiting import wait_for
from steadysum.sync.actions import Compute, Fence, Place, Program, Signal, Word, Write
from steadysum.sync.records import STAMP_WORDS
from steadysum.trace.events import Unit

__all__ = ["WRITING", "cube", "product_stamp"]

WRITING = 1  # in a product's stamp: the buffer is being written


def cube(job: Job, unit: Unit) -> Program:
    """All tiles of the core, in order."""
    core, buffers = unit.core, job.plan.layout.buffers
    for step, share in enumerate(job.plan.shares[core]):
        where = place(job.epoch, 2, 2 * step)
        free_from = step - buffers + 1  # tiles that must have been taken before this one has a buffer
        if not job.plan.cut.overlaps:
            yield from wait_for(job.party(unit), where, job.free(core), free_from, "buffer free")
        logits = yield Compute(where, _product(job, share), _cost(job, share), "product")
        if job.plan.cut.overlaps:
            yield from wait_for(job.party(unit), where, job.free(core), free_from, "buffer free")
        yield from _put(job, where, share, core, step, logits)
        yield Signal(where, job.ready(core), step + 1)


def _put(
    job: Job,
    where: Place,
    share: Share,
    core: int,
    step: int,
    logits: NDArray[Any],  # [rows, columns]
) -> Program:
    buffer = step % job.plan.layout.buffers
    stamp = job.plan.layout.product_stamp(core, buffer)
    if job.parts.stamp:
        yield Write(where, (Word(stamp, product_stamp(job.epoch, step, WRITING)),))
        yield Fence(where)
    yield Write(where, tuple(_halves(job, share, core, buffer, logits)))
    if job.parts.fence:
        yield Fence(where)
    if job.parts.stamp:
        yield Write(where, (Word(stamp, product_stamp(job.epoch, step, 0)),))
        yield Fence(where)


def product_stamp(epoch: int, step: int, state: int) -> NDArray[np.int64]:
    """The stamp of a product buffer: which call's and which tile of the core it holds."""
    line = np.zeros(STAMP_WORDS, np.int64)
    line[:3] = (epoch, step + 1, state)
    return line


def _halves(job: Job, share: Share, core: int, buffer: int, logits: NDArray[Any]) -> list[Word]:
    """The product as two words, one for each vector unit."""
    words = []
    for half in range(HALVES):
        rows = share.tile.half(half, job.plan.grid.geometry)
        if rows:
            first = rows.start - share.tile.row
            span = job.plan.layout.product(core, buffer, half, len(rows), logits.shape[1])
            words.append(Word(span, logits[first : first + len(rows)].reshape(-1)))
    return words


def _product(job: Job, share: Share) -> Any:
    tile = share.tile

    def work() -> NDArray[np.float32]:
        input = job.input[tile.row : tile.row + tile.rows]
        logits = product(input, job.weight[tile.column : tile.column + tile.columns])
        return logits if job.logits_dtype is None else rounded(logits, job.logits_dtype)

    return work


def _cost(job: Job, share: Share) -> float:
    return 2.0 * share.tile.rows * share.tile.columns * job.input.shape[1] / CUBE_OPERATIONS
