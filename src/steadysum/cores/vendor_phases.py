"""The program of a vector unit as the vendor's kernel has it, under policy 0: P0 init, P1 target, P2 tiles, P3 combine.

Each phase ends with a barrier that waits until sync_wait_timeout and then goes on; what a core finds in the others'
slots is what it uses. Running maximum and sum live in the core's own slots in the workspace, the target's logit is
added atomically to one array for all.

Source: the kernel of the vendor's operator (CANN).
"""

from __future__ import annotations

from functools import partial as call
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steadysum.cores.arithmetic import Partial, combine, merge, pack_mask, statistics
from steadysum.cores.grid import HALVES, split_rows
from steadysum.cores.job import MERGE, VECTOR_ELEMENTS, Job, place
from steadysum.cores.plan import Share
from steadysum.cores.waiting import wait_for
from steadysum.sync.actions import Add, Compute, Program, Read, Signal, Word, Write
from steadysum.sync.memory import Span
from steadysum.sync.policies import meet
from steadysum.trace.events import Unit

__all__ = ["vendor_vector"]


def vendor_vector(job: Job, unit: Unit) -> Program:
    """All phases, in order."""
    party = job.party(unit)
    yield from _init(job, unit)
    yield from meet(party, place(job.epoch, 0, 1), "init")
    yield from _target(job, unit)
    yield from meet(party, place(job.epoch, 1, 1), "target")
    for step, share in enumerate(job.plan.shares[unit.core]):
        yield from _tile(job, unit, step, share)
    yield from meet(party, place(job.epoch, 2, 2 * len(job.plan.grid.tiles)), "tiles")
    yield from _combine(job, unit)


def _init(job: Job, unit: Unit) -> Program:
    """P0: the core's own slots to (-inf, 0), half of them by each vector unit; core 0 zeroes `predicted`."""
    where, layout, half = place(job.epoch, 0), job.plan.layout, int(unit.role == "v1")
    if job.acts("dirty", unit, where, "init"):
        return
    first, last = layout.slot_start(unit.core, 0), layout.slot_start(unit.core, layout.half_blocks)
    own = _half(range(first, last), half)
    words = [
        Word(Span(region, own.start, own.stop), cleared[own.start - first : own.stop - first])
        for region, cleared in job.plan.cleared.items()
    ]
    rows = split_rows(job.plan.grid.rows, HALVES, layout.row_multiple)[half]
    if unit.core == 0 and rows:
        words.append(Word(Span("predicted", rows.start, rows.stop), np.zeros(len(rows), np.float32)))
    yield Write(where, tuple(words))


def _half(slots: range, half: int) -> range:
    """Half of some slots, cut at a line."""
    return split_range(slots, HALVES, 16)[half]


def split_range(whole: range, parts: int, multiple: int) -> list[range]:
    """split_rows of a range that doesn't begin at 0."""
    pieces = split_rows(len(whole), parts, multiple)
    return [range(whole.start + piece.start, whole.start + piece.stop) for piece in pieces]


def _target(job: Job, unit: Unit) -> Program:
    """P1: target_mask and masked_target of some rows."""
    where = place(job.epoch, 1)
    rows = job.plan.target_rows[job.plan.number(unit)]
    if not rows:
        return
    mask, masked_target = yield Compute(where, lambda: target_of(job, rows), MERGE, "target")
    slot = job.plan.layout.targets(job.plan.number(unit), unit.core, rows)
    yield Write(where, (Word(slot.payload[0], mask), Word(slot.payload[1], masked_target)))


def target_of(job: Job, rows: range) -> tuple[NDArray[Any], NDArray[Any]]:
    """The bytes of target_mask, and masked_target, of some rows, which begin at a multiple of 8."""
    masked = job.masked[rows.start : rows.stop]
    target = np.where(masked, 0, job.target[rows.start : rows.stop]).astype(job.target_dtype)
    return pack_mask(masked, job.pad), target


def _tile(job: Job, unit: Unit, step: int, share: Share) -> Program:
    """P2, one tile: takes its half of the product, merges its statistics into the core's slot, adds target logits."""
    where, core, half = place(job.epoch, 2, 2 * step + 1), unit.core, int(unit.role == "v1")
    rows = share.tile.half(half, job.plan.grid.geometry)
    yield from wait_for(job.party(unit), where, (job.ready(core),), step + 1, "tile ready")
    own = place(job.epoch, 2, 2 * step + 1)
    if not rows:
        yield Signal(own, job.free(core)[half], step + 1)
        return
    for _ in range(2 if job.acts("duplicated", unit, where, "tile") else 1):
        spans = (
            job.plan.layout.product(core, step % job.plan.layout.buffers, half, len(rows), share.tile.columns),
            Span("masked_target", rows.start, rows.stop),
            Span("mask", rows.start // 8, -(-rows.stop // 8)),
            *_slot(job, core, rows),
        )
        logits, masked_target, mask, largest, total = yield Read(where, spans)
        column = columns_of(masked_target, mask, rows) - share.tile.column
        logits = with_padding(job, logits.reshape(len(rows), -1))
        partial = yield Compute(where, call(statistics, logits, column), logits.size / VECTOR_ELEMENTS, "statistics")
        running = Partial(largest, total, np.zeros(len(rows), np.float32))
        merged = yield Compute(where, call(merge, running, partial), MERGE, "merge")
        yield Write(where, tuple(map(Word, _slot(job, core, rows), merged[:2])))
        for run in _runs((column >= 0) & (column < share.tile.columns)):
            span = Span("predicted", rows.start + run.start, rows.start + run.stop)
            yield Add(where, Word(span, partial.target_logit[run.start : run.stop]))
    yield Signal(own, job.free(core)[half], step + 1)


def with_padding(job: Job, logits: NDArray[Any]) -> NDArray[Any]:
    """The logits; with the program's fault, those of a ragged tile with their padding."""
    missing = job.plan.grid.geometry.columns - logits.shape[1]
    if job.padding is None or not missing:
        return logits
    return np.pad(logits, ((0, 0), (0, missing)), constant_values=job.padding)


def columns_of(masked_target: NDArray[Any], mask: NDArray[Any], rows: range) -> NDArray[np.int64]:
    """The column of each row's target, -1 where it is masked, from what P1 wrote."""
    bits = np.unpackbits(mask, bitorder="little")[rows.start % 8 : rows.start % 8 + len(rows)]
    return np.where(bits == 1, -1 - 2**31, masked_target.astype(np.int64))


def _by_core(pieces: list[NDArray[np.float32]], rows: int) -> NDArray[np.float32]:
    """[cores, rows], of pieces core after core."""
    return np.concatenate(pieces).reshape(-1, rows)


def _runs(here: NDArray[np.bool_]) -> list[range]:
    """The runs of neighbouring rows: what one atomic instruction can add."""
    rows: list[int] = np.flatnonzero(here).tolist()
    runs: list[range] = []
    for row in rows:
        if runs and runs[-1].stop == row:
            runs[-1] = range(runs[-1].start, row + 1)
        else:
            runs.append(range(row, row + 1))
    return runs


def _slot(job: Job, core: int, rows: range) -> tuple[Span, Span]:
    start = job.plan.layout.slot_start(core, job.plan.layout.half_block(rows.start))
    return Span("max", start, start + len(rows)), Span("sum", start, start + len(rows))


def _combine(job: Job, unit: Unit) -> Program:
    """P3: merges all cores' slots of some rows; predicted becomes relative to the maximum, masked rows 0."""
    where, layout = place(job.epoch, 3), job.plan.layout
    rows = job.plan.output_rows[job.plan.number(unit)]
    if not rows:
        return
    maxima, sums = [], []
    for spans in job.plan.slots_of(rows):
        found = yield Read(where, spans)
        maxima += found[: len(found) // 2]
        sums += found[len(found) // 2 :]
    predicted, mask = yield Read(
        where, (Span("predicted", rows.start, rows.stop), Span("mask", rows.start // 8, -(-rows.stop // 8)))
    )

    def work() -> tuple[NDArray[Any], ...]:
        largest, total = combine(_by_core(maxima, len(rows)), _by_core(sums, len(rows)))
        bits = np.unpackbits(mask, bitorder="little")[rows.start % 8 : rows.start % 8 + len(rows)]
        with np.errstate(all="ignore"):
            return largest, total, np.where(bits == 1, np.float32(0), predicted - largest)

    outputs = yield Compute(where, work, MERGE * job.plan.grid.cores, "combine")
    slot = layout.outputs(job.plan.number(unit), unit.core, rows)
    yield Write(where, tuple(map(Word, slot.payload, outputs)))
