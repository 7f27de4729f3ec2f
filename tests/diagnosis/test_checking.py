"""Tests of steadysum.diagnosis.checking, its tables and its JSON: whole checks of right and of broken operators."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import Tensor

from steadysum.diagnosis import checking
from steadysum.diagnosis import document as document_module
from steadysum.diagnosis.arguments import Shape
from steadysum.diagnosis.checking import (
    DEFAULT_SHAPES,
    INTERPRETED_SHAPES,
    CheckReport,
    Finding,
    ProblemReport,
    Unwatched,
    check_operands,
    default_shapes,
    run_check,
)
from steadysum.diagnosis.document import SCHEMA, check_document, write_json
from steadysum.diagnosis.operands import OperandSource
from steadysum.diagnosis.probes import Plan
from steadysum.diagnosis.rates import runs_needed
from steadysum.diagnosis.report import render
from steadysum.diagnosis.subject import Operands, Subject
from steadysum.diagnosis.subjects import kernel_subjects
from steadysum.diagnosis.verdicts import Verdict
from steadysum.maxsum import MaxSum

PLAN = Plan(runs=60, threads=(1, 2, 3), seed=0)
SMALL = OperandSource(shapes=(Shape(4, 8, 600),))
Broken = Callable[..., Subject]
Faults = dict[str, Callable[[Tensor, Tensor, MaxSum], None]]


def report_of(subject: Subject, operands: Operands, plan: Plan = PLAN) -> CheckReport:
    findings = tuple(check_operands([subject], operands, plan))
    problem = ProblemReport(Shape(*operands.shape), "fp32", operands.source, findings)
    return CheckReport(plan, {}, (problem,), complete=True)


def faulty(report: CheckReport) -> set[str]:
    return {finding.probe for finding in report.findings if finding.judgement.verdict.is_fault}


def finding(report: CheckReport, probe: str) -> Finding:
    (found,) = (finding for finding in report.findings if finding.probe == probe)
    return found


def text_of(report: CheckReport, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(render(report))
    output = console.file
    assert isinstance(output, io.StringIO)
    return output.getvalue()


def test_an_operator_without_fault_passes(subject: Subject, operands: Operands) -> None:
    report = report_of(subject, operands)
    assert report.exit_code == 0
    assert [found.probe for found in report.findings] == [
        *("repeat", "threads", "rows alone", "shuffled", "split"),
        *("vs float64", "field loop"),
    ]


@pytest.mark.parametrize(
    ("fault", "named", "not_named"),
    [
        ("random_row", {"repeat"}, {"threads", "rows alone", "shuffled", "split"}),
        ("nan", {"repeat"}, {"threads", "rows alone", "shuffled", "split"}),
        ("alone", {"rows alone"}, {"repeat", "threads", "shuffled"}),
        ("place", {"shuffled"}, {"repeat", "threads"}),
        ("threads", {"threads"}, {"repeat", "rows alone", "shuffled", "split"}),
        ("always", {"vs float64"}, {"repeat", "threads", "rows alone", "shuffled", "split"}),
    ],
)
def test_a_check_of_a_broken_operator_fails_and_names_the_right_probe(
    fault: str, named: set[str], not_named: set[str], broken: Broken, faults: Faults, operands: Operands
) -> None:
    report = report_of(broken(faults[fault]), operands)
    assert report.exit_code == 1
    assert named <= faulty(report)
    assert not not_named & faulty(report)
    assert "Deviates: broken (" in text_of(report)


def test_a_fault_in_every_second_call_is_found(broken: Broken, faults: Faults, operands: Operands) -> None:
    assert "repeat" in faulty(report_of(broken(faults["every_second_call"]), operands))


def test_what_an_operator_does_not_promise_is_no_fault(broken: Broken, faults: Faults, operands: Operands) -> None:
    report = report_of(broken(faults["alone"], promises=frozenset({"run-to-run"})), operands)
    assert report.exit_code == 0
    alone = finding(report, "rows alone")
    assert alone.judgement.verdict is Verdict.VARIES
    assert alone.evidence is not None
    assert alone.evidence.calls == 60 // checking.INFORMATION_SHARE


def test_an_operator_that_raises_in_one_probe_could_not_run_there(
    broken: Broken, faults: Faults, operands: Operands
) -> None:
    report = report_of(broken(faults["raises_alone"]), operands)
    assert report.exit_code == 2
    assert finding(report, "rows alone").judgement == (Verdict.FAILED, "RuntimeError: no tiles for one row")
    assert finding(report, "shuffled").judgement.verdict is Verdict.NONE_SEEN
    assert "RuntimeError: no tiles for one row" in text_of(report)


def test_the_field_loop_misses_what_the_repeat_probe_sees(broken: Broken, faults: Faults, operands: Operands) -> None:
    report = report_of(broken(faults["random_row"]), operands)
    loop = finding(report, "field loop").loop
    assert loop is not None
    assert loop.deviating > loop.reported
    assert f"misses {loop.deviating - loop.reported} of {loop.deviating}" in text_of(report)


def test_the_available_kernels_keep_what_they_promise_on_a_small_problem() -> None:
    subjects, missing = kernel_subjects()
    report = run_check(SMALL, subjects, Plan(runs=6, threads=(1, 2, 3), seed=0), missing)
    assert report.complete
    assert report.exit_code == 0, text_of(report, 120)
    assert [subject.name for subject in subjects] == [name for name in ("native", "eager") if name not in missing]


def test_no_deviation_is_reported_with_what_it_excludes(subject: Subject, operands: Operands) -> None:
    text = " ".join(text_of(report_of(subject, operands, replace(PLAN, runs=8))).split())
    assert (
        "calls a probe exclude rates of deviating calls above 46 % (95 %), not rarer ones" in text
    )  # 6 = 3 x (8 // 3)
    assert "run --runs 2995" in text


@pytest.mark.parametrize("width", [80, 120])
def test_tables_fit_the_terminal_and_cut_nothing_off(
    width: int, broken: Broken, faults: Faults, subject: Subject, operands: Operands
) -> None:
    for checked in (subject, broken(faults["random_row"]), broken(faults["nan"], promises=frozenset())):
        text = text_of(report_of(checked, operands), width)
        assert max(map(len, text.splitlines())) <= width
        assert "…" not in text


class Stopping(Unwatched):
    """Ends a check after some calls."""

    def __init__(self, calls: int) -> None:
        self.left = calls

    def stopped(self) -> bool:
        return self.left <= 0

    def progressed(self) -> None:
        self.left -= 1


def test_a_stopped_check_has_its_findings_so_far_and_could_not_finish(subject: Subject) -> None:
    report = run_check(SMALL, [subject], PLAN, watcher=Stopping(70))
    assert not report.complete
    assert report.exit_code == 2
    threads = finding(report, "threads").evidence
    assert threads is not None
    assert (threads.calls, threads.planned) == (10, 60)
    assert "Stopped early" in text_of(report)
    assert {found.probe for found in report.findings} == {"repeat", "threads", "field loop"}


def test_a_check_that_was_stopped_after_a_deviation_has_found_it(broken: Broken, faults: Faults) -> None:
    report = run_check(SMALL, [broken(faults["every_second_call"])], PLAN, watcher=Stopping(20))
    assert report.exit_code == 1


def test_a_check_that_was_stopped_before_its_first_call_has_no_verdict(subject: Subject) -> None:
    report = run_check(SMALL, [subject], PLAN, watcher=Stopping(0))
    assert report.exit_code == 2
    assert "excludes no rate" in text_of(report)


def test_the_document_has_the_keys_of_its_schema(
    broken: Broken, faults: Faults, operands: Operands, tmp_path: Path
) -> None:
    report = report_of(broken(faults["nan"]), operands)
    path = tmp_path / "report.json"
    write_json(check_document(report), path)
    document = json.loads(path.read_text())
    assert document["schema"] == SCHEMA
    assert (document["complete"], document["exit_code"]) == (True, 1)
    (problem,) = document["problems"]
    assert (problem["rows"], problem["hidden"], problem["vocabulary"]) == operands.shape
    repeat, *_, accuracy, loop = problem["findings"]
    assert repeat["verdict"] == "deviates"
    assert repeat["evidence"]["deviating"] == 1
    assert repeat["evidence"]["interval"] == pytest.approx([0.00042, 0.0894], rel=0.01)  # 1 of 60
    assert repeat["evidence"]["largest"]["absolute"] == "inf"  # a NaN against a number
    assert [error["statistic"] for error in accuracy["accuracy"]["statistics"]] == ["max", "sum_exp", "log_sum_exp"]
    assert loop["field_loop"]["calls"] == 60
    schema = str(document_module.__doc__)
    keys = {*document, *problem, *repeat, *repeat["evidence"], *accuracy["accuracy"], *loop["field_loop"]}
    assert [key for key in keys if key not in schema] == []


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write_json({"value": 1}, path)
    with pytest.raises(FileNotFoundError) as caught:
        write_json({"value": 1}, tmp_path / "no" / "report.json")
    assert caught.value.filename == f"{tmp_path}/no/report.json"  # not the temporary file's
    with pytest.raises(TypeError):
        write_json({"value": object()}, path)
    assert json.loads(path.read_text()) == {"value": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.json"]


def test_findings_are_handed_out_before_the_check_ends(subject: Subject) -> None:
    seen: list[tuple[int, bool]] = []

    class Listening(Unwatched):
        def found(self, report: CheckReport) -> None:
            seen.append((len(report.findings), report.complete))

    run_check(SMALL, [subject], PLAN, watcher=Listening())
    assert seen == [*((count, False) for count in range(8)), (7, True)]


def test_the_default_number_of_runs_sees_the_field_reports_rate() -> None:
    assert runs_needed(0.05) <= checking.RUNS
    assert checking.FIELD_SHAPE == (1024, 256, 512)


def test_operands_are_not_written_by_a_check(subject: Subject, operands: Operands) -> None:
    before = operands.input.clone(), operands.weight.clone()
    report_of(subject, operands)
    assert torch.equal(operands.input, before[0])
    assert torch.equal(operands.weight, before[1])


# ---- devices, and kernels that are interpreted -----------------------------------------------------------------------


def test_every_probes_operands_are_on_the_subjects_device(operands: Operands) -> None:
    devices: set[tuple[str, str]] = set()

    def call(input: Tensor, weight: Tensor) -> MaxSum:
        devices.add((input.device.type, weight.device.type))
        return MaxSum(torch.zeros(len(input)), torch.ones(len(input)))

    few = replace(operands, input=operands.input[:3])  # so that rows beside the batch are needed, too
    elsewhere = Subject("elsewhere", call, device="meta")
    findings = list(check_operands([elsewhere, replace(elsewhere, name="again")], few, Plan(4, (1,), 0)))
    assert devices == {("meta", "meta")}
    assert len(findings) == 14
    assert Verdict.FAILED not in {found.judgement.verdict for found in findings}


def test_an_interpreted_subject_runs_fewer_calls_and_the_report_says_so(subject: Subject, tmp_path: Path) -> None:
    slow = replace(subject, name="slow", interpreted="SLOW=1")
    plan = Plan(runs=60, threads=(1, 2), seed=0, interpreted_runs=4)
    report = run_check(SMALL, [subject, slow], plan)
    calls = {
        (found.kernel, found.probe): found.evidence.calls for found in report.findings if found.evidence is not None
    }
    assert (calls["right", "repeat"], calls["slow", "repeat"]) == (60, 4)
    assert (calls["right", "shuffled"], calls["slow", "shuffled"]) == (60, 4)
    text = " ".join(text_of(report).split())
    assert "random normal; slow is interpreted" in text
    assert (
        "slow was interpreted (SLOW=1): the same arithmetic on the CPU, hundreds of times slower; so 4 calls a probe "
        "in place of 60. What a GPU's compiler makes of it was not checked."
    ) in text
    document = check_document(report)
    assert document["interpreted"] == {"slow": "SLOW=1"}
    assert document["plan"]["interpreted_runs"] == 4


def test_runs_that_are_asked_for_hold_for_interpreted_subjects_too(subject: Subject) -> None:
    slow = replace(subject, interpreted="SLOW=1")
    report = run_check(SMALL, [slow], Plan(runs=5, threads=(1,), seed=0, interpreted_runs=None))
    found = finding(report, "repeat")
    assert found.evidence is not None
    assert found.evidence.calls == 5
    assert "in place of" not in text_of(report)


def test_default_shapes_are_smaller_where_a_subject_is_interpreted(subject: Subject) -> None:
    assert default_shapes([subject]) == DEFAULT_SHAPES
    assert default_shapes([subject, replace(subject, interpreted="SLOW=1")]) == INTERPRETED_SHAPES


def test_smaller_shapes_are_named(subject: Subject) -> None:
    problem = ProblemReport(INTERPRETED_SHAPES[0], "fp32", "random normal")
    report = CheckReport(
        replace(PLAN, interpreted_runs=6), {}, (problem,), complete=True, interpreted={"slow": "SLOW=1"}
    )
    assert "so 6 calls a probe in place of 60, and smaller shapes." in " ".join(text_of(report).split())


def test_without_an_interpreted_subject_nothing_is_said_of_it(subject: Subject) -> None:
    report = run_check(SMALL, [subject], Plan(runs=4, threads=(1,), seed=0, interpreted_runs=2))
    assert "interpreted" not in text_of(report)
    assert check_document(report)["interpreted"] == {}
