"""Tests of steadysum.diagnosis.speed: the table's figures, not the machine's speed."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from steadysum.diagnosis.arguments import Shape
from steadysum.diagnosis.operands import OperandSource, random_operands
from steadysum.diagnosis.speed import PLAIN, PRODUCT, run_bench, speed_document, speed_report, speed_table
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


def test_without_a_whole_round_there_is_no_report() -> None:
    operands = random_operands(SMALL.shapes[0], next(SMALL.load()).input.dtype, seed=0)
    assert speed_report(operands, Timings({PRODUCT: ()}), complete=False) is None
