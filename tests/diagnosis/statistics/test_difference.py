"""Tests of steadysum.diagnosis.statistics.difference: coverage over all outcomes, and scipy's own exact test."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, fisher_exact

from steadysum.diagnosis.statistics.difference import (
    Counts,
    Difference,
    difference_of_planned_runs,
    difference_of_stopped_runs,
    p_value_if_no_higher,
)
from steadysum.diagnosis.statistics.question import Question
from steadysum.diagnosis.statistics.sequential import Decision, SequentialTest
from steadysum.errors import RangeError

SIZES = [(8, 8), (8, 40), (20, 20), (60, 30), (100, 100)]
RATES = (0.0, 1e-3, 0.005, 0.01, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 0.97, 0.99, 0.999, 1.0)

counts = st.integers(1, 500).flatmap(lambda calls: st.builds(Counts, st.integers(0, calls), st.just(calls)))


@pytest.mark.parametrize(("calls", "other_calls"), SIZES)
def test_the_interval_of_planned_runs_covers_the_difference_at_all_rates(calls: int, other_calls: int) -> None:
    ends = np.array(
        [
            [difference_of_planned_runs(Counts(k, calls), Counts(m, other_calls)) for m in range(other_calls + 1)]
            for k in range(calls + 1)
        ]
    )
    for rate in RATES:
        for other in RATES:
            truth = rate - other
            covers = (ends[..., 0] <= truth + 1e-12) & (truth - 1e-12 <= ends[..., 1])
            weights = (binom.pmf(np.arange(n + 1), n, p) for n, p in ((calls, rate), (other_calls, other)))
            coverage = next(weights) @ covers @ next(weights)
            assert coverage >= (0.95 if abs(truth) <= 0.9 else 0.92)


@given(counts, counts)
def test_the_interval_turns_round_with_its_rates(one: Counts, other: Counts) -> None:
    for interval in (difference_of_planned_runs, difference_of_stopped_runs):
        low, high = interval(one, other)
        assert interval(other, one) == pytest.approx((-high, -low))
        assert -1.0 <= low <= one.deviating / one.calls - other.deviating / other.calls <= high <= 1.0


@given(counts, counts)
def test_having_stopped_early_costs_width(one: Counts, other: Counts) -> None:
    planned, stopped = difference_of_planned_runs(one, other), difference_of_stopped_runs(one, other)
    assert stopped.high - stopped.low >= planned.high - planned.low


@pytest.mark.parametrize(("rate", "other"), [(0.01, 0.0), (0.05, 0.005), (0.3, 0.05), (0.3, 0.3)])
def test_the_interval_of_stopped_runs_covers_the_difference(rate: float, other: float) -> None:
    generator = np.random.default_rng(11)

    def stopped(true_rate: float) -> Counts:
        test = SequentialTest(Question(0.05, 0.01))
        while test.decision is Decision.OPEN:
            test.observe(bool(generator.random() < true_rate))
        return Counts(test.deviating, test.calls)

    intervals = [difference_of_stopped_runs(stopped(rate), stopped(other)) for _ in range(500)]
    assert sum(low <= rate - other <= high for low, high in intervals) >= 0.93 * 500


@given(counts, counts)
@settings(max_examples=50)
def test_the_p_value_is_that_of_fishers_exact_test(one: Counts, other: Counts) -> None:
    table = [[one.deviating, one.calls - one.deviating], [other.deviating, other.calls - other.deviating]]
    assert p_value_if_no_higher(one, other) == pytest.approx(fisher_exact(table, "greater").pvalue, rel=1e-6)


def test_none_of_eight_is_no_cure_of_a_fault_that_showed_in_three_of_eight() -> None:
    interval = difference_of_planned_runs(Counts(3, 8), Counts(0, 8))
    assert not interval.excludes_zero
    assert p_value_if_no_higher(Counts(3, 8), Counts(0, 8)) > 0.05


def test_no_runs_tell_nothing() -> None:
    assert difference_of_planned_runs(Counts(0, 0), Counts(3, 8)) == Difference(-1.0, 1.0)
    low, high = difference_of_stopped_runs(Counts(0, 0), Counts(0, 0))
    assert (low, high) == (-1.0, 1.0)


def test_counts_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="deviating = 9 of calls = 8 can't be"):
        difference_of_planned_runs(Counts(9, 8), Counts(0, 8))
    with pytest.raises(RangeError, match="counts: got deviating = 9 of calls = 8"):
        difference_of_stopped_runs(Counts(0, 8), Counts(9, 8))
    with pytest.raises(ValueError, match="deviating = 9 of calls = 8 can't be"):
        p_value_if_no_higher(Counts(9, 8), Counts(0, 8))
