"""Tests of steadysum.diagnosis.statistics.planning: what is promised before the start is what comes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, fisher_exact

from steadysum.diagnosis.rates import runs_needed
from steadysum.diagnosis.statistics.anytime import anytime_interval
from steadysum.diagnosis.statistics.planning import (
    clean_runs_for,
    findable_rate,
    plan_runs,
    runs_to_compare,
)
from steadysum.diagnosis.statistics.question import Question
from steadysum.errors import RangeError


def test_a_plan_says_how_many_runs_and_how_long_before_the_start() -> None:
    plan = plan_runs(Question(wanted=0.001), seconds_per_run=0.5)
    assert plan.most_runs == runs_needed(0.001) == 2995
    assert plan.most_seconds == pytest.approx(2995 * 0.5)
    assert plan.mean_runs_if_clean == 2995
    # Runs until the first deviation, or until the last run: (1 - 0.999 ** 2995) / 0.001
    assert plan.mean_runs_if_faulty == pytest.approx(binom.sf(0, 2995, 0.001) / 0.001)
    assert str(plan) == (
        "At most 2995 runs, about 25 min: a fault of rate 0.1 % is found with 95 % probability, after 950 runs on "
        "average."
    )


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.001, "about a second:"), (0.1, "about 30 s:"), (1, "about 5 min:"), (100, "about 8 h:")]
)
def test_times_are_said_as_people_say_them(seconds: float, said: str) -> None:
    assert said in str(plan_runs(Question(wanted=0.01), seconds))


def test_a_plan_of_a_tolerated_rate_ends_sooner_on_average_than_at_most() -> None:
    plan = plan_runs(Question(0.05, 0.01), seconds_per_run=0.0)
    assert plan.mean_runs_if_clean < plan.most_runs
    assert plan.mean_runs_if_faulty < plan.most_runs


@given(st.floats(1e-4, 0.9), st.sampled_from([0.8, 0.95, 0.99]))
def test_clean_runs_bound_the_rate_and_one_less_does_not(bound: float, confidence: float) -> None:
    runs = clean_runs_for(bound, confidence)
    assert anytime_interval(0, runs, confidence).high <= bound
    assert anytime_interval(0, runs - 1, confidence).high > bound


@given(st.integers(1, 10_000), st.floats(1e-4, 10.0))
def test_the_findable_rate_is_one_for_which_the_budgets_runs_suffice(runs: int, seconds: float) -> None:
    rate = findable_rate((runs + 0.5) * seconds, seconds)
    assert binom.sf(0, runs, rate) == pytest.approx(0.95)


def test_no_fault_is_sure_to_be_seen_without_a_run() -> None:
    assert findable_rate(budget_s=1.0, seconds_per_run=2.0) == 1.0


@pytest.mark.parametrize("rate", [0.9, 0.3, 0.05, 0.01])
def test_a_cure_is_shown_by_the_runs_planned_for_it(rate: float) -> None:
    runs = runs_to_compare(rate)

    def power(runs: int) -> float:
        shown = (
            k for k in range(runs + 1) if fisher_exact([[k, runs - k], [0, runs]], "greater").pvalue <= 0.025 + 1e-12
        )
        return float(binom.sf(next(shown, runs + 1) - 1, runs, rate))

    assert power(runs) >= 0.95
    assert power(runs - 1) < 0.95


@settings(max_examples=20)
@given(st.floats(0.01, 0.5))
def test_a_rarer_fault_takes_more_runs(rate: float) -> None:
    assert runs_to_compare(rate / 2) > runs_to_compare(rate)


def test_times_and_rates_that_cannot_be_are_refused() -> None:
    with pytest.raises(RangeError, match=r"time of a run: got -1\.0 s; allowed: a time of at least 0, finite"):
        plan_runs(Question(0.01), -1.0)
    with pytest.raises(RangeError, match="budget: got nan s; allowed: a time above 0, finite"):
        findable_rate(float("nan"), 1.0)
    with pytest.raises(RangeError, match=r"bound: got 0\.0; allowed: 0 < bound < 1"):
        clean_runs_for(0.0)
    with pytest.raises(RangeError, match=r"baseline_rate: got 1\.5"):
        runs_to_compare(1.5)
