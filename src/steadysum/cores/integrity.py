"""Memory integrity: what is damaged after a call, and who wrote there last.

Guard words lie around every region, slot and buffer; records have stamps; operands, which nobody may write, have
digests. What a launch that was aborted hasn't come to write isn't damaged, and is told from what is.
"""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple

from numpy.typing import NDArray
from torch import Tensor

from steadysum.cores.job import Job
from steadysum.cores.outputs import products_of, records_of
from steadysum.sync.memory import Entry, Memory, Region, Span
from steadysum.sync.records import Payload, Slot, damaged_span, fault_of, stamp_of
from steadysum.sync.virtual import Run
from steadysum.trace.events import Unit

__all__ = ["Damage", "Ledger", "damages"]


class Damage(NamedTuple):
    """One damaged place, or one that was never written."""

    what: str  # "guard", "record", "operand"; "unwritten": a record that isn't there
    region: str  # of a guard: the region that it guards; of a record: that of its stamp or of the part that is damaged
    position: int  # byte of the arena; of an operand: first byte of it
    detail: str
    last_writer: Unit | None  # who wrote there last, or nearest before a guard; None: nobody, or no log says

    def __str__(self) -> str:
        if self.what == "unwritten":
            return f"record at {self.region}, byte {self.position}: {self.detail}"
        writer = "none known in this call" if self.last_writer is None else str(self.last_writer)
        return f"{self.what} damaged at {self.region}, byte {self.position}: {self.detail}; last writer: {writer}"


class Ledger(NamedTuple):
    """What must be found in memory after a launch."""

    epoch: int
    records: tuple[Slot, ...]  # of this launch; none under policy 0, which has no stamps
    operands: tuple[tuple[str, Tensor, int], ...]  # (name, the device's copy, digest); none where none were taken

    @staticmethod
    def of(job: Job, digests: bool) -> Ledger:
        """What a job must leave; taken before its first step."""
        operands = (("x", job.input), ("w", job.weight)) if digests else ()
        return Ledger(
            job.epoch,
            (*_slots(job), *(slot for slot, _ in products_of(job))) if job.parts.stamp else (),
            tuple((name, operand, _digest(operand)) for name, operand in operands),
        )


def damages(ledger: Ledger, memory: Memory, run: Run) -> list[Damage]:
    """All that is damaged, in the order of memory, operands first."""
    found = [
        Damage("operand", name, 0, "its digest isn't that of the launch", None)
        for name, operand, digest in ledger.operands
        if _digest(operand) != digest
    ]
    places = []
    for name, position in memory.broken_guards():
        region = memory.regions.get(name)
        writer = None if region is None else _writer_at_guard(run, region, position)
        places.append(Damage("guard", name, position, "a guard word was overwritten", writer))
    for slot in ledger.records:
        line, *payload = (memory.load(span) for span in slot.spans)
        place = damaged_span(slot, line, tuple(payload), ledger.epoch)
        if place is None:
            continue
        position = _byte(memory.regions[place.region], place.start)
        if _is_unwritten(slot, line, tuple(payload), ledger.epoch, run):
            places.append(Damage("unwritten", place.region, position, "never written in this call", None))
            continue
        fault = fault_of(slot, stamp_of(line), tuple(payload), ledger.epoch, None)
        detail = "the stamp isn't whole" if fault is None or place == slot.stamp else fault
        places.append(Damage("record", place.region, position, detail, _last_writer(run, place)))
    return found + sorted(places, key=lambda damage: damage.position)


def _is_unwritten(slot: Slot, line: NDArray[Any], payload: Payload, epoch: int, run: Run) -> bool:
    """Whether a record that isn't this call's was never written in it: by the log, or without one by its own stamp."""
    if any(entry.what == "drain" for entry in run.log):
        return _last_writer(run, slot.stamp) is None
    stamp = stamp_of(line)
    return not line.any() or (stamp.epoch < epoch and damaged_span(slot, line, payload, stamp.epoch) is None)


def _writer_at_guard(run: Run, region: Region, position: int) -> Unit | None:
    """Who wrote over a guard word last; else who wrote last into the slot, buffer or array that it lies behind."""
    element = (position - region.offset) // region.dtype.itemsize
    over = _last_writer(run, Span(region.name, element, element + 1))
    if over is not None:
        return over
    if region.cells is None or element >= region.length:
        return _last_writer(run, Span(region.name, region.length - 1, region.length))
    start = element // region.cells.size * region.cells.size
    return _last_writer(run, Span(region.name, start, element))


def _slots(job: Job) -> list[Slot]:
    """All records that the launch writes: the cores' partials, and the outputs."""
    found = []
    for block, counts in enumerate(job.plan.grid.owners):
        for owner in counts:
            for half_block in (2 * block, 2 * block + 1):
                if not job.plan.layout.half_block_rows(half_block):
                    continue
                found.append(job.plan.layout.slot(owner, half_block, owner))
                if job.plan.cut.duplicates:
                    found.append(job.plan.layout.slot(owner, half_block, (owner - 1) % job.plan.grid.cores, copy=1))
    return found + records_of(job)


def _last_writer(run: Run, span: Span) -> Unit | None:
    for entry in reversed(run.log):
        word = entry.detail
        if (
            entry.what == "drain"
            and isinstance(word, Entry)
            and word.span.region == span.region
            and word.span.start < span.stop
            and span.start < word.span.stop
        ):
            unit: Unit = run.units[entry.unit]
            return unit
    return None


def _byte(region: Region, element: int) -> int:
    return region.offset + element * region.dtype.itemsize


def _digest(operand: Tensor) -> int:
    return zlib.crc32(operand.numpy().reshape(-1).view("u1").data)
