"""Tests of what is collected over an emulation's calls in bounded memory: waits, and how deviations look."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steadysum.cores.grid import Geometry
from steadysum.diagnosis.emulation.judge import Judged, judge_call
from steadysum.diagnosis.emulation.pattern import Pattern
from steadysum.diagnosis.emulation.waits import SyncWaits
from steadysum.maxsum import MaxSum
from steadysum.sync.actions import Action, Barrier, Flag, Place
from steadysum.sync.machine import Happening
from steadysum.sync.schedule import Schedule
from steadysum.sync.virtual import Run

PLACE = Place(1, 2, 0, "P2 tiles")
FLAG = Flag("tiles", 0, "v0")
BARRIER = Barrier(PLACE, FLAG, (FLAG,), 1, None)
WIDTH = 2.0 ** (1 / 32)  # of a bucket


def run_of(waits: list[tuple[float, str]], action: Action = BARRIER) -> Run:
    log = tuple(Happening(0, action, 0.0, wait, outcome) for wait, outcome in waits)
    return Run({}, (), (), (), Schedule(()), (), log, 0.0)


@given(st.lists(st.floats(0.0, 1e9, allow_subnormal=False), min_size=1, max_size=300))
def test_a_percentile_is_the_exact_one_or_at_most_a_bucket_above(waits: list[float]) -> None:
    seen = SyncWaits()
    for wait in waits:
        seen.add(run_of([(wait, "ok")]))
    (found,) = seen.figures()
    ranked = sorted(waits)
    for share, value in ((0.5, found.p50), (0.9, found.p90), (0.99, found.p99), (0.999, found.p999)):
        exact = ranked[math.ceil(len(waits) * share) - 1]
        assert exact <= value <= exact * WIDTH * (1 + 1e-12)
    assert (found.count, found.largest) == (len(waits), max(waits))


def test_the_share_of_waits_that_ended_well_is_kept() -> None:
    seen = SyncWaits()
    seen.add(run_of([(1.0, "ok"), (2e6, "timeout"), (3.0, "ok")]))
    (found,) = seen.figures()
    assert (found.ok, found.count, found.point) == (2, 3, ("P2 tiles", "barrier", "tiles"))


def test_arrivals_are_no_waits() -> None:
    seen = SyncWaits()
    arrival = Happening(0, BARRIER, 0.0, 0.0, "ok", "arrive")
    seen.add(Run({}, (), (), (), Schedule(()), (), (arrival,), 0.0))
    assert seen.figures() == ()


# ---- how deviations look ---------------------------------------------------------------------------------------------

ROWS = 16  # two tiles' rows: half blocks of 4
EXPECTED = MaxSum(torch.zeros(ROWS), torch.full((ROWS,), 4.0))


def deviation(rows: list[int], *factors: float) -> Judged:
    """A call whose sums are off by these factors, in turn, in these rows."""
    sums = EXPECTED.sum_exp.clone()
    for position, row in enumerate(rows):
        sums[row] *= factors[position % len(factors)]
    return judge_call(EXPECTED, MaxSum(EXPECTED.max, sums))


def words(*calls: Judged) -> str:
    pattern = Pattern(Geometry(8, 16))
    for number, judged in enumerate(calls, start=1):
        pattern.add(number, judged)
    return "; ".join(pattern.words)


RIGHT = judge_call(EXPECTED, EXPECTED)


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        ([deviation([4, 5, 6, 7], 0.5)], "always low: a contribution is missing"),
        ([deviation([4, 5, 6, 7], 0.5)], "in whole groups of 4 rows"),
        ([deviation([3, 4, 5, 6], 0.5)], "not in whole groups of 4 rows"),
        ([deviation([0], 2.0), deviation([5], 3.0)], "always high"),
        ([deviation([0], 2.0), deviation([5], 0.3), deviation([5], 0.5)], "low in 2 and high in 1 of 3"),
        ([deviation([0], torch.nan)], "NaN in 1 of them"),
        ([RIGHT, deviation([0], 2.0)] * 4, "in every second call"),
    ],
)
def test_what_deviating_calls_have_in_common_is_said(calls: list[Judged], said: str) -> None:
    assert said in words(*calls)


def test_nothing_is_said_where_nothing_deviates_or_where_it_would_be_luck() -> None:
    assert words(RIGHT, RIGHT) == ""
    assert "every second call" not in words(*[RIGHT, deviation([0], 2.0)] * 3)
    assert "every second call" not in words(*[deviation([0], 2.0)] * 8)
