"""Tests of steadysum.diagnosis.statistics.mitigation: a cure, a slower call that hides, and too few runs."""

from __future__ import annotations

import numpy as np
import pytest

from steadysum.diagnosis.rates import clopper_pearson
from steadysum.diagnosis.statistics.difference import Counts
from steadysum.diagnosis.statistics.mitigation import Outcome, effect_of
from steadysum.diagnosis.statistics.planning import runs_to_compare

SAME = [1.0 + 0.01 * (place % 7) for place in range(40)]
SLOWER = [1.3 * seconds for seconds in SAME]


def test_a_cure_that_takes_no_time_helps() -> None:
    effect = effect_of(Counts(8, 336), Counts(0, 336), SAME, SAME)
    assert effect.outcome is Outcome.HELPS
    assert effect.reduction.low > 0.0
    assert effect.remaining == clopper_pearson(0, 336)


def test_a_mitigation_that_slows_the_call_is_no_proof_of_its_cause() -> None:
    assert effect_of(Counts(8, 336), Counts(0, 336), SAME, SLOWER).outcome is Outcome.CONFOUNDED
    assert effect_of(Counts(8, 336), Counts(0, 336), SLOWER, SAME).outcome is Outcome.CONFOUNDED


def test_none_of_eight_is_never_called_fixed_after_two_of_eight() -> None:
    effect = effect_of(Counts(2, 8), Counts(0, 8), SAME, SAME)
    assert effect.outcome is Outcome.NOT_SHOWN
    assert effect.remaining.high == pytest.approx(0.369, abs=1e-3)  # FAULTS: 0 of 8 excludes rates above 37 % alone


def test_what_the_exact_test_leaves_in_doubt_is_not_shown_though_the_interval_is_sure() -> None:
    # By chance all of k deviating runs are the baseline's with probability 1 / 2 ** k, about: two-sided 6 % and 3 %.
    in_doubt = effect_of(Counts(5, 3000), Counts(0, 3000), SAME, SAME)
    assert in_doubt.reduction.excludes_zero
    assert in_doubt.p_value == pytest.approx(2 / 2**5, rel=0.01)
    assert in_doubt.outcome is Outcome.NOT_SHOWN
    assert effect_of(Counts(6, 3000), Counts(0, 3000), SAME, SAME).outcome is Outcome.HELPS


def test_a_mitigation_can_make_it_worse() -> None:
    assert effect_of(Counts(0, 336), Counts(8, 336), SAME, SLOWER).outcome is Outcome.WORSE


@pytest.mark.parametrize("rate", [0.01, 0.05, 0.3])
def test_a_mitigation_that_does_nothing_is_believed_no_more_often_than_asked_for(rate: float) -> None:
    generator = np.random.default_rng(2)
    shown = 0
    for _ in range(300):
        one, other = generator.binomial(300, rate, 2)
        effect = effect_of(Counts(int(one), 300), Counts(int(other), 300), SAME, SAME)
        shown += effect.outcome is not Outcome.NOT_SHOWN
    assert clopper_pearson(shown, 300).low <= 0.05


def test_a_cure_is_seen_in_the_planned_runs_with_the_power_asked_for() -> None:
    generator = np.random.default_rng(2)
    runs = runs_to_compare(0.05)
    helps = sum(
        effect_of(Counts(int(deviating), runs), Counts(0, runs), SAME, SAME).outcome is Outcome.HELPS
        for deviating in generator.binomial(runs, 0.05, 300)
    )
    assert clopper_pearson(helps, 300).high >= 0.95


def test_counts_and_confidences_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="deviating = 9 of calls = 8 can't be"):
        effect_of(Counts(9, 8), Counts(0, 8), SAME, SAME)
    with pytest.raises(ValueError, match=r"confidence: got 0\.0; allowed: 0 < confidence < 1"):
        effect_of(Counts(0, 8), Counts(0, 8), SAME, SAME, confidence=0.0)
