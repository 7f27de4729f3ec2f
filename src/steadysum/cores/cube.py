"""The program of a core's cube unit: P2's products, through product buffers that its vector units empty.

Under the policies that prove what they read each half of a buffer is a record that counts the core's tiles: the cube
reads it back, and the vector unit that takes it knows which tile it has read, and that it is whole.
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
from steadysum.sync.actions import Compute, Place, Program, Signal
from steadysum.sync.policies import Party, publish_all
from steadysum.sync.records import Slot
from steadysum.trace.events import Unit

__all__ = ["cube"]


def cube(job: Job, unit: Unit) -> Program:
    """All tiles of the core, in order."""
    core, buffers, party = unit.core, job.plan.layout.buffers, job.party(unit)
    for step, share in enumerate(job.plan.shares[core]):
        where = place(job.epoch, 2, 2 * step)
        free_from = step - buffers + 1  # tiles that must have been taken before this one has a buffer
        if not job.plan.cut.overlaps:
            yield from wait_for(party, where, job.free(core), free_from, "buffer free")
        logits = yield Compute(where, _product(job, share), _cost(job, share), "product")
        if job.plan.cut.overlaps:
            yield from wait_for(party, where, job.free(core), free_from, "buffer free")
        yield from _put(job, party, where, share, step, logits)
        yield Signal(where, job.ready(core), step + 1)


def _put(
    job: Job,
    party: Party,
    where: Place,
    share: Share,
    step: int,
    logits: NDArray[Any],  # [rows, columns]
) -> Program:
    halves = _halves(job, share, party.own.core, step, logits)
    yield from publish_all(party, where, [(slot, (part,)) for slot, part in halves], step + 1)


def _halves(
    job: Job, share: Share, core: int, step: int, logits: NDArray[Any]
) -> list[tuple[Slot, NDArray[np.float32]]]:
    """The product in two parts, one for each vector unit, and where each goes."""
    found = []
    for half in range(HALVES):
        rows = share.tile.half(half, job.plan.grid.geometry)
        if rows:
            first = rows.start - share.tile.row
            slot = job.plan.layout.product_record(
                core, step % job.plan.layout.buffers, half, len(rows), logits.shape[1]
            )
            found.append((slot, logits[first : first + len(rows)].reshape(-1)))
    return found


def _product(job: Job, share: Share) -> Any:
    tile = share.tile

    def work() -> NDArray[np.float32]:
        input = job.input[tile.row : tile.row + tile.rows]
        logits = product(input, job.weight[tile.column : tile.column + tile.columns])
        return logits if job.logits_dtype is None else rounded(logits, job.logits_dtype)

    return work


def _cost(job: Job, share: Share) -> float:
    return 2.0 * share.tile.rows * share.tile.columns * job.input.shape[1] / CUBE_OPERATIONS
