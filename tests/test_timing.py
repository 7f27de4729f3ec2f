"""Tests of steadysum.timing: the rule by which the project measures."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import numpy as np
import pytest

from steadysum import timing
from steadysum.timing import ROUNDS, Timings, measure_in_turn, median_ratio


def test_contenders_run_in_turn_in_alternating_order_after_one_untimed_call() -> None:
    called: list[str] = []
    timings = measure_in_turn({name: lambda name=name: called.append(name) for name in "abc"}, rounds=3)
    assert "".join(called) == "abc" + "abc" + "cba" + "abc"
    assert timings.rounds == 3


def test_the_number_of_rounds_follows_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[int] = []
    assert measure_in_turn({"quick": lambda: None}, planned=planned.append).rounds == ROUNDS
    monkeypatch.setattr(timing, "SLOW_SECONDS", 0.001)
    assert measure_in_turn({"slow": lambda: time.sleep(0.002)}, planned=planned.append).rounds == 7
    assert planned == [21, 7]


def test_a_stopped_measurement_keeps_its_whole_rounds() -> None:
    asked = itertools.count()
    timings = measure_in_turn({"a": lambda: None, "b": lambda: None}, 9, stopped=lambda: next(asked) == 4)
    assert timings.rounds == 4
    assert {len(times) for times in timings.seconds.values()} == {4}


def test_another_clock_can_time_the_calls() -> None:
    called: list[str] = []

    def clock(call: Callable[[], object]) -> float:
        call()
        return float(len(called))

    timings = measure_in_turn({"a": lambda: called.append("a"), "b": lambda: called.append("b")}, 2, clock=clock)
    assert "".join(called) == "ab" + "ab" + "ba"
    assert timings.seconds == {"a": (3.0, 6.0), "b": (4.0, 5.0)}


def test_a_ratio_is_taken_round_by_round_so_that_a_slow_machine_cancels_out() -> None:
    pace = np.linspace(1.0, 3.0, 21)  # the machine slows down to a third
    timings = Timings({"base": tuple(pace), "own": tuple(1.1 * pace)})
    assert timings.ratio("own", "base") == pytest.approx((1.1, 1.1, 1.1))


def test_the_interval_covers_the_true_median_as_often_as_it_says() -> None:
    generator = np.random.default_rng(0)
    covered = 0
    for seed in range(200):
        ratio = median_ratio(generator.lognormal(0.0, 0.05, 21), seed)
        covered += ratio.low <= 1.0 <= ratio.high
    assert covered >= 180  # 95 % of 200, less three standard deviations of the count


def test_the_interval_lies_around_the_median() -> None:
    ratio = median_ratio([0.9, 1.0, 1.0, 1.1, 5.0])
    assert ratio.low <= ratio.median == 1.0 <= ratio.high
