"""The collector is held off while a run records, and only then; whoever switched it off keeps it off."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from steadysum.sync.actions import Compute, Place, Program
from steadysum.sync.collector import collector_held_off
from steadysum.sync.memory import Memory
from steadysum.sync.virtual import SCHEDULERS, Launch, VirtualRunner
from steadysum.trace.events import Unit


@pytest.fixture(autouse=True)
def _collector_as_before() -> Iterator[None]:
    before = gc.isenabled()
    yield
    (gc.enable if before else gc.disable)()


def _launch(seen: list[bool]) -> Launch:
    def program() -> Program:
        yield Compute(Place(1, 0, 0, "look"), lambda: seen.append(gc.isenabled()), 1.0, "look")

    return Launch(Memory({}), lambda: {Unit(0, "v0"): program()})


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_run_is_not_interrupted_by_the_collector_which_comes_back_after_it(scheduler: str) -> None:
    seen: list[bool] = []
    gc.enable()
    VirtualRunner(0, scheduler).run(_launch(seen))
    assert seen == [False]
    assert gc.isenabled()


def test_a_collector_that_the_caller_switched_off_stays_off() -> None:
    gc.disable()
    VirtualRunner(0).run(_launch([]))
    assert not gc.isenabled()


def test_the_collector_comes_back_after_an_error() -> None:
    gc.enable()
    with pytest.raises(ZeroDivisionError), collector_held_off():
        _ = 1 / 0
    assert gc.isenabled()
