"""Programs for tests of faults: written as lists of actions, run with arms, and run again from the schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steadysum.cores.faults import Arm, Armed
from steadysum.sync.actions import Action, Place, Program
from steadysum.sync.memory import Memory, Span
from steadysum.sync.virtual import Launch, Run, VirtualRunner
from steadysum.trace.events import Unit

P2 = Place(1, 2, 0, "P2 tiles")
A, B = Unit(0, "v0"), Unit(1, "v0")
Regions = Sequence[tuple[str, Any, int]]


def place(epoch: int = 1, phase: int = 2, step: int = 0) -> Place:
    return Place(epoch, phase, step, ("P0 init", "P1 target", "P2 tiles", "P3 combine")[phase])


def play(actions: Sequence[Action]) -> Program:
    """A program that takes these actions, and gives back what each of them gave."""
    found = []
    for action in actions:
        found.append((yield action))
    return found


class Played(NamedTuple):
    results: dict[Unit, list[Any]]
    memory: Memory
    armed: Armed
    run: Run

    def bytes_of(self, region: str) -> list[int]:
        return self.memory.arrays[region].view(np.uint8).tolist()  # type: ignore[no-any-return]


def run(
    programs: Mapping[Unit, Sequence[Action]],
    regions: Regions,
    *arms: Arm,
    seed: int = 0,
    scheduler: str = "clock",
) -> Played:
    """One run of programs over a memory of zeros."""
    memory = Memory(regions)
    armed = Armed(arms, seed)
    launch = Launch(memory, lambda: {unit: play(actions) for unit, actions in programs.items()}, armed)
    done = VirtualRunner(seed, scheduler).run(launch)
    return Played(done.results, memory, armed, done)


def whole(memory: Memory, region: str) -> Span:
    return Span(region, 0, memory.regions[region].length)


def comparable(value: Any) -> Any:
    """What equals itself by its bits, in another run as well: for results and logs."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.tobytes()
    if isinstance(value, BaseException):
        return type(value).__name__, str(value)
    if isinstance(value, Mapping):
        return {str(key): comparable(entry) for key, entry in value.items()}
    if isinstance(value, tuple | list):
        return [comparable(entry) for entry in value]
    if hasattr(value, "own"):  # an entry of a store buffer
        return comparable((value.number, value.span, value.own))
    return None if callable(value) else value


def facts(done: Run, armed: Armed, memory: Memory) -> dict[str, Any]:
    """All of a run but its times: a replay has no clock."""
    log = [(entry.unit, entry.action, entry.outcome, entry.what, entry.detail) for entry in done.log]
    return {
        "results": comparable(done.results),
        "errors": comparable(done.errors),
        "dead": done.dead,
        "stuck": done.stuck,
        "schedule": str(done.schedule),
        "log": comparable(log),
        "memory": memory.arena.tobytes(),
        "counts": armed.counts(),
        "offers": armed.offers(),
    }


def run_and_replay(
    launch: Callable[[Armed], Launch], arms: Sequence[Arm], seed: int, scheduler: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The facts of a run, and those of its replay with faults that are armed anew."""
    drawn, scripted = Armed(arms, seed), Armed(arms, seed)
    first, second = launch(drawn), launch(scripted)
    done = VirtualRunner(seed, scheduler).run(first)
    again = VirtualRunner().replay(second, done.schedule)
    return facts(done, drawn, first.memory), facts(again, scripted, second.memory)


def floats(*values: float) -> NDArray[np.float32]:
    return np.array(values, dtype=np.float32)
