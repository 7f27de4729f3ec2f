"""Figures are what was counted, for each process by itself; tables and JSON show the same."""

from __future__ import annotations

import io
import json
import math

import pytest
from prometheus_client import core
from rich.console import Console

from steadysum.monitor.figures import ProcessFigures, figures_of
from steadysum.monitor.metrics import Metrics
from steadysum.monitor.metrics_file import parse_metrics
from steadysum.monitor.table import figures_document, process_view
from steadysum.notices import listen, post


def _families(rank: str = "0", waits: int = 100) -> list[core.Metric]:
    metrics = Metrics({"run": "train", "rank": rank, "pid": "7"}, "0.1.0")
    metrics.running.set(1)
    with listen(metrics.hear):
        for outcome, count in (("clean", 95), ("healed", 3), ("fallback", 1), ("raised", 1)):
            for _ in range(count):
                post("call", operator="head", outcome=outcome)
        for _ in range(4):
            post("check", 0.002, operator="head", check="Finite", outcome="passed")
        post("check", 0.004, operator="head", check="Finite", outcome="failed")
        post("anomaly", operator="head", check="Finite", attribution="transient")
        post("retry", operator="head")
        post("fallback", operator="head", to="eager")
        post("healed_tile", 6.0, operator="head")
        post("bundle", 10.0, operator="head", outcome="written")
        for number in range(waits):
            post("sync", 0.004 if number < waits - 2 else 0.04, point="exit", outcome="ok")
        post("sync", 2.0, point="tiles", outcome="timeout")
    return parse_metrics(metrics.text(), "test")


@pytest.fixture
def process() -> ProcessFigures:
    (found,) = figures_of(_families())
    return found


def test_the_figures_of_an_operator_are_those_of_its_notices(process: ProcessFigures) -> None:
    (operator,) = process.operators
    assert operator.calls == {"clean": 95, "healed": 3, "fallback": 1, "raised": 1}
    assert (operator.retries, operator.fallbacks, operator.healed_tiles) == (1, {"eager": 1}, 6)
    assert operator.bundles["written"] == 1


def test_the_figures_of_a_check_are_those_of_its_notices(process: ProcessFigures) -> None:
    (check,) = process.checks
    assert check.outcomes == {"passed": 4, "failed": 1}
    assert check.anomalies == {"transient": 1, "persistent": 0, "application": 0, "undecided": 0}
    assert check.mean_seconds == pytest.approx((4 * 0.002 + 0.004) / 5)


def test_the_99th_percentile_is_bounded_by_its_bucket(process: ProcessFigures) -> None:
    exit_point, tiles = process.syncs
    assert exit_point.p99 == 0.05  # of 100 waits the 99th takes 40 ms: the next bound is 50 ms
    assert exit_point.peak == 0.04
    assert exit_point.success_rate == 1.0
    assert tiles.success_rate == 0.0
    assert tiles.outcomes["timeout"] == 1


def test_figures_of_several_processes_are_not_mixed_and_ordered_by_the_number_of_their_rank() -> None:
    found = figures_of([*_families("10", waits=3), *_families("9", waits=2)])
    assert [(one.labels["rank"], one.syncs[0].waits) for one in found] == [("9", 2), ("10", 3)]


def test_without_anything_counted_there_are_no_figures_but_the_process() -> None:
    metrics = Metrics({"run": "train", "rank": "0", "pid": "7"}, "0.1.0")
    (found,) = figures_of(parse_metrics(metrics.text(), "test"))
    assert (found.operators, found.checks, found.syncs, found.is_running) == ((), (), (), False)
    assert "nothing was counted yet" in _shown(found)
    assert figures_of([]) == []


def _shown(process: ProcessFigures, after: float = 1.0, width: int = 80) -> str:
    out = io.StringIO()
    Console(file=out, width=width, no_color=True).print(process_view(process, process.written + after))
    return out.getvalue()


def test_the_tables_show_the_figures_and_fit_80_columns(process: ProcessFigures) -> None:
    text = _shown(process)
    assert "run train, rank 0, pid 7: running, figures of 1 s ago" in text
    rows = {tuple(line.split()) for line in text.splitlines()}
    assert ("head", "100", "95", "3", "1", "1", "1", "6", "1") in rows
    assert ("head", "Finite", "4", "1", "2400", "1", "transient") in rows
    assert ("exit", "100", "100", "%", "-", "50.0k", "40.0k") in rows
    assert ("tiles", "1", "0", "%", "1", "timeout", "2.00M", "2.00M") in rows
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (119.0, "running, figures of 1.98 min ago"),
        (600.0, "says nothing any more, figures of 10 min ago"),
        (7200.0, "figures of 2 h ago"),
        (3 * 86400.0, "figures of 3 d ago"),
    ],
)
def test_a_process_that_was_killed_says_nothing_any_more(process: ProcessFigures, after: float, said: str) -> None:
    assert said in _shown(process, after)


def test_the_document_has_the_same_figures_as_json(process: ProcessFigures) -> None:
    document = json.loads(json.dumps(figures_document([process])))
    assert document["schema"] == "steadysum.metrics/1"
    (plain,) = document["processes"]
    assert plain["operators"][0]["calls"]["clean"] == 95
    assert plain["checks"][0]["mean_seconds"] == process.checks[0].mean_seconds
    assert plain["syncs"][1]["success_rate"] == 0.0
    assert not math.isnan(plain["written"])
