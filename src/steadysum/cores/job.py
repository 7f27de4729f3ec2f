"""A job: one launch of the operator on the device, as all programs of its units see it.

Not here: what the units do (cube.py, vendor_phases.py, proven_phases.py), and who launches it (device.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steadysum.cores.arithmetic import Checksum, checksum
from steadysum.cores.faults import Armed
from steadysum.cores.plan import ROLES, Plan
from steadysum.sync.actions import Flag, Place
from steadysum.sync.memory import Memory
from steadysum.sync.policies import Parts, Party, Waits
from steadysum.trace.events import Unit

__all__ = ["PHASES", "Job", "place"]

PHASES: Final = ("P0 init", "P1 target", "P2 tiles", "P3 combine", "exit")

# What a core's units do in a microsecond: orders of magnitude of such a chip, so that timelines look as they do there.
CUBE_OPERATIONS: Final = 10e6  # multiplications and additions: 10 TFLOP/s
VECTOR_ELEMENTS: Final = 20e3  # elements through subtract, exp and sum
MERGE: Final = 0.2  # microseconds to merge two partials of a half block


def place(epoch: int, phase: int, step: int = 0) -> Place:
    """A place in the call."""
    return Place(epoch, phase, step, PHASES[phase])


@dataclass(frozen=True)
class Job:
    """Everything that the programs of one launch share."""

    epoch: int
    input: Tensor  # [N, H], fp32, the device's copy
    weight: Tensor  # [V, H], fp32, the device's copy
    target: NDArray[np.int64]  # [N], column in this weight, whatever it is
    masked: NDArray[np.bool_]  # [N], the target isn't on this device
    target_dtype: np.dtype[Any]
    pad: int  # bits of target_mask beyond the last row
    plan: Plan
    memory: Memory
    parts: Parts
    waits: Waits
    verifies: bool  # partials are checked by checksum
    logits_dtype: torch.dtype | None  # logits are rounded to it before max and exp
    padding: float | None  # a fault of the program: a tail's padding, which holds this, is counted
    armed: Armed | None

    def party(self, unit: Unit) -> Party:
        """A vector unit at the syncs of this call."""
        return Party(unit, self.plan.members, self.epoch, self.parts, self.waits, self.plan.flags)

    @cached_property
    def checksums(self) -> dict[int, Checksum]:
        """By first column, what is known of each tile's weight."""
        tiles = {tile.column: tile.columns for tile in self.plan.grid.tiles}
        return {column: checksum(self.weight[column : column + columns]) for column, columns in tiles.items()}

    def ready(self, core: int) -> Flag:
        """ "tile ready": the cube's flag to both vector units."""
        return Flag("tile ready", core, "cube")

    def free(self, core: int) -> tuple[Flag, ...]:
        """ "buffer free": the vector units' flags to the cube."""
        return tuple(Flag("buffer free", core, role) for role in ROLES[1:])

    def acts(self, kind: str, unit: Unit, where: Place, site: str) -> bool:
        """Whether a fault that is a matter of the program acts here."""
        return self.armed is not None and self.armed.acts(kind, unit, where, site) is not None
