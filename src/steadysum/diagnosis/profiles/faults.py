"""Which faults a campaign on the emulated device arms, one in a call, and on which cores each of them acts.

The faults are the scenarios of docs/policies.md: every kind, one or more ways each. Kinds are drawn with equal chances,
then a kind's scenarios, then a core. A fault that is armed where it has nothing to act on would count as a fault that
was withstood, so it is tried first: an armory holds only arms whose counters moved. Not here: the calls (emulated.py).
"""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Final, NamedTuple

import torch

from steadysum.cores.arm import Arm
from steadysum.cores.device import Device
from steadysum.cores.grid import Geometry
from steadysum.cores.outcomes import SCENARIOS, Scenario
from steadysum.cores.spoiling import when_spoilt
from steadysum.diagnosis.arguments import Shape
from steadysum.diagnosis.emulation.judge import make_call
from steadysum.diagnosis.operands import random_operands
from steadysum.diagnosis.profiles.campaign import Group
from steadysum.diagnosis.subject import Operands
from steadysum.settings import Settings

__all__ = ["CORES", "SHAPE", "TILE", "Armory", "Place", "armory_of", "operand_sets", "rearmed"]

# A small problem, for calls of some milliseconds: two other cores, two tiles on two of them, and a ragged tile.
SHAPE: Final = Shape(8, 4, 37)
CORES: Final = 3
TILE: Final = Geometry(8, 8)


class Place(NamedTuple):
    """A scenario on a core."""

    scenario: Scenario
    core: int


class Armory(NamedTuple):
    """Where each kind of fault acts."""

    places: dict[str, dict[str, tuple[Place, ...]]]  # by kind, then by scenario
    left_out: tuple[str, ...]  # scenarios that never act under these settings

    def draw(self, random: random.Random) -> Place:
        """A kind, one of its scenarios, and a core."""
        scenarios = self.places[random.choice(list(self.places))]
        return random.choice(scenarios[random.choice(list(scenarios))])

    def of(self, group: Group) -> Armory:
        """The faults of the group."""
        if group is Group.ALL:
            return self
        places: dict[str, dict[str, tuple[Place, ...]]] = {}
        for kind, scenarios in self.places.items():
            for name, found in scenarios.items():
                if _is_in_the_exchange(Arm.parse(found[0].scenario.arm)):
                    places.setdefault(kind, {})[name] = found
        return Armory(places, self.left_out)


def operand_sets(seed: int) -> tuple[Operands, Operands]:
    """Two sets, which calls take in turn: with one, what an earlier call left is right."""
    return tuple(random_operands(SHAPE, torch.float32, 2 * seed + number) for number in (0, 1))  # type: ignore[return-value]


@lru_cache
def armory_of(settings: Settings) -> Armory:
    """The faults that act under these settings, by trial."""
    places: dict[str, dict[str, tuple[Place, ...]]] = {}
    left_out: list[str] = []
    for scenario in SCENARIOS:
        arm = Arm.parse(scenario.arm)
        cores = range(CORES) if arm.core is not None else range(1)
        acting = tuple(Place(scenario, core) for core in cores if _acts(scenario, core, settings))
        if acting:
            places.setdefault(arm.kind, {})[scenario.name] = acting
        else:
            left_out.append(scenario.name)
    return Armory(places, tuple(left_out))


def rearmed(place: Place, call: int) -> Arm:
    """The scenario's arm on the place's core, in one call alone."""
    arm = Arm.parse(place.scenario.arm)
    core = None if arm.core is None else place.core
    return Arm(arm.kind, arm.probability, core, arm.role, arm.phase, arm.site, call, arm.most, **dict(arm.knobs))


def _is_in_the_exchange(arm: Arm) -> bool:
    """Not in the program that all cores run, in an operand that all read, or in a unit's own arithmetic."""
    return arm.kind != "tail" and not (arm.kind in ("flip", "scale") and when_spoilt(arm) in ("begin", "work"))


def _acts(scenario: Scenario, core: int, settings: Settings) -> bool:
    device = Device(CORES, settings, (rearmed(Place(scenario, core), 2),), geometry=TILE, keeps_log=False)
    for operands in operand_sets(0):
        make_call(device, operands)
    return any(device.fault_counts().values())
