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
from steadysum.cores.grid import HALVES, CoreTile, Grid, split_rows
from steadysum.cores.layout import Layout
from steadysum.sync.actions import Flag, Place
from steadysum.sync.memory import Memory
from steadysum.sync.policies import Parts, Party, Waits
from steadysum.trace.events import Unit

__all__ = ["PHASES", "ROLES", "Job", "Share", "place", "units_of"]

PHASES: Final = ("P0 init", "P1 target", "P2 tiles", "P3 combine", "exit")
ROLES: Final = ("cube", "v0", "v1")

# What a core's units do in a microsecond: orders of magnitude of such a chip, so that timelines look as they do there.
CUBE_OPERATIONS: Final = 10e6  # multiplications and additions: 10 TFLOP/s
VECTOR_ELEMENTS: Final = 20e3  # elements through subtract, exp and sum
MERGE: Final = 0.2  # microseconds to merge two partials of a half block


def place(epoch: int, phase: int, step: int = 0) -> Place:
    """A place in the call."""
    return Place(epoch, phase, step, PHASES[phase])


def units_of(cores: int) -> tuple[Unit, ...]:
    """All units of so many cores, in the order in which they are numbered."""
    return tuple(Unit(core, role) for core in range(cores) for role in ROLES)


@dataclass(frozen=True)
class Share:
    """A tile that a core computes, for itself or, where partials are duplicated, for its neighbour."""

    tile: CoreTile
    owner: int  # the core whose partial it is part of
    copy: int  # which set of slots


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
    grid: Grid
    layout: Layout
    memory: Memory
    parts: Parts
    waits: Waits
    overlaps: bool  # enable_async: the cube computes the next tile while the vector units take the last one
    verifies: bool  # partials are checked by checksum
    duplicates: bool  # partials are computed by two cores
    logits_dtype: torch.dtype | None  # logits are rounded to it before max and exp
    pads: bool  # a fault of the program: a tail's padding is counted
    armed: Armed | None

    @cached_property
    def members(self) -> tuple[Unit, ...]:
        """The vector units: those that come to barriers."""
        return tuple(unit for unit in units_of(self.grid.cores) if unit.role != "cube")

    @cached_property
    def _flags(self) -> dict[str, tuple[Flag, ...]]:
        return {}

    def party(self, unit: Unit) -> Party:
        """A vector unit at the syncs of this call."""
        return Party(unit, self.members, self.epoch, self.parts, self.waits, self._flags)

    def number(self, unit: Unit) -> int:
        """A vector unit's position among all."""
        return unit.core * HALVES + (unit.role == "v1")

    @cached_property
    def output_rows(self) -> list[range]:
        """The rows that each vector unit combines and writes in P3, by its number."""
        return split_rows(self.grid.rows, len(self.members), self.layout.row_multiple)

    @cached_property
    def target_rows(self) -> list[range]:
        """The rows whose target mask each vector unit writes in P1, by its number."""
        return split_rows(self.grid.rows, len(self.members), self.layout.target_multiple)

    def shares(self, core: int) -> tuple[Share, ...]:
        """What a core computes, in order: its own tiles, and then its neighbour's where partials are duplicated."""
        own = tuple(Share(tile, core, 0) for tile in self.grid.tiles_of(core))
        if not self.duplicates:
            return own
        neighbour = (core + 1) % self.grid.cores
        return own + tuple(Share(tile, neighbour, 1) for tile in self.grid.tiles_of(neighbour))

    @cached_property
    def checksums(self) -> dict[int, Checksum]:
        """By first column, what is known of each tile's weight."""
        tiles = {tile.column: tile.columns for tile in self.grid.tiles}
        return {column: checksum(self.weight[column : column + columns]) for column, columns in tiles.items()}

    def ready(self, core: int) -> Flag:
        """"tile ready": the cube's flag to both vector units."""
        return Flag("tile ready", core, "cube")

    def free(self, core: int) -> tuple[Flag, ...]:
        """"buffer free": the vector units' flags to the cube."""
        return tuple(Flag("buffer free", core, role) for role in ROLES[1:])

    def acts(self, kind: str, unit: Unit, where: Place, site: str) -> bool:
        """Whether a fault that is a matter of the program acts here."""
        return self.armed is not None and self.armed.acts(kind, unit, where, site) is not None
