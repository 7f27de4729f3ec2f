"""Calls of the emulated device with faults, one at most in a call, judged by the bits of the fault-free call.

Times are the device's own, of its virtual clock. Devices live for some calls, so that what earlier calls leave in
memory is there to be read. Not here: which faults (faults.py), and the counts (campaign.py).
"""

from __future__ import annotations

import random
from typing import Final

from steadysum.cores.arm import Arm
from steadysum.cores.device import Device
from steadysum.diagnosis.emulation.judge import judge_call, make_call
from steadysum.diagnosis.profiles.campaign import Answer
from steadysum.diagnosis.profiles.faults import CORES, TILE, Armory, Place, operand_sets, rearmed
from steadysum.diagnosis.subject import Operands
from steadysum.maxsum import MaxSum
from steadysum.settings import Settings

__all__ = ["EmulatedCalls", "seconds_of"]

CALLS_OF_A_DEVICE: Final = 50  # each arm is asked at each opportunity: with many on a device, calls take longer
_MICROSECOND: Final = 1e-6


class EmulatedCalls:
    """Makes calls with faults.

    Args:
        settings: of the device.
        armory: the faults.
        rate: the share of calls, repeats among them, in which one is armed.
        seed: of all that is drawn.
    """

    def __init__(self, settings: Settings, armory: Armory, rate: float, seed: int) -> None:
        self._settings = settings
        self._armory = armory
        self._rate = rate
        self._seed = seed
        self._devices = 0
        self._sets = operand_sets(seed)
        clean = Device(CORES, settings, geometry=TILE, keeps_log=False)
        self._expected = [_result(clean, operands) for operands in self._sets]
        self._unguarded = _clean_seconds(self._sets)
        self._device, self._armed = self._next_device(0)

    def answer(self, number: int) -> Answer:
        """The call of this number, or its repeat."""
        if self._device.calls > CALLS_OF_A_DEVICE:
            self._device, self._armed = self._next_device(number)
        device = self._device
        seen = make_call(device, self._sets[number % 2])
        judged = judge_call(self._expected[number % 2], seen)
        armed = self._armed.get(device.calls)
        acted = armed is not None and device.fault_counts()[str(armed[0])] > 0
        name = armed[1].scenario.name if armed is not None and acted else None
        return Answer(judged.outcome, seconds_of(device), name, armed is not None and not acted)

    def clean_seconds(self, number: int) -> float:
        """What the call takes on a device with policy legacy and no fault."""
        return self._unguarded[number % 2]

    def _next_device(self, number: int) -> tuple[Device, dict[int, tuple[Arm, Place]]]:
        """A device after a first call, with other operands than the next one's, and what is armed in which call."""
        draw = random.Random(f"{self._seed}/{self._devices}/{self._rate}")
        self._devices += 1
        armed: dict[int, tuple[Arm, Place]] = {}
        for call in range(2, CALLS_OF_A_DEVICE + 2):
            if draw.random() < self._rate:
                place = self._armory.draw(draw)
                armed[call] = (rearmed(place, call), place)
        arms = tuple(arm for arm, _ in armed.values())
        seed = draw.randrange(2**31)
        device = Device(CORES, self._settings, arms, seed=seed, geometry=TILE, keeps_log=False)
        make_call(device, self._sets[1 - number % 2])
        return device, armed


def seconds_of(device: Device) -> float:
    """What the last call took on the virtual clock, all of its launches together."""
    assert device.last is not None
    return sum(run.time for run in device.last.runs) * _MICROSECOND


def _clean_seconds(sets: tuple[Operands, ...]) -> list[float]:
    device = Device(CORES, Settings(allreduce_policy=0), geometry=TILE, keeps_log=False)
    found = []
    for operands in sets:
        _result(device, operands)
        found.append(seconds_of(device))
    return found


def _result(device: Device, operands: Operands) -> MaxSum:
    seen = make_call(device, operands)
    assert isinstance(seen, MaxSum)
    return seen
