"""Small programs for the tests of the log and of hazards: lists of actions, run in a written order or in drawn ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from steadysum.sync.actions import Action, Add, Await, Barrier, Fence, Flag, Place, Program, Read, Signal, Word, Write
from steadysum.sync.hazards import Hazards, find_hazards
from steadysum.sync.interference import Interference
from steadysum.sync.log import events
from steadysum.sync.memory import Memory, Span
from steadysum.sync.policies import Parts, Party, Waits, exchange
from steadysum.sync.records import Slot
from steadysum.sync.schedule import parse_schedule
from steadysum.sync.virtual import SCHEDULERS, Launch, Run, VirtualRunner
from steadysum.trace.events import Unit

ZERO, ONE, TWO = (Unit(core, "core") for core in range(3))
LINE_OF_FLOATS = 16
Actions = Mapping[Unit, Sequence[Action]]


def at(step: int, phase: str = "phase", epoch: int = 1) -> Place:
    return Place(epoch, 0, step, phase)


def write(place: Place, start: int = 0, stop: int = 16, region: str = "slots") -> Write:
    return Write(place, (Word(Span(region, start, stop), np.full(stop - start, 1 + place.step, np.float32)),))


def read(place: Place, start: int = 0, stop: int = 16) -> Read:
    return Read(place, (Span("slots", start, stop),))


def add(place: Place, start: int = 0, stop: int = 16) -> Add:
    return Add(place, Word(Span("slots", start, stop), np.ones(stop - start, np.float32)))


def fence(place: Place) -> Fence:
    return Fence(place)


def signal(place: Place, name: str, unit: Unit, value: int = 1) -> Signal:
    return Signal(place, Flag(name, unit.core, unit.role), value)


def wait(place: Place, name: str, unit: Unit, value: int = 1, timeout: float | None = None) -> Await:
    return Await(place, (Flag(name, unit.core, unit.role),), value, timeout)


def barrier(place: Place, own: Unit, members: Sequence[Unit], timeout: float | None = None) -> Barrier:
    flags = {unit: Flag("barrier", unit.core, unit.role) for unit in members}
    return Barrier(place, flags[own], tuple(flags.values()), 1, timeout)


def launch(actions: Actions, interference: Interference | None = None) -> Launch:
    """The actions as programs, over 64 fp32 slots: four lines."""

    def program(listed: Sequence[Action]) -> Program:
        for action in listed:  # noqa: UP028 (a list takes nothing that is sent to it)
            yield action

    memory = Memory([("slots", np.float32, 4 * LINE_OF_FLOATS)])
    return Launch(memory, lambda: {unit: program(listed) for unit, listed in actions.items()}, interference)


def in_order(actions: Actions, schedule: str, interference: Interference | None = None) -> Hazards:
    """The hazards of one written order."""
    return find_hazards(events(VirtualRunner().replay(launch(actions, interference), parse_schedule(schedule))))


def in_drawn_orders(actions: Actions, seeds: int = 30) -> list[Hazards]:
    """The hazards of many runs, on the clock and in drawn orders."""
    runs = (VirtualRunner(seed, name).run(launch(actions)) for name in SCHEDULERS for seed in range(seeds))
    return [find_hazards(events(run)) for run in runs]


# ---- the exchange protocol, over integers: every set of partials has a sum of its own -------------------------------

CORES, CALLS = 3, 2


def partial(core: int, epoch: int) -> int:
    return 1 << (core + CORES * (epoch - 1))


def right_result(epoch: int) -> int:
    return sum(partial(core, epoch) for core in range(CORES))


def exchange_run(parts: Parts, seed: int, scheduler: str) -> Run:
    """Two calls of the exchange, one after the other in each core's program; results are lists, by call."""
    units = tuple(Unit(core, "core") for core in range(CORES))
    slots = [Slot(c, Span("stamp", 8 * c, 8 * c + 8), (Span("value", 8 * c, 8 * c + 1),)) for c in range(CORES)]
    memory = Memory([("stamp", np.int64, 8 * CORES), ("value", np.int64, 8 * CORES)])

    def program(unit: Unit) -> Program:
        results = []
        for epoch in range(1, CALLS + 1):
            party = Party(unit, units, epoch, parts, Waits(timeout=2e6, heartbeat=1e6, retries=3))
            payload = (np.array([partial(unit.core, epoch)]),)
            results.append((yield from exchange(party, slots, payload, _sum)))
        return results

    return VirtualRunner(seed, scheduler).run(Launch(memory, lambda: {unit: program(unit) for unit in units}))


def _sum(payloads: Sequence[tuple[Any, ...]]) -> int:
    return sum(int(payload[0][0]) for payload in payloads)
