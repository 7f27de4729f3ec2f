"""Litmus tests: tiny programs over a memory of two integers, x and y, and every result that they can have."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from steadysum.sync.actions import Add, Await, Flag, Place, Program, Read, Signal, Write, word
from steadysum.sync.exhaustive import ExhaustiveRunner
from steadysum.sync.machine import Machine
from steadysum.sync.memory import Memory, Span
from steadysum.sync.virtual import Launch
from steadysum.trace.events import Unit

PLACE = Place(1, 0, 0, "litmus")
FLAG = Flag("written", 0, "core")
X, Y = Span("x", 0, 1), Span("y", 0, 1)


def write(*pairs: tuple[Span, Any]) -> Write:
    return Write(PLACE, tuple(word(span, np.atleast_1d(np.asarray(value, dtype=np.int64))) for span, value in pairs))


def read(*spans: Span) -> Read:
    return Read(PLACE, spans)


def add(span: Span, value: int) -> Add:
    return Add(PLACE, word(span, np.array([value], dtype=np.int64)))


def signal() -> Signal:
    return Signal(PLACE, FLAG, 1)


def await_flag(timeout: float | None = None) -> Await:
    return Await(PLACE, (FLAG,), 1, timeout)


def launch(*programs: Callable[[], Program], regions: Sequence[tuple[str, Any, int]] = ()) -> Launch:
    memory = Memory(regions or [("x", np.int64, 1), ("y", np.int64, 1)])
    return Launch(memory, lambda: {Unit(core, "core"): program() for core, program in enumerate(programs)}, retries=1)


def reachable(*programs: Callable[[], Program], regions: Sequence[tuple[str, Any, int]] = ()) -> set[tuple[Any, ...]]:
    """Every tuple of the programs' results; the reduced exploration must find what the whole one finds."""
    found = [
        ExhaustiveRunner(reduced=reduced, merges=merges).explore(launch(*programs, regions=regions))
        for reduced in (True, False)
        for merges in (True, False)
    ]
    assert all(exploration.complete for exploration in found)
    assert len({exploration.outcomes for exploration in found}) == 1
    return {
        tuple(ast.literal_eval(unit.removeprefix("returned ")) for unit in outcome.units)
        for outcome in found[0].outcomes
    }


def reachable_naively(make: Callable[[], Launch]) -> set[tuple[Any, ...]]:
    """The same by running every sequence of choices from its start: no saved state, nothing merged, nothing reduced."""
    found, sequences = set(), [()]
    while sequences:
        sequence = sequences.pop()
        began = make()
        machine = Machine(began.memory, began.programs(), retries=began.retries, log=False)
        for choice in sequence:
            machine.take(choice)
        if machine.ended:
            found.add(tuple(machine.results.get(unit) for unit in machine.units))
        else:
            sequences += [(*sequence, choice) for choice in machine.choices()]
    return found
