"""Tests of steadysum.diagnosis.statistics.several against the closed test of which Holm's is the short form."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadysum.diagnosis.rates import clopper_pearson
from steadysum.diagnosis.statistics.several import confidence_of_each, holm
from steadysum.errors import RangeError

probabilities = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=6)


def named(values: list[float]) -> dict[str, float]:
    return {f"probe {place}": value for place, value in enumerate(values)}


@given(probabilities)
def test_a_probe_counts_where_no_set_of_probes_with_it_could_all_be_chance(values: list[float]) -> None:
    # The closed test: of every set of probes, Bonferroni's p-value that all are clean; a probe's is the largest.
    places = range(len(values))
    sets = [chosen for size in places for chosen in itertools.combinations(places, size + 1)]
    expected = [
        max(min(1.0, len(chosen) * min(values[other] for other in chosen)) for chosen in sets if place in chosen)
        for place in places
    ]
    assert list(holm(named(values)).values()) == pytest.approx(expected)


@given(probabilities)
def test_names_and_their_order_stay(values: list[float]) -> None:
    assert list(holm(named(values))) == list(named(values))


def test_twelve_clean_probes_raise_a_false_alarm_no_more_often_than_one_would() -> None:
    generator = np.random.default_rng(3)
    alarms = sum(min(holm(named(list(generator.random(12)))).values()) <= 0.05 for _ in range(2000))
    assert clopper_pearson(alarms, 2000).low <= 0.05


def test_no_probes_need_no_correction() -> None:
    assert holm({}) == {}


@given(st.integers(1, 1000), st.floats(0.5, 0.999))
def test_the_misses_of_all_intervals_add_up_to_those_of_one(probes: int, confidence: float) -> None:
    assert probes * (1.0 - confidence_of_each(probes, confidence)) == pytest.approx(1.0 - confidence)


def test_what_is_no_probability_is_refused() -> None:
    with pytest.raises(RangeError, match=r"p-value of rerun: got 1\.5; allowed: a number in \[0, 1\]"):
        holm({"rerun": 1.5})
    with pytest.raises(RangeError, match="p-value of rerun: got nan"):
        holm({"rerun": float("nan")})
    with pytest.raises(RangeError, match="number of probes: got 0; allowed: at least 1"):
        confidence_of_each(0)
