"""Tests of steadysum.cores.load: a quiet device at level 0, and stalls as often and as long as they are meant to be."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from scipy.stats import binom, norm

from steadysum.cores.load import Load
from steadysum.errors import RangeError
from steadysum.sync.actions import Action, Compute, Fence, Flag, Read, Signal
from steadysum.sync.exchange_model import Exchange
from steadysum.sync.policies import ENHANCED
from steadysum.sync.timing import QUIET
from steadysum.sync.virtual import VirtualRunner

from .faulty import P2, A

WORK = Compute(P2, lambda: None, 5.0, "product")
OTHERS: tuple[Action, ...] = (Read(P2, ()), Fence(P2), Signal(P2, Flag("ready", 0, "v0"), 1))
WAIT = 2e6  # microseconds of sync_wait_timeout
# The middle of the field report's 5-10 % of calls asks for so many lethal stalls in each.
LETHAL = 0.076


def outlasts(waits: int) -> float:
    """The share of stalls that are longer: of a median of 3 s and a sigma of 0.6."""
    return float(norm.sf(math.log(waits * WAIT / 3e6) / 0.6))


# Of 16 tiles: 4 pieces of work of vector units each, after P0 and P1; 1 of a cube, before: three waits to outlast.
CHANCES = 16 * (4 * outlasts(1) + outlasts(3))


def stalls(level: float, pieces: int, seed: int = 0) -> list[float]:
    load, draw = Load(level), random.Random(seed)
    return [length for _ in range(pieces) if (length := load.stall(A, WORK, draw)) > 0.0]


def test_level_0_is_the_quiet_device_exactly() -> None:
    draw = random.Random(1)
    before = draw.getstate()
    load = Load(0.0)
    for action in (WORK, *OTHERS):
        assert load.duration(A, action, draw) == QUIET.duration(A, action, draw)
        assert load.stall(A, action, draw) == 0.0
    assert draw.getstate() == before  # nothing is drawn: all else that is drawn stays as it is
    model = Exchange(3, 2, ENHANCED)
    quiet, loaded = (VirtualRunner(2).run(model.launch(timing=timing)) for timing in (QUIET, load))
    assert (quiet.schedule, quiet.time, quiet.results) == (loaded.schedule, loaded.time, loaded.results)


def test_a_load_touches_own_work_alone() -> None:
    load, draw = Load(100), random.Random(1)
    for action in OTHERS:
        for _ in range(200):
            assert load.stall(A, action, draw) == 0.0
            assert load.duration(A, action, draw) == QUIET.duration(A, action, draw)
    assert load.duration(A, WORK, draw) != WORK.cost


@pytest.mark.parametrize("level", [0.5, 1, 4])
def test_stalls_are_as_many_as_the_field_report_asks(level: float) -> None:
    pieces = 100_000
    low, high = binom.interval(0.999, pieces, level * LETHAL / CHANCES)
    assert 0.995 * low < len(stalls(level, pieces)) < 1.005 * high  # the constant has three digits


def test_most_stalls_are_longer_than_a_wait_and_some_are_not() -> None:
    found = stalls(100, 100_000)
    for waits in (1, 3):
        low, high = binom.interval(0.999999, len(found), outlasts(waits))
        assert low <= sum(length > waits * WAIT for length in found) <= high


@pytest.mark.parametrize("level", [0.25, 1, 4])
def test_jitter_leaves_the_median_and_grows_with_the_level(level: float) -> None:
    draw = random.Random(3)
    logs = [math.log(Load(level).duration(A, WORK, draw) / WORK.cost) for _ in range(20_000)]
    mean = sum(logs) / len(logs)
    spread = math.sqrt(sum((value - mean) ** 2 for value in logs) / len(logs))
    assert spread == pytest.approx(0.2 * math.sqrt(level), rel=0.05)
    assert abs(mean) < 5 * spread / math.sqrt(len(logs))


@pytest.mark.parametrize("level", [-0.1, 100.1, math.nan, math.inf, True, "1", None])
def test_a_level_that_is_none_is_refused(level: Any) -> None:
    with pytest.raises(RangeError, match=r"load level: got .*; allowed: a number from 0 to 100"):
        Load(level)
