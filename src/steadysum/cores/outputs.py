"""What a launch leaves in memory for the host, and whether it is proven."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steadysum.cores.grid import HALVES
from steadysum.cores.job import Job
from steadysum.errors import StaleRead
from steadysum.sync.records import Slot, fault_of, record_of

__all__ = ["Outputs", "outputs_of", "products_of", "proven", "records_of"]


class Outputs(NamedTuple):
    """Copies of the operator's outputs."""

    max: NDArray[np.float32]  # [N]
    sum: NDArray[np.float32]  # [N]
    predicted: NDArray[np.float32]  # [N]
    mask: NDArray[np.uint8]  # [(N + 7) // 8]
    masked_target: NDArray[Any]  # [N]
    logits: NDArray[np.float32] | None  # [N, V]


def outputs_of(job: Job, return_logits: bool) -> Outputs:
    """What memory holds, right or wrong."""
    arrays = job.memory.arrays
    return Outputs(
        arrays["out_max"].copy(),
        arrays["out_sum"].copy(),
        arrays["out_predicted"].copy(),
        arrays["mask"].copy(),
        arrays["masked_target"].copy(),
        _logits(job) if return_logits else None,
    )


def _logits(job: Job) -> NDArray[np.float32]:
    """The products of all tiles: each has its own buffer."""
    whole = np.zeros((job.plan.grid.rows, job.plan.grid.vocab), np.float32)
    buffers = job.memory.arrays["product"]
    for core in range(job.plan.grid.cores):
        for step, tile in enumerate(job.plan.grid.tiles_of(core)):
            for half in range(HALVES):
                rows = tile.half(half, job.plan.grid.geometry)
                _, start, stop = job.plan.layout.product(core, step, half, len(rows), tile.columns)
                part = buffers[start:stop].reshape(len(rows), tile.columns)
                whole[rows.start : rows.stop, tile.column : tile.column + tile.columns] = part
    return whole


def records_of(job: Job) -> list[Slot]:
    """The records of the outputs: of P3's rows, and of P1's."""
    slots = []
    if not job.plan.grid.tiles:
        return []
    for unit, rows, targets in zip(job.plan.members, job.plan.output_rows, job.plan.target_rows, strict=True):
        if rows:
            slots.append(job.plan.layout.outputs(job.plan.number(unit), unit.core, rows))
        if targets:
            slots.append(job.plan.layout.targets(job.plan.number(unit), unit.core, targets))
    return slots


def products_of(job: Job) -> list[tuple[Slot, int]]:
    """The records that product buffers hold when a launch has ended, and their counts: of each buffer, its last tile's.

    Where logits are returned every tile has a buffer of its own.
    """
    layout, found = job.plan.layout, []
    for core, shares in enumerate(job.plan.shares if job.plan.grid.tiles else ()):
        for step in range(max(0, len(shares) - layout.buffers), len(shares)):
            tile = shares[step].tile
            for half in range(HALVES):
                rows = len(tile.half(half, job.plan.grid.geometry))
                if rows:
                    slot = layout.product_record(core, step % layout.buffers, half, rows, tile.columns)
                    found.append((slot, step + 1))
    return found


def proven(job: Job, return_logits: bool) -> StaleRead | None:
    """None if every output's record is of this call and whole; else the error that names the first core at fault."""
    wanted = [(slot, 1) for slot in records_of(job)] + (products_of(job) if return_logits else [])
    for slot, count in wanted:
        stamp, payload = record_of([job.memory.load(span) for span in slot.spans])
        fault = fault_of(slot, stamp, payload, job.epoch, count)
        if fault is not None:
            return StaleRead(
                f"outputs of core {slot.core} in call {job.epoch}, read by the host",
                seen=f"{fault}, in {slot.payload[0].region}[{slot.payload[0].start}:{slot.payload[0].stop}]",
                allowed="a record of this call, whole",
                remedy="Run the call again; if it comes back, that core's writes don't reach memory.",
                cores=(slot.core,),
                writer=slot.core,
            )
    return None
