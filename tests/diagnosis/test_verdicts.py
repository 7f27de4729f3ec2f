"""Tests of steadysum.diagnosis.verdicts: the rules from counts to verdicts."""

from __future__ import annotations

from steadysum.diagnosis.compare import SAME, Deviation
from steadysum.diagnosis.probes import Evidence, VariantEvidence
from steadysum.diagnosis.verdicts import Verdict, judge


def evidence(deviating: int, calls: int = 60, agrees: bool = False) -> Evidence:
    largest = Deviation(rows=1, first_row=4, ulps=1, absolute=0.5, output="max") if deviating else SAME
    variants = (
        VariantEvidence("row=1", deviating, deviating, agrees),
        VariantEvidence("row=2", calls - deviating, 0, True),
    )
    return Evidence(calls=calls, planned=calls, deviating=deviating, largest=largest, variants=variants)


CLEAN = evidence(0)


def test_no_deviation_is_never_called_more_than_none_seen() -> None:
    assert judge(CLEAN, promised=True, repeat=CLEAN).verdict is Verdict.NONE_SEEN
    assert Verdict.NONE_SEEN.value == "no deviation seen"


def test_a_promised_bit_that_differs_is_a_fault() -> None:
    judgement = judge(evidence(1), promised=True, repeat=CLEAN)
    assert judgement.verdict is Verdict.DEVIATES
    assert judgement.verdict.is_fault


def test_a_bit_that_is_not_promised_is_information() -> None:
    judgement = judge(evidence(60), promised=False, repeat=CLEAN)
    assert judgement.verdict is Verdict.VARIES
    assert not judgement.verdict.is_fault


def test_a_probe_that_shows_no_more_than_repeat_stays_undecided() -> None:
    assert judge(evidence(9), promised=True, repeat=evidence(6)).verdict is Verdict.UNDECIDED


def test_a_probe_that_shows_far_more_than_repeat_is_a_fault_of_its_own() -> None:
    assert judge(evidence(55), promised=True, repeat=evidence(3)).verdict is Verdict.DEVIATES


def test_the_repeat_probe_is_not_compared_with_itself() -> None:
    repeat = evidence(6)
    assert judge(repeat, promised=True, repeat=repeat).verdict is Verdict.DEVIATES


def test_the_note_tells_a_deviation_that_comes_back_from_one_that_does_not() -> None:
    assert "comes back at row=1" in judge(evidence(2, agrees=True), promised=True, repeat=CLEAN).note
    assert "looks like run-to-run" in judge(evidence(2), promised=True, repeat=CLEAN).note
    assert "first is row 4, in max" in judge(evidence(2), promised=True, repeat=CLEAN).note


def test_without_calls_there_is_no_verdict() -> None:
    assert judge(evidence(0, calls=0), promised=True, repeat=CLEAN).verdict is Verdict.NOT_RUN
