"""Tests of steadysum.diagnosis.statistics.slowdown against samples that are really drawn."""

from __future__ import annotations

import numpy as np
import pytest

from steadysum.diagnosis.statistics.slowdown import LEAST_RUNS, Slowdown, _resampled_medians, slowdown
from steadysum.errors import RangeError


@pytest.mark.parametrize("runs", [6, 7, 20, 21])
def test_medians_are_distributed_as_those_of_samples_with_replacement(runs: int) -> None:
    times = np.random.default_rng(0).lognormal(0.0, 0.5, runs)
    drawn = np.median(np.random.default_rng(1).choice(times, (20_000, runs)), axis=1)
    ours = np.concatenate([_resampled_medians(times, np.random.default_rng(seed)) for seed in range(10)])
    assert ours.size == drawn.size
    # Two samples of one distribution: the largest distance of their distribution functions exceeds
    # 1.95 * sqrt(2 / size) once in a thousand times (Kolmogorov and Smirnov).
    places = np.unique(drawn)
    assert set(np.round(ours, 9)) <= set(np.round([(a + b) / 2 for a in times for b in times], 9))
    distance = np.abs(
        np.searchsorted(np.sort(ours), places + 1e-12) - np.searchsorted(np.sort(drawn), places + 1e-12)
    ).max()
    assert distance / drawn.size <= 1.95 * (2 / drawn.size) ** 0.5


@pytest.mark.parametrize("runs", [9, 21, 100])
def test_the_interval_covers_the_true_ratio_as_often_as_it_says(runs: int) -> None:
    generator = np.random.default_rng(5)
    covered = 0
    for seed in range(500):
        baseline, changed = generator.lognormal(0.0, 0.1, runs), 1.3 * generator.lognormal(0.0, 0.1, runs)
        _, low, high = slowdown(list(baseline), list(changed), seed=seed)
        covered += low <= 1.3 <= high
    assert covered >= 0.93 * 500


def test_one_slow_run_in_twenty_moves_nothing() -> None:
    times = [1.0 + 0.001 * place for place in range(20)]
    assert slowdown(times, [*times[:-1], 1000.0]).ratio == 1.0


def test_timing_is_changed_where_the_interval_excludes_equal_times() -> None:
    assert Slowdown(1.2, 1.1, 1.3).changes_timing
    assert Slowdown(0.8, 0.7, 0.9).changes_timing
    assert not Slowdown(1.2, 0.9, 1.3).changes_timing


def test_the_same_seed_gives_the_same_interval() -> None:
    times = list(np.random.default_rng(0).lognormal(0.0, 0.5, 30))
    assert slowdown(times, times[::2], seed=4) == slowdown(times, times[::2], seed=4)


def test_times_that_give_no_interval_are_refused() -> None:
    assert 1 - 2 * 0.5**LEAST_RUNS >= 0.95 > 1 - 2 * 0.5 ** (LEAST_RUNS - 1)
    with pytest.raises(RangeError, match="times of the baseline: got 5 runs; allowed: at least 6"):
        slowdown([1.0] * 5, [1.0] * 6)
    with pytest.raises(RangeError, match=r"times: got 0\.0; allowed: seconds above 0, finite"):
        slowdown([1.0] * 6, [1.0] * 5 + [0.0])
    with pytest.raises(RangeError, match="times: got nan"):
        slowdown([1.0] * 6, [1.0] * 5 + [float("nan")])
    with pytest.raises(RangeError, match="confidence: got 2"):
        slowdown([1.0] * 6, [1.0] * 6, confidence=2.0)
