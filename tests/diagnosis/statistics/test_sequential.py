"""Tests of steadysum.diagnosis.statistics.sequential: seeded operators of known rates, tested until the answer."""

from __future__ import annotations

import numpy as np
import pytest

from steadysum.diagnosis.rates import clopper_pearson
from steadysum.diagnosis.statistics.question import Question
from steadysum.diagnosis.statistics.sequential import Decision, SequentialTest
from steadysum.diagnosis.statistics.walk import closing, course

REPETITIONS = 500
RATES = (0.005, 0.01, 0.05, 0.3)
QUESTIONS = [Question(0.01), Question(0.05, 0.01), Question(0.4, 0.2)]


def answered(question: Question, rate: float, seed: int, further: int = 0) -> SequentialTest:
    """A test that was run until its answer, and for some calls more."""
    generator = np.random.default_rng(seed)
    test = SequentialTest(question)
    while test.decision is Decision.OPEN:
        test.observe(bool(generator.random() < rate))
    for _ in range(further):
        test.observe(bool(generator.random() < rate))
    return test


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("rate", RATES)
def test_the_interval_of_a_stopped_test_covers_the_rate(question: Question, rate: float) -> None:
    intervals = [answered(question, rate, seed).interval for seed in range(REPETITIONS)]
    assert sum(low <= rate <= high for low, high in intervals) >= 0.93 * REPETITIONS


@pytest.mark.parametrize("rate", RATES)
def test_the_interval_covers_the_rate_if_one_goes_on_after_the_answer(rate: float) -> None:
    intervals = [answered(QUESTIONS[0], rate, seed, further=100).interval for seed in range(REPETITIONS)]
    assert sum(low <= rate <= high for low, high in intervals) >= 0.93 * REPETITIONS


@pytest.mark.parametrize("question", QUESTIONS)
def test_answers_come_as_often_as_computed_before_the_start(question: Question) -> None:
    for rate in (question.tolerated, question.wanted):
        expected = course(question, rate)
        tests = [answered(question, rate, seed) for seed in range(REPETITIONS)]
        above = sum(test.decision is Decision.ABOVE for test in tests)
        low, high = clopper_pearson(above, REPETITIONS, confidence=0.999)
        assert low <= expected.above <= high
        runs = [test.calls for test in tests]
        assert np.mean(runs) == pytest.approx(expected.mean_runs, abs=1e-9 + 4 * np.std(runs) / REPETITIONS**0.5)


def test_a_fault_of_one_percent_is_found_with_the_power_asked_for_in_the_planned_runs() -> None:
    question = Question(wanted=0.01)
    assert closing(question).runs == 299
    assert course(question, 0.01).above >= 0.95  # exactly; of the seeded operators about as many:
    found = sum(answered(question, 0.01, seed).decision is Decision.ABOVE for seed in range(2 * REPETITIONS))
    assert clopper_pearson(found, 2 * REPETITIONS).high >= 0.95


def test_a_clean_operator_is_never_called_faulty() -> None:
    test = answered(Question(wanted=0.01), rate=0.0, seed=0)
    assert test.decision is Decision.BELOW
    assert test.interval.low == 0.0


def test_one_deviation_is_enough_where_none_is_tolerated() -> None:
    test = SequentialTest(Question(wanted=0.01))
    assert test.runs_left == 299
    test.observe(deviated=False)
    assert (test.decision, test.runs_left) == (Decision.OPEN, 298)
    test.observe(deviated=True)
    assert (test.decision, test.runs_left) == (Decision.ABOVE, 0)
    assert (test.deviating, test.calls) == (1, 2)


def test_a_decision_stays_whatever_comes_after_it() -> None:
    test = answered(Question(0.4, 0.2), rate=0.9, seed=0)
    assert test.decision is Decision.ABOVE
    for _ in range(1000):
        test.observe(deviated=False)
    assert test.decision is Decision.ABOVE
    assert test.interval.high < 0.4  # the interval goes with the calls


def test_the_state_does_not_grow_with_the_calls() -> None:
    test = SequentialTest(Question(0.4, 0.2))
    before = set(vars(test))
    for _ in range(1000):
        test.observe(deviated=False)
    assert set(vars(test)) == before
    assert not any(isinstance(value, list | dict | set | np.ndarray) for value in vars(test).values())
