"""The program of a vector unit under the policies 1 to 3: nothing is used that isn't proven to be of this call.

The same phases as the vendor's, with less to wait for: each unit works out targets by itself, and the target's logit is
part of the stamped partial (an atomic add would be done twice by a retry), so that P0 and P1 need no barrier. The
heartbeat comes first, before any slot is written. A core's partial of a half block is a record that counts its tiles;
outputs are records too, which the host reads back.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial as call
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steadysum.cores.arithmetic import Partial, combine, identity, merge, product_is_right, statistics
from steadysum.cores.job import MERGE, VECTOR_ELEMENTS, Job, place
from steadysum.cores.plan import Share
from steadysum.cores.vendor_phases import target_of, with_padding
from steadysum.cores.waiting import wait_for
from steadysum.errors import AccuracyError
from steadysum.sync.actions import Action, Compute, Flag, Note, Place, Program, Signal
from steadysum.sync.policies import Party, collect, finish, heartbeat, meet, publish
from steadysum.sync.records import Payload, Slot
from steadysum.trace.events import Unit

__all__ = ["proven_vector"]


def proven_vector(job: Job, unit: Unit) -> Program:
    """All phases, in order."""
    party = job.party(unit)
    yield from heartbeat(party, place(job.epoch, 0))
    yield from _target(job, unit, party)
    merged: dict[tuple[int, int], int] = {}  # tiles in the record of (owner, half block)
    for step, share in enumerate(job.plan.shares[unit.core]):
        yield from _tile(job, unit, party, step, share, merged)
    where = place(job.epoch, 2, 2 * len(job.plan.grid.tiles) * (1 + job.plan.cut.duplicates))
    missing = yield from meet(party, where, "tiles")
    yield from _combine(job, unit, party, missing)
    yield from finish(party, place(job.epoch, 4), missing)


def _target(job: Job, unit: Unit, party: Party) -> Program:
    """P1: target_mask and masked_target of some rows, as a record."""
    where = place(job.epoch, 1)
    rows = job.plan.target_rows[job.plan.number(unit)]
    if not rows:
        return
    outputs = yield from _work(job, unit, Compute(where, call(target_of, job, rows), MERGE, "target"))
    yield from publish(party, where, job.plan.layout.targets(job.plan.number(unit), unit.core, rows), 1, outputs)


def _tile(job: Job, unit: Unit, party: Party, step: int, share: Share, merged: dict[tuple[int, int], int]) -> Program:
    """P2, one tile: takes its half of the product, and merges its statistics into the record."""
    where = place(job.epoch, 2, 2 * step + 1)
    half = int(unit.role == "v1")
    rows = share.tile.half(half, job.plan.grid.geometry)
    yield from wait_for(party, where, (job.ready(unit.core),), step + 1, "tile ready")
    if not rows:
        yield Signal(where, job.free(unit.core)[half], step + 1)
        return
    logits = yield from _take(job, unit, party, where, step, share, rows)
    yield Signal(where, job.free(unit.core)[half], step + 1)
    half_block = job.plan.layout.half_block(rows.start)
    slot = job.plan.layout.slot(share.owner, half_block, unit.core, share.copy)
    key = (share.owner + share.copy * job.plan.grid.cores, half_block)
    # A tile that is merged again, as a retry would, is recognised by the record's count: nothing is added twice.
    for _ in range(2 if job.acts("duplicated", unit, where, "tile") else 1):
        if merged.get(key, 0) > share.earlier:
            continue
        partial = yield from _statistics(job, unit, where, share, rows, logits)
        if key in merged:
            so_far = Partial(*(yield from collect(party, where, slot, merged[key])))
            partial = yield from _work(job, unit, Compute(where, call(merge, so_far, partial), MERGE, "merge"))
        yield from publish(party, where, slot, merged.get(key, 0) + 1, tuple(partial))
        merged[key] = merged.get(key, 0) + 1


def _take(
    job: Job, unit: Unit, party: Party, where: Place, step: int, share: Share, rows: range
) -> Generator[Action, Any, NDArray[np.float32]]:
    """The unit's half of a product, [rows, columns], proven to be whole and of this tile.

    Raises:
        StaleRead: the buffer doesn't hold it, naming the core.
        AccuracyError: its checksum is wrong, under policy `verified`.
    """
    half = int(unit.role == "v1")
    buffer = step % job.plan.layout.buffers
    slot = job.plan.layout.product_record(unit.core, buffer, half, len(rows), share.tile.columns)
    (values,) = yield from collect(party, where, slot, step + 1)
    logits: NDArray[np.float32] = values.reshape(len(rows), -1)
    if not job.verifies:
        return logits
    known = job.checksums[share.tile.column]
    work = call(product_is_right, job.input[rows.start : rows.stop], logits, known, job.logits_dtype)
    if (yield Compute(where, work, logits.size / VECTOR_ELEMENTS, "checksum")):
        return logits
    raise AccuracyError(
        f"product of tile {step + 1} of core {unit.core} in call {job.epoch}, read by {unit}",
        seen="rows whose sum isn't what the checksum of the weight gives",
        allowed="the product of this tile",
        remedy="Run the call again; if it comes back, this core's cube unit computes wrong.",
        cores=(unit.core,),
    )


def _statistics(
    job: Job, unit: Unit, where: Place, share: Share, rows: range, logits: NDArray[np.float32]
) -> Generator[Action, Any, Partial]:
    """The tile's statistics; under `verified` computed until two results agree, bit for bit."""
    masked = job.masked[rows.start : rows.stop]
    column = np.where(masked, -1 - 2**31, job.target[rows.start : rows.stop]) - share.tile.column
    padded = with_padding(job, logits)
    action = Compute(where, call(statistics, padded, column), logits.size / VECTOR_ELEMENTS, "statistics")
    found: Partial = yield from _work(job, unit, action)
    return found


def _work(job: Job, unit: Unit, action: Compute) -> Generator[Action, Any, Any]:
    """The result of a unit's own work; where partials are verified, done again until two results agree, bit for bit.

    Raises:
        AccuracyError: naming the unit's core: no two results agree, so none of them is proven.
    """
    seen = [(yield action)]
    if not job.verifies:
        return seen[0]
    for _ in range(job.waits.retries + 1):
        again = yield action
        if any(_same(again, earlier) for earlier in seen):
            return again
        yield Note(action.place, "retry", "stale", f"{action.label} that differs when it is done again", unit.core)
        seen.append(again)
    raise AccuracyError(
        f"{action.label} by {unit} in call {job.epoch}",
        seen=f"{len(seen)} results, no two of which are equal",
        allowed="the same bits whenever it is done again",
        remedy="Run the call again; if it comes back, this core computes wrong.",
        cores=(unit.core,),
    )


def _same(first: Sequence[NDArray[Any]], second: Sequence[NDArray[Any]]) -> bool:
    return all(a.tobytes() == b.tobytes() for a, b in zip(first, second, strict=True))


def _combine(job: Job, unit: Unit, party: Party, missing: tuple[Flag, ...]) -> Program:
    """P3: merges the records of the cores that hold a part of some rows, and writes the outputs as a record."""
    where, layout = place(job.epoch, 3), job.plan.layout
    rows = job.plan.output_rows[job.plan.number(unit)]
    if not rows:
        return
    wholes = []
    for half_block, piece in layout.pieces(rows):
        partials = []
        for owner, count in job.plan.grid.owners[half_block // 2].items():
            payload = yield from _partial(job, party, where, owner, half_block, count, missing)
            partials.append(Partial(*payload))
        first = layout.half_block_rows(half_block).start
        part = slice(piece.start - first, piece.stop - first)
        action = Compute(where, _merging(job, partials, piece, part), MERGE * len(partials), "combine")
        combined = yield from _work(job, unit, action)
        wholes.append(combined)
    outputs = tuple(np.concatenate(columns) for columns in zip(*wholes, strict=True))
    yield from publish(party, where, layout.outputs(job.plan.number(unit), unit.core, rows), 1, outputs)


def _partial(
    job: Job, party: Party, where: Place, owner: int, half_block: int, count: int, missing: tuple[Flag, ...]
) -> Generator[Action, Any, Payload]:
    """A core's partial of a half block; under `duplicated` two cores', which must agree bit for bit."""
    slot = job.plan.layout.slot(owner, half_block, owner)
    payload = yield from collect(party, where, slot, count, missing)
    if not job.plan.cut.duplicates:
        return payload
    twin = job.plan.layout.slot(owner, half_block, (owner - 1) % job.plan.grid.cores, copy=1)
    other = yield from collect(party, where, twin, count, missing)
    if not _same(payload, other):
        raise _disagreement(job, party, slot, twin)
    return payload


def _disagreement(job: Job, party: Party, slot: Slot, twin: Slot) -> AccuracyError:
    cores = tuple(sorted({slot.core, twin.core}))
    return AccuracyError(
        f"partial of core {slot.core} in call {job.epoch}, read by {party.own}",
        seen=f"other bits than core {twin.core} has computed for it",
        allowed="the same bits from both cores",
        remedy="Run the call again; if it comes back, one of the two cores computes wrong.",
        cores=cores,
    )


def _merging(
    job: Job, partials: list[Partial], piece: range, part: slice
) -> Callable[[], tuple[NDArray[np.float32], ...]]:
    """The work of P3 for some rows: (max, sum, predicted)."""

    def work() -> tuple[NDArray[np.float32], ...]:
        if not partials:
            largest, total, found = identity(part.stop)
        else:
            largest, total = combine(
                np.stack([each.max for each in partials]), np.stack([each.sum for each in partials])
            )
            found = np.sum([each.target_logit for each in partials], axis=0)
        largest, total, found = largest[part], total[part], found[part]
        masked = job.masked[piece.start : piece.stop]
        with np.errstate(all="ignore"):
            return largest, total, np.where(masked, np.float32(0), found - largest)

    return work
