"""Tests of steadysum.diagnosis.speed: the table's figures, not the machine's speed."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from steadysum.diagnosis.arguments import Shape
from steadysum.diagnosis.operands import OperandSource, random_operands
from steadysum.diagnosis.speed import PLAIN, PRODUCT, contenders, run_bench, speed_document, speed_report, speed_table
from steadysum.diagnosis.subject import Subject
from steadysum.timing import Timings

SMALL = OperandSource(shapes=(Shape(4, 8, 600),))


def test_figures_come_from_the_problems_size_and_the_median_time() -> None:
    (operands,) = SMALL.load()
    timings = Timings({PRODUCT: (1e-3, 1e-3, 1e-3), "ours": (2e-3, 2e-3, 9e-3)})
    report = speed_report(operands, timings, complete=True)
    assert report is not None
    ours = report.speeds[1]
    assert ours.seconds == 2e-3
    assert ours.ratio.median == 2.0
    assert ours.gflops == pytest.approx(2 * 4 * 8 * 600 / 2e-3 / 1e9)
    assert ours.weight_gbytes == pytest.approx(600 * 8 * 4 / 2e-3 / 1e9)


def test_every_contender_has_a_row_and_the_table_fits_80_columns(subject: Subject) -> None:
    (report,) = run_bench(SMALL, [subject], rounds=3)
    assert [speed.contender for speed in report.speeds] == [PRODUCT, PLAIN, "steadysum right"]
    console = Console(file=io.StringIO(), width=80)
    console.print(speed_table(report))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "steadysum right" in text
    assert "…" not in text
    assert speed_document([report], complete=True)["problems"][0]["speeds"][2]["contender"] == "steadysum right"


def test_a_stopped_bench_reports_its_rounds_as_incomplete(subject: Subject) -> None:
    calls = 0

    def progressed() -> None:
        nonlocal calls
        calls += 1

    (report,) = run_bench(SMALL, [subject], rounds=9, stopped=lambda: calls >= 6, progressed=progressed)
    assert (report.rounds, report.complete) == (2, False)


def test_each_device_has_a_table_with_its_own_product(subject: Subject) -> None:
    elsewhere = replace(subject, name="elsewhere", device="cpu:0")  # a device by another name
    subjects = [subject, elsewhere, replace(subject, name="slow", interpreted="SLOW=1")]
    here, there = run_bench(SMALL, subjects, rounds=3)
    assert [speed.contender for speed in here.speeds[2:]] == ["steadysum right", "steadysum slow"]
    assert [speed.contender for speed in there.speeds] == [PRODUCT, PLAIN, "steadysum elsewhere"]
    assert (here.device, there.device) == ("cpu", "cpu:0")
    problems = speed_document([here, there], True)["problems"]
    assert [(each["device"], each["interpreted"]) for each in problems] == [("cpu", ["slow"]), ("cpu:0", [])]
    console = Console(file=io.StringIO(), width=80)
    console.print(speed_table(here), speed_table(there))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert text.count("slow is interpreted: its time says nothing") == 1
    assert text.count("random normal, on cpu:0") == 1


def test_a_call_on_another_device_is_timed_until_the_device_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    class Module:
        @staticmethod
        def synchronize() -> None:
            order.append("done")

    monkeypatch.setattr(torch, "get_device_module", lambda device: order.append(device) or Module)
    (operands,) = SMALL.load()
    timed = contenders(operands.on("meta"), [])
    timed[PRODUCT]()
    assert order == ["meta", "done"]
    order.clear()
    contenders(operands, [])[PRODUCT]()
    assert order == []


def test_without_a_whole_round_there_is_no_report() -> None:
    operands = random_operands(SMALL.shapes[0], next(SMALL.load()).input.dtype, seed=0)
    assert speed_report(operands, Timings({PRODUCT: ()}), complete=False) is None
