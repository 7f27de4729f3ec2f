"""Memory integrity: what is damaged after a call, and who wrote there last.

Guard words lie around every region; records have stamps; operands, which nobody may write, have digests.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

from torch import Tensor

from steadysum.cores.job import Job
from steadysum.cores.outputs import records_of
from steadysum.sync.memory import Entry, Memory, Region
from steadysum.sync.records import Slot, fault_of, record_of
from steadysum.sync.virtual import Run
from steadysum.trace.events import Unit

__all__ = ["Damage", "Ledger", "damages"]


class Damage(NamedTuple):
    """One damaged place."""

    what: str  # "guard", "record" or "operand"
    region: str  # of a guard: the region before it
    position: int  # byte of the arena; of an operand: first byte of it
    detail: str
    last_writer: Unit | None  # who wrote there last, or nearest before a guard; None: nobody, or no log says

    def __str__(self) -> str:
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
            tuple(_slots(job)) if job.parts.stamp else (),
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
        writer = None if region is None else _last_writer(run, region.name, region.length - 1, region.length)
        places.append(Damage("guard", name, position, "a guard word was overwritten", writer))
    for slot in ledger.records:
        stamp, payload = record_of([memory.load(span) for span in slot.spans])
        fault = fault_of(slot, stamp, payload, ledger.epoch, None)
        if fault is not None:
            place = slot.payload[0]
            position = _byte(memory.regions[place.region], place.start)
            writer = _last_writer(run, place.region, place.start, place.stop)
            places.append(Damage("record", place.region, position, fault, writer))
    return found + sorted(places, key=lambda damage: damage.position)


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


def _last_writer(run: Run, region: str, start: int, stop: int) -> Unit | None:
    for entry in reversed(run.log):
        word = entry.detail
        if (
            entry.what == "drain"
            and isinstance(word, Entry)
            and word.span.region == region
            and word.span.start < stop
            and start < word.span.stop
        ):
            unit: Unit = run.units[entry.unit]
            return unit
    return None


def _byte(region: Region, element: int) -> int:
    return region.offset + element * region.dtype.itemsize


def _digest(operand: Tensor) -> int:
    return zlib.crc32(operand.numpy().reshape(-1).view("u1").data)
