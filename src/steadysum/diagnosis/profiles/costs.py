"""What clean calls cost: under a profile beside none of it, at the shapes that people run.

On the emulated device times are those of its virtual clock, which says in which order things happen; its figures are
chosen, not measured on a chip. For the native kernel they are those of the clock on the wall, taken in turn. Not here:
what campaigns cost (campaign.py).
"""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple

import torch

from steadysum.cores.device import CORES, Device
from steadysum.cores.grid import VENDOR, Geometry
from steadysum.diagnosis.arguments import Shape
from steadysum.diagnosis.checking import FIELD_SHAPE
from steadysum.diagnosis.emulation.judge import make_call
from steadysum.diagnosis.operands import random_operands
from steadysum.diagnosis.profiles import faults
from steadysum.diagnosis.profiles.campaign import Watcher
from steadysum.diagnosis.profiles.emulated import seconds_of
from steadysum.ops.statistics import linear_max_sum
from steadysum.settings import Settings
from steadysum.timing import ROUNDS, Ratio, measure_in_turn, median_ratio

__all__ = ["EMULATED_PLACES", "NATIVE_SHAPES", "CleanCost", "EmulatedPlace", "emulated_cost", "native_cost"]


class EmulatedPlace(NamedTuple):
    """Where clean calls are timed on the emulated device."""

    what: str
    shape: Shape
    cores: int
    geometry: Geometry
    calls: int  # of each device; with no load and no fault, times hardly differ


LM_HEAD: Final = Shape(1024, 1024, 32000)
EMULATED_PLACES: Final = (
    EmulatedPlace("LM head", LM_HEAD, CORES, VENDOR, 2),
    EmulatedPlace("the report's shape", FIELD_SHAPE, CORES, VENDOR, 11),
    EmulatedPlace("the campaign's shape", faults.SHAPE, faults.CORES, faults.TILE, 21),
)
NATIVE_SHAPES: Final = (("LM head", LM_HEAD), ("the report's shape", FIELD_SHAPE))


class CleanCost(NamedTuple):
    """Median time of clean calls over that of the baseline's."""

    device: str  # "emulated" or "native"
    subject: str  # the profile, or how the kernel verifies
    what: str
    shape: Shape
    ratio: Ratio
    rounds: int
    seconds: float  # median, of the subject
    baseline: float  # median


def emulated_cost(subject: str, settings: Settings, place: EmulatedPlace, watcher: Watcher) -> CleanCost | None:
    """Clean calls under these settings over clean calls under policy legacy; None: stopped before any."""
    watcher.begins(f"{subject}, clean, {place.what}", place.calls)
    operands = [random_operands(place.shape, torch.float32, seed) for seed in (0, 1)]
    devices = [
        Device(place.cores, each, geometry=place.geometry, keeps_log=False)
        for each in (settings, Settings(allreduce_policy=0))
    ]
    times: list[list[float]] = [[], []]
    for number in range(place.calls):
        if watcher.stopped():
            break
        for device, found in zip(devices, times, strict=True):
            make_call(device, operands[number % 2])
            found.append(seconds_of(device))
        watcher.progressed()
    if not times[0]:
        return None
    return _cost("emulated", subject, place.what, place.shape, times)


def native_cost(subject: str, what: str, shape: Shape, watcher: Watcher, rounds: int = ROUNDS) -> CleanCost | None:
    """Clean verified calls over clean calls that aren't, by the shipped extension; None: stopped before any."""
    operands = random_operands(shape, torch.float32, 0)

    def call(verify: str) -> None:
        linear_max_sum(operands.input, operands.weight, kernel="native", verify=verify)

    def planned(calls: int) -> None:
        watcher.begins(f"{subject}, clean, {what}", calls)

    found = measure_in_turn(
        {name: partial(call, name) for name in (subject, "off")},
        rounds,
        watcher.stopped,
        watcher.progressed,
        planned,
    )
    if not found.rounds:
        return None
    return _cost("native", subject, what, shape, [list(found.seconds[name]) for name in (subject, "off")])


def _cost(device: str, subject: str, what: str, shape: Shape, times: list[list[float]]) -> CleanCost:
    own, base = times
    ratio = median_ratio([one / other for one, other in zip(own, base, strict=True)])
    medians = [float(torch.tensor(each, dtype=torch.float64).median()) for each in times]
    return CleanCost(device, subject, what, shape, ratio, len(own), *medians)
