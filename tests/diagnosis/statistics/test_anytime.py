"""Tests of steadysum.diagnosis.statistics.anytime: coverage at every moment, not only at one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from steadysum.diagnosis.rates import Interval, clopper_pearson
from steadysum.diagnosis.statistics.anytime import anytime_interval, log_evidence_against
from steadysum.errors import RangeError

REPETITIONS, CALLS = 500, 2000
RATES = (0.005, 0.01, 0.05, 0.3)

counts = st.integers(1, 20_000).flatmap(lambda calls: st.tuples(st.integers(0, calls), st.just(calls)))


@given(st.integers(1, 300), st.floats(1e-4, 0.9999))
def test_the_evidence_against_the_true_rate_has_mean_one_after_any_number_of_calls(calls: int, rate: float) -> None:
    # Summed over all outcomes with scipy's binomial distribution; Ville's inequality needs nothing else.
    deviating = np.arange(calls + 1)
    mean = np.exp(binom.logpmf(deviating, calls, rate) + log_evidence_against(rate, deviating, calls)).sum()
    assert mean == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize("rate", RATES)
def test_even_who_stops_when_the_interval_looks_worst_finds_the_true_rate_in_it(rate: float) -> None:
    outcomes = np.random.default_rng(7).random((REPETITIONS, CALLS)) < rate
    evidence = log_evidence_against(rate, outcomes.cumsum(axis=1), np.arange(1, CALLS + 1))
    excluded = (evidence.max(axis=1) >= math.log(20)).sum()
    assert 1.0 - excluded / REPETITIONS >= 0.93


@given(counts, st.sampled_from([0.5, 0.9, 0.95, 0.999]))
def test_the_interval_ends_where_the_evidence_against_a_rate_reaches_the_bar(
    seen: tuple[int, int], confidence: float
) -> None:
    interval = anytime_interval(*seen, confidence)
    share = seen[0] / seen[1]
    assert 0.0 <= interval.low <= share <= interval.high <= 1.0
    bar = -math.log1p(-confidence)
    for end, edge in ((interval.low, 0.0), (interval.high, 1.0)):
        if end != edge:
            assert float(log_evidence_against(end, *seen)) == pytest.approx(bar, abs=1e-5)
    # Closed ends are where no rate can be excluded by these counts alone: nothing deviated, or everything.
    assert (interval.low == 0.0) == (seen[0] == 0)
    assert (interval.high == 1.0) == (seen[0] == seen[1])


@given(st.integers(1, 100_000))
def test_with_no_deviation_it_is_no_wider_than_the_exact_interval_for_a_number_fixed_before(calls: int) -> None:
    assert anytime_interval(0, calls).high <= clopper_pearson(0, calls).high


@given(counts)
def test_more_confidence_makes_the_interval_wider(seen: tuple[int, int]) -> None:
    narrow, wide = anytime_interval(*seen, 0.9), anytime_interval(*seen, 0.99)
    assert wide.low <= narrow.low
    assert narrow.high <= wide.high


def test_no_calls_tell_nothing() -> None:
    assert anytime_interval(0, 0) == Interval(0.0, 1.0)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(RangeError, match="counts: got deviating = 3 of calls = 2; allowed: 0 <= deviating <= calls"):
        anytime_interval(3, 2)
    with pytest.raises(RangeError, match=r"confidence: got 1\.0; allowed: 0 < confidence < 1\. 95 % is written 0\.95"):
        anytime_interval(1, 2, confidence=1.0)
