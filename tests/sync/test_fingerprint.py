"""Tests of steadysum.sync.fingerprint: equal for equal runs, other for any difference that it covers."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from steadysum.cores.device import Device
from steadysum.cores.grid import Geometry
from steadysum.settings import Settings
from steadysum.sync.actions import Await, Barrier, Compute, Flag, Note, Place, Read, Signal
from steadysum.sync.fingerprint import Fingerprint, fingerprint
from steadysum.sync.machine import Happening
from steadysum.sync.memory import Span
from steadysum.sync.schedule import Schedule
from steadysum.sync.virtual import Run
from steadysum.trace.events import Unit

PLACE = Place(1, 2, 3, "P2 tiles")
ONE, TWO = Flag("tiles", 0, "v0"), Flag("tiles", 1, "v0")
UNITS = (Unit(0, "v0"), Unit(1, "v0"))


def of(*log: Happening) -> Fingerprint:
    return fingerprint([Run({}, (), (), (), Schedule(()), UNITS, log, 0.0)])


def done(
    action: Any, unit: int = 0, begin: float = 0.0, end: float = 1.0, outcome: str = "ok", **rest: Any
) -> Happening:
    return Happening(unit, action, begin, end, outcome, **rest)


READ = Read(PLACE, (Span("max", 0, 4),))
DIFFERENT = [
    (done(READ), done(READ, unit=1)),
    (done(READ), done(READ, outcome="stale")),
    (done(READ), done(Read(PLACE, (Span("max", 0, 5),)))),
    (done(READ), done(Read(PLACE, (Span("sum", 0, 4),)))),
    (done(READ), done(Read(PLACE._replace(epoch=2), READ.spans))),
    (done(READ), done(Read(PLACE._replace(step=4), READ.spans))),
    (done(Signal(PLACE, ONE, 1)), done(Signal(PLACE, ONE, 2))),
    (done(Signal(PLACE, ONE, 1)), done(Signal(PLACE, TWO, 1))),
    (done(Await(PLACE, (ONE,), 1, None)), done(Await(PLACE, (ONE, TWO), 1, None))),
    (done(Await(PLACE, (ONE,), 1, None), detail=(1,)), done(Await(PLACE, (ONE,), 1, None), detail=(2,))),
    (done(Barrier(PLACE, ONE, (ONE, TWO), 1, None)), done(Barrier(PLACE, TWO, (ONE, TWO), 1, None))),
    (done(Note(PLACE, "retry", "timeout", "tiles", 0)), done(Note(PLACE, "retry", "timeout", "tiles", 1))),
    (done(Compute(PLACE, dict, 1.0, "merge")), done(Compute(PLACE, dict, 1.0, "combine"))),
    (done(None, what="fault", detail="delay of 1 us"), done(None, what="fault", detail="delay of 2 us")),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_any_difference_in_what_happened_changes_it(one: Happening, other: Happening) -> None:
    assert of(one) == of(one)
    assert of(one).events != of(other).events
    assert of(one).timed != of(other).timed


def test_the_order_counts() -> None:
    first, second = done(READ), done(Signal(PLACE, ONE, 1), unit=1)
    assert of(first, second).events != of(second, first).events


def test_times_count_in_the_one_and_not_in_the_other() -> None:
    early, late = done(READ), done(READ, begin=0.5, end=1.5)
    assert of(early).events == of(late).events
    assert of(early).timed != of(late).timed


PROGRAM = """
import torch
from steadysum.cores.device import Device
from steadysum.cores.grid import Geometry
from steadysum.settings import Settings
from steadysum.sync.fingerprint import fingerprint
device = Device(3, Settings(allreduce_policy=1), geometry=Geometry(2, 2), seed=5)
device.linear_max_sum(torch.ones(4, 2), torch.ones(4, 2))
print(*fingerprint(device.last.runs))
"""


def test_it_is_the_same_in_another_process() -> None:
    device = Device(3, Settings(allreduce_policy=1), geometry=Geometry(2, 2), seed=5)
    device.linear_max_sum(torch.ones(4, 2), torch.ones(4, 2))
    assert device.last is not None
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=True)
    assert tuple(done.stdout.split()) == fingerprint(device.last.runs)
