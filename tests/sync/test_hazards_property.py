"""Random programs, held against the definition of order: paths through the program's own edges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from steadysum.sync.actions import Action, Add, Program, Word, Write
from steadysum.sync.hazards import Hazards, find_hazards
from steadysum.sync.log import events
from steadysum.sync.memory import Memory, Span
from steadysum.sync.virtual import SCHEDULERS, Launch, VirtualRunner
from steadysum.trace.events import Unit

from .hazard_programs import add, at, fence, launch, read, signal, wait, write

UNITS = tuple(Unit(core, "core") for core in range(3))
_MAKE = {"read": read, "write": write, "add": add}


class Step(NamedTuple):
    """One access of a plan. A plan's steps are meant in its order, and each is a phase of its own."""

    unit: int
    action: str  # "read", "write" or "add"
    line: int
    fenced: bool  # whether a fence follows


Edge = tuple[int, int]  # a signal after the first step, which the second one's unit awaits before it


def steps(fenced: st.SearchStrategy[bool]) -> st.SearchStrategy[Step]:
    return st.builds(Step, st.integers(0, 2), st.sampled_from(tuple(_MAKE)), st.integers(0, 1), fenced)


plans = st.lists(steps(st.just(True)), min_size=2, max_size=9)  # every access is fenced
mixed = st.lists(steps(st.booleans()), max_size=9)
runners = st.builds(VirtualRunner, st.integers(0, 999), st.sampled_from(SCHEDULERS))


def conflicts(plan: list[Step]) -> list[Edge]:
    """Pairs that must be ordered: the same line, and neither two reads nor two adds."""
    return [
        (i, j)
        for j, second in enumerate(plan)
        for i, first in enumerate(plan[:j])
        if first.line == second.line
        and (first.action, second.action) not in (("read", "read"), ("add", "add"))
        and (first.unit != second.unit or (first.action, second.action) == ("write", "add"))
    ]


def across(plan: list[Step]) -> list[Edge]:
    return [(i, j) for i, j in conflicts(plan) if plan[i].unit != plan[j].unit]


def programs(plan: list[Step], edges: list[Edge], ties: int) -> dict[Unit, list[Action]]:
    listed: dict[Unit, list[Action]] = {unit: [] for unit in UNITS}
    for number, step in enumerate(plan):
        place, unit = at(number // ties, str(number)), UNITS[step.unit]
        actions = listed[unit]
        actions += [wait(place, f"{i}-{j}", UNITS[plan[i].unit]) for i, j in edges if j == number]
        actions.append(_MAKE[step.action](place, 16 * step.line, 16 * step.line + 16))
        if step.fenced:
            actions.append(fence(place))
        actions += [signal(place, f"{i}-{j}", unit) for i, j in edges if i == number]
    return listed


def unordered(plan: list[Step], edges: list[Edge]) -> set[Edge]:
    """The conflicting pairs without a path: from the first access or, of a write, from a fence of its unit after it."""

    def reached(starts: set[int]) -> set[int]:
        """Steps that begin after the end of one of these, by programs and edges."""
        found: set[int] = set()
        for j, step in enumerate(plan):
            before = starts | found
            if any(plan[i].unit == step.unit and i < j for i in before) or any((i, j) in edges for i in before):
                found.add(j)
        return found

    missing = set()
    for i, j in conflicts(plan):
        starts = {i}
        if plan[i].action == "write":
            starts = {k for k, step in enumerate(plan) if k >= i and step.unit == plan[i].unit and step.fenced}
        if j not in reached(starts):
            missing.add((i, j))
    return missing


def found_pairs(hazards: Hazards) -> set[Edge]:
    """The steps of the pairs found; of a pair that no place orders, in the plan's order."""
    pairs = {(int(hazard.first.phase), int(hazard.second.phase)): hazard for hazard in hazards.found}
    return {(i, j) if hazard.meant else (min(i, j), max(i, j)) for (i, j), hazard in pairs.items()}


def hazards_of(plan: list[Step], edges: list[Edge], runner: VirtualRunner, ties: int = 1) -> Hazards:
    run = runner.run(launch(programs(plan, edges, ties)))
    assert run.stuck == ()
    return find_hazards(events(run))


@given(plan=plans, runner=runners)
def test_a_program_whose_units_meet_only_by_fence_signal_and_await_has_no_hazard(
    plan: list[Step], runner: VirtualRunner
) -> None:
    assert not hazards_of(plan, across(plan), runner)


@given(plan=plans.filter(across), runner=runners, data=st.data())
def test_an_edge_that_is_missing_is_found_where_nothing_else_orders_its_accesses(
    plan: list[Step], runner: VirtualRunner, data: st.DataObject
) -> None:
    edges = across(plan)
    gone = edges.pop(data.draw(st.integers(0, len(edges) - 1)))
    assert found_pairs(hazards_of(plan, edges, runner)) == unordered(plan, edges)
    assert unordered(plan, edges) <= {gone}


@given(plan=plans.filter(conflicts), runner=runners, data=st.data())
def test_a_fence_that_is_missing_is_found_where_nothing_else_publishes_its_write(
    plan: list[Step], runner: VirtualRunner, data: st.DataObject
) -> None:
    number = data.draw(st.integers(0, len(plan) - 1))
    plan = [step._replace(fenced=step.fenced and k != number) for k, step in enumerate(plan)]
    check(plan, across(plan), runner)


def check(plan: list[Step], edges: list[Edge], runner: VirtualRunner, ties: int = 1) -> None:
    """Reports are of unordered pairs only, and there is one exactly if there is such a pair.

    So many steps in a row have equal places: nothing is meant among them, but edges may order them.
    """
    pairs, missing = found_pairs(hazards_of(plan, edges, runner, ties)), unordered(plan, edges)
    assert pairs <= missing
    assert bool(pairs) == bool(missing)


@given(plan=mixed, runner=runners, data=st.data())
def test_there_is_a_report_exactly_if_there_is_an_unordered_pair(
    plan: list[Step], runner: VirtualRunner, data: st.DataObject
) -> None:
    check(plan, [edge for edge in across(plan) if data.draw(st.booleans())], runner, data.draw(st.integers(1, 3)))


SPANS = ((0, 16), (0, 4), (4, 12), (8, 16), (16, 32), (12, 20))  # whole lines, parts of one, and across two


class Access(NamedTuple):
    """One access of a plan whose values count."""

    unit: int
    action: str
    span: tuple[int, int]
    fenced: bool
    told: tuple[int, ...]  # units that await a signal after it, before their next access


accesses = st.builds(
    Access,
    *(st.integers(0, 2), st.sampled_from(tuple(_MAKE)), st.sampled_from(SPANS), st.booleans()),
    st.lists(st.integers(0, 2), max_size=2, unique=True).map(tuple),
)


def recording(plan: list[Access]) -> Callable[[], dict[Unit, Program]]:
    """The plan as programs whose results are what their reads gave, by number of the access. Each value has a bit."""

    def program(own: int) -> Program:
        found = {}
        awaited: list[tuple[int, int]] = []  # access and its unit
        for number, (unit, action, (start, stop), fenced, told) in enumerate(plan):
            place = at(number)
            if unit == own:
                for signalled, teller in awaited:
                    yield wait(place, f"{signalled}", UNITS[teller])
                awaited = []
                word = Word(Span("slots", start, stop), np.full(stop - start, 2.0**number, np.float32))
                if action == "read":
                    (found[number],) = yield read(place, start, stop)
                else:
                    yield Write(place, (word,)) if action == "write" else Add(place, word)
                if fenced:
                    yield fence(place)
                if told:
                    yield signal(place, f"{number}", UNITS[own])
            elif own in told:
                awaited.append((number, unit))
        return found

    return lambda: {UNITS[own]: program(own) for own in range(3)}


def one_by_one(plan: list[Access]) -> tuple[dict[int, NDArray[Any]], NDArray[Any]]:
    """What each read gives, and what memory holds in the end, where each access waits for the one before it."""
    memory, found = np.zeros(64, np.float32), {}
    for number, (_, action, (start, stop), _, _) in enumerate(plan):
        if action == "read":
            found[number] = memory[start:stop].copy()
        else:
            memory[start:stop] = 2.0**number + (memory[start:stop] if action == "add" else 0.0)
    return found, memory


def check_values(plan: list[Access], runner: VirtualRunner) -> None:
    memory = Memory([("slots", np.float32, 64)])
    run = runner.run(Launch(memory, recording(plan)))
    assert run.stuck == ()
    if find_hazards(events(run)).manifest:
        return
    expected, end = one_by_one(plan)
    found = {number: values for results in run.results.values() for number, values in results.items()}
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[number], expected[number]) for number in expected)
    assert np.array_equal(memory.arrays["slots"], end)


@given(plan=st.lists(accesses, min_size=2, max_size=9), runner=runners)
def test_a_run_without_a_manifest_hazard_has_the_values_of_the_order_that_is_meant(
    plan: list[Access], runner: VirtualRunner
) -> None:
    check_values(plan, runner)


@pytest.mark.soak
@settings(max_examples=20_000)
@given(plan=st.lists(accesses, min_size=2, max_size=9), runner=runners)
def test_a_run_without_a_manifest_hazard_has_the_values_that_are_meant_in_many_programs(
    plan: list[Access], runner: VirtualRunner
) -> None:
    check_values(plan, runner)


@pytest.mark.soak
@settings(max_examples=20_000)
@given(plan=mixed, runner=runners, data=st.data())
def test_there_is_a_report_exactly_if_there_is_an_unordered_pair_in_many_programs(
    plan: list[Step], runner: VirtualRunner, data: st.DataObject
) -> None:
    check(plan, [edge for edge in across(plan) if data.draw(st.booleans())], runner, data.draw(st.integers(1, 3)))
