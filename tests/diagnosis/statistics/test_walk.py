"""Tests of steadysum.diagnosis.statistics.walk against all sequences of calls that there are, and against scipy."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from steadysum.diagnosis.rates import runs_needed
from steadysum.diagnosis.statistics.question import Question
from steadysum.diagnosis.statistics.sequential import Decision, SequentialTest
from steadysum.diagnosis.statistics.walk import closing, course
from steadysum.errors import RangeError

QUESTIONS = [
    Question(0.01),
    Question(0.01, 0.001),
    Question(0.05, 0.01),
    Question(0.35, 0.3),
    Question(0.9, 0.5),
    Question(0.2, 0.05, confidence=0.99),
]


@pytest.mark.parametrize("question", [Question(0.5, 0.05), Question(0.9, 0.5), Question(0.3), Question(0.6, 0.1, 0.8)])
@pytest.mark.parametrize("rate", [0.0, 0.05, 0.37, 0.9, 1.0])
def test_the_course_is_that_of_all_sequences_of_calls(question: Question, rate: float) -> None:
    above = mean = 0.0
    runs = closing(question).runs
    for sequence in itertools.product((False, True), repeat=runs):
        test = SequentialTest(question)
        for deviated in sequence:
            if test.decision is Decision.OPEN:
                test.observe(deviated)
        chance = rate ** sum(sequence) * (1.0 - rate) ** (runs - sum(sequence))
        above += chance * (test.decision is Decision.ABOVE)
        mean += chance * test.calls
    assert course(question, rate) == pytest.approx((above, mean), abs=1e-9)


@pytest.mark.parametrize("question", QUESTIONS)
def test_errors_at_both_rates_are_no_more_probable_than_asked_for(question: Question) -> None:
    assert course(question, question.tolerated).above <= question.risk + 1e-12
    assert course(question, question.wanted).above >= question.confidence - 1e-12


@pytest.mark.parametrize("question", QUESTIONS)
def test_beyond_the_two_rates_the_answer_is_safer_still(question: Question) -> None:
    rates = [0.0, question.tolerated / 2, question.tolerated, question.wanted, (1 + question.wanted) / 2, 1.0]
    chances = [course(question, rate).above for rate in rates]
    assert chances == sorted(chances)
    assert chances[0] == 0.0
    assert chances[-1] == pytest.approx(1.0)


@pytest.mark.parametrize("question", [question for question in QUESTIONS if question.tolerated > 0.0])
def test_the_last_run_is_no_later_than_that_of_a_test_that_looks_once_at_half_the_risk(question: Question) -> None:
    risk = question.risk / 2
    runs = next(
        runs
        for runs in itertools.count(1)
        if binom.cdf(binom.isf(risk, runs, question.tolerated), runs, question.wanted) <= risk
    )
    assert closing(question).runs <= runs


@pytest.mark.parametrize("question", [question for question in QUESTIONS if question.tolerated > 0.0])
def test_it_stops_earlier_than_its_last_run_at_either_rate(question: Question) -> None:
    for rate in (question.tolerated, question.wanted):
        assert course(question, rate).mean_runs < 0.9 * closing(question).runs


@given(st.floats(0.005, 0.9), st.sampled_from([0.8, 0.95, 0.99]))
@settings(max_examples=30)
def test_with_nothing_tolerated_it_takes_the_runs_that_see_one_deviation(wanted: float, confidence: float) -> None:
    assert closing(Question(wanted, 0.0, confidence)) == (runs_needed(wanted, confidence), 1)
    # The limit of tests that tolerate next to nothing, for which the walk is walked.
    assert closing(Question(wanted, 1e-13, confidence)) == (runs_needed(wanted, confidence), 1)


def test_rates_too_near_to_each_other_are_refused_at_once() -> None:
    with pytest.raises(RangeError, match=r"rates: got 0\.3 and 0\.3001; allowed: rates that 50000 runs can tell apart"):
        closing(Question(0.3001, 0.3))
