"""Tests of steadysum.diagnosis.statistics.question: the lines on counts are Wald's on the likelihood ratio."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import binom

from steadysum.diagnosis.statistics.question import Question
from steadysum.errors import RangeError

rates = st.floats(1e-4, 0.99)


@st.composite
def questions(draw: st.DrawFn) -> Question:
    tolerated, wanted = sorted((draw(rates), draw(rates)))
    assume(wanted > 1.01 * tolerated)
    return Question(wanted, draw(st.sampled_from([0.0, tolerated])), draw(st.sampled_from([0.8, 0.95, 0.999])))


@given(questions(), st.integers(1, 500), st.integers(0, 500))
def test_evidence_is_the_ratio_of_the_two_likelihoods(question: Question, calls: int, deviating: int) -> None:
    deviating = min(deviating, calls)
    wanted, tolerated = (binom.logpmf(deviating, calls, rate) for rate in (question.wanted, question.tolerated))
    assert question.evidence(deviating, calls) == pytest.approx(wanted - tolerated, rel=1e-6, abs=1e-6)


@given(questions(), st.integers(1, 500), st.integers(0, 500))
def test_counts_cross_a_line_where_the_evidence_does(question: Question, calls: int, deviating: int) -> None:
    deviating = min(deviating, calls)
    evidence = question.evidence(deviating, calls)
    assume(abs(abs(evidence) - question.line) > 1e-9)
    assert (deviating >= question.least_above(calls)) == (evidence >= question.line)
    assert (deviating <= question.most_below(calls)) == (-evidence >= question.line)


def test_the_wrong_line_is_ever_crossed_with_half_of_the_risk_at_most_and_no_line_is_wastefully_far() -> None:
    question = Question(0.35, 0.3)
    for rate, is_wrong in (
        (question.tolerated, lambda calls, counts: counts >= question.least_above(calls)),
        (question.wanted, lambda calls, counts: counts <= question.most_below(calls)),
    ):
        counts, crossed = np.arange(1501), 0.0
        open = (counts == 0).astype(float)  # the other line is left out: who is never stopped there can only err more
        for calls in range(1, 1501):
            open = (1.0 - rate) * open + rate * np.append(0.0, open[:-1])
            wrong = is_wrong(calls, counts)
            crossed, open = crossed + open[wrong].sum(), np.where(wrong, 0.0, open)
        assert 0.7 * question.risk / 2 <= crossed <= question.risk / 2


def test_questions_without_an_answer_are_refused() -> None:
    with pytest.raises(RangeError, match=r"rate to find: got 1\.0; allowed: 0 < rate < 1\. What deviates at rate 1"):
        Question(1.0)
    with pytest.raises(RangeError, match=r"tolerated rate: got 0\.2; allowed: 0 <= rate < 0\.1, the rate to find"):
        Question(0.1, tolerated=0.2)
    with pytest.raises(RangeError, match=r"confidence: got 95; allowed: 0 < confidence < 1"):
        Question(0.1, confidence=95)
