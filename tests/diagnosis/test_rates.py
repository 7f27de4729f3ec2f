"""Tests of steadysum.diagnosis.rates against published figures and scipy's own exact test."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from steadysum.diagnosis.rates import Interval, clopper_pearson, runs_needed


@pytest.mark.parametrize(
    ("deviating", "calls", "low", "high"),
    [(8, 336, 0.010, 0.046), (4, 8, 0.16, 0.84), (0, 8, 0.0, 0.37), (0, 160, 0.0, 0.023)],  # figures from field reports
)
def test_intervals_are_the_published_ones(deviating: int, calls: int, low: float, high: float) -> None:
    digits = 3 if high < 0.1 else 2
    assert tuple(round(end, digits) for end in clopper_pearson(deviating, calls)) == (low, high)


@given(st.integers(1, 3000).flatmap(lambda calls: st.tuples(st.integers(0, calls), st.just(calls))))
def test_intervals_are_those_of_the_exact_binomial_test(counts: tuple[int, int]) -> None:
    expected = binomtest(*counts).proportion_ci(0.95, method="exact")
    assert clopper_pearson(*counts) == pytest.approx((expected.low, expected.high), abs=1e-9)


@given(st.floats(1e-4, 1.0), st.floats(0.5, 0.999))
def test_runs_needed_is_the_least_number_with_that_chance(rate: float, confidence: float) -> None:
    runs = runs_needed(rate, confidence)
    assert binom.sf(0, runs, rate) >= confidence - 1e-9
    assert runs == 1 or binom.sf(0, runs - 1, rate) <= confidence + 1e-9


def test_an_interval_lies_above_another_only_without_a_common_rate() -> None:
    assert Interval(0.3, 0.4).lies_above(Interval(0.1, 0.2))
    assert not Interval(0.2, 0.4).lies_above(Interval(0.1, 0.2))
    assert not Interval(0.0, 0.05).lies_above(Interval(0.1, 0.2))


def test_no_calls_tell_nothing() -> None:
    assert clopper_pearson(0, 0) == Interval(0.0, 1.0)


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="deviating = 3 of calls = 2 can't be"):
        clopper_pearson(3, 2)
    with pytest.raises(ValueError, match=r"rate = 0\.0 can't be: need 0 < rate <= 1"):
        runs_needed(0.0)
    with pytest.raises(ValueError, match=r"confidence = 1\.0 can't be"):
        clopper_pearson(0, 2, confidence=1.0)
