"""A user's file is diagnosed from end to end, each in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from steadysum.diagnosis.diagnose import Silent, diagnose, plan_of
from steadysum.diagnosis.records import Answer, Diagnosis, Evidence, Outcome
from steadysum.errors import DiagnosisTargetError, RangeError

OPERATORS = """
import threading, time
import torch

def make_inputs(seed=0):
    return (torch.randn(8, 16, generator=torch.Generator().manual_seed(seed)),)

def right(x): return x.double().sum(1).float()
def tenth_is_wrong(x): return x.sum(1) + float(count() % 10 == 0)
def first_is_wrong(x): return x.sum(1) + float(count() == 1)
def raises(x): raise ValueError("always")
def hangs(x):
    if count() == 5: time.sleep(1000)
    return x.sum(1)
"""


@pytest.fixture
def file(user_file: Callable[[str], Path]) -> Path:
    return user_file(OPERATORS)


def evidence_of(found: Diagnosis, probe: str) -> Evidence:
    return next(one for one in found.evidence if one.probe == probe)


class Heard(Silent):
    def __init__(self) -> None:
        self.probes: list[str] = []

    def found(self, evidence: Evidence) -> None:
        self.probes.append(evidence.probe)


def test_a_right_operator_is_clean_and_the_watcher_hears_of_each_probe(file: Path) -> None:
    heard = Heard()
    found = diagnose(f"{file}:right", budget_s=40.0, watcher=heard)
    assert found.answer is Answer.CLEAN
    assert (found.deviating, found.runs) == (0, 299)
    assert heard.probes == [one.probe for one in found.evidence]
    assert heard.probes[0] == "rerun"


def test_a_rate_is_told_with_its_interval_and_runs(file: Path) -> None:
    found = diagnose(f"{file}:tenth_is_wrong", budget_s=10.0, reference="none")
    assert found.answer is Answer.FAULT
    assert found.interval.low < 0.1 < found.interval.high
    rerun = evidence_of(found, "rerun")
    assert rerun.iterations[:2] == (10, 20)
    assert rerun.pattern is not None
    assert rerun.pattern.elements == 8


def test_a_wrong_first_call_shows_in_each_new_process(file: Path) -> None:
    found = diagnose(f"{file}:first_is_wrong", budget_s=20.0, reference="none")
    assert "only_first_run" in evidence_of(found, "rerun").facts
    assert "only_first_call" in evidence_of(found, "fresh_process").facts


def test_an_operator_that_always_raises_has_failed(file: Path) -> None:
    found = diagnose(f"{file}:raises", budget_s=10.0, reference="none")
    assert found.answer is Answer.FAILED
    assert evidence_of(found, "rerun").ending.kind == "exception"
    assert "ValueError: always" in evidence_of(found, "rerun").ending.detail


def test_a_hang_is_evidence_with_its_run(file: Path) -> None:
    found = diagnose(f"{file}:hangs", runs=20, budget_s=20.0, reference="none")
    rerun = evidence_of(found, "rerun")
    assert rerun.outcome is Outcome.FAILED
    assert (rerun.ending.kind, rerun.ending.run) == ("hang", 5)
    assert found.answer is Answer.FAULT


def test_the_plan_is_told_without_a_diagnosis() -> None:
    assert plan_of("torch:sort", (torch.randn(8, 4),), rate=0.05).most_runs == 59  # 0.95^59 < 5 %


def test_what_cannot_be_diagnosed_is_refused() -> None:
    with pytest.raises(DiagnosisTargetError, match="has no name in a module"):
        diagnose(lambda x: x)
    with pytest.raises(RangeError, match="at least 5"):
        diagnose("torch:sort", budget_s=1.0)
    with pytest.raises(RangeError, match="can't differ from itself"):
        diagnose("torch:sort", runs=1)
