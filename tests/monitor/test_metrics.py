"""Every kind of notice is counted, in series that Prometheus and promtool are content with."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client.openmetrics import exposition, parser

from steadysum.errors import OperandTypeError, RangeError
from steadysum.monitor.labels import checked_labels, process_labels
from steadysum.monitor.metrics import ATTRIBUTIONS, Metrics
from steadysum.monitor.peaks import WINDOW, Peaks
from steadysum.notices import KINDS, listen, post

Value = Callable[..., float | None]
LABELS = {"run": "train", "rank": "0", "pid": "7"}


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(LABELS, "0.1.0")


def _everything(metrics: Metrics) -> None:
    """One notice of each kind, through the hook that the work below uses."""
    with listen(metrics.hear):
        post("call", operator="head", outcome="healed")
        post("check", 0.25, operator="head", check="Finite", outcome="failed")
        post("anomaly", operator="head", check="Finite", attribution="transient")
        post("retry", operator="head")
        post("fallback", operator="head", to="eager")
        post("healed_tile", 3.0, operator="head")
        post("bundle", 4096.0, operator="head", outcome="written")
        post("sync", 0.004, point="P2 tiles: barrier tiles", outcome="timeout")


@pytest.mark.parametrize(
    ("name", "labels", "expected"),
    [
        ("steadysum_calls_total", {"operator": "head", "outcome": "healed"}, 1.0),
        ("steadysum_checks_total", {"operator": "head", "check": "Finite", "outcome": "failed"}, 1.0),
        ("steadysum_check_duration_seconds_sum", {"operator": "head", "check": "Finite"}, 0.25),
        ("steadysum_check_duration_seconds_count", {"operator": "head", "check": "Finite"}, 1.0),
        ("steadysum_anomalies_total", {"operator": "head", "check": "Finite", "attribution": "transient"}, 1.0),
        ("steadysum_retries_total", {"operator": "head"}, 1.0),
        ("steadysum_fallbacks_total", {"operator": "head", "to": "eager"}, 1.0),
        ("steadysum_healed_tiles_total", {"operator": "head"}, 3.0),
        ("steadysum_bundles_total", {"operator": "head", "outcome": "written"}, 1.0),
        ("steadysum_bundle_written_bytes_total", {"operator": "head"}, 4096.0),
        ("steadysum_sync_total", {"point": "P2 tiles: barrier tiles", "outcome": "timeout"}, 1.0),
        ("steadysum_sync_duration_seconds_sum", {"point": "P2 tiles: barrier tiles"}, 0.004),
        ("steadysum_sync_duration_seconds_bucket", {"point": "P2 tiles: barrier tiles", "le": "0.001"}, 0.0),
        ("steadysum_sync_duration_seconds_bucket", {"point": "P2 tiles: barrier tiles", "le": "0.005"}, 1.0),
        ("steadysum_sync_duration_peak_seconds", {"point": "P2 tiles: barrier tiles"}, 0.004),
    ],
)
def test_a_notice_of_each_kind_is_counted(
    metrics: Metrics, value: Value, name: str, labels: dict[str, str], expected: float
) -> None:
    _everything(metrics)
    assert value(metrics.text(), name, **labels, **LABELS) == expected


def test_no_kind_of_notice_is_left_out(metrics: Metrics) -> None:
    assert metrics._hearers.keys() == KINDS.keys()


def test_what_has_not_happened_is_there_with_zero_so_that_its_first_time_is_an_increase(
    metrics: Metrics, value: Value
) -> None:
    with listen(metrics.hear):
        post("call", operator="head", outcome="clean")
        post("check", 0.1, operator="head", check="Finite", outcome="passed")
        post("sync", 0.1, point="exit", outcome="ok")
    text = metrics.text()
    assert value(text, "steadysum_calls_total", operator="head", outcome="raised") == 0.0
    assert value(text, "steadysum_retries_total", operator="head") == 0.0
    assert value(text, "steadysum_sync_total", point="exit", outcome="stale") == 0.0
    for attribution in ATTRIBUTIONS:
        assert value(text, "steadysum_anomalies_total", check="Finite", attribution=attribution) == 0.0


def test_the_attributions_are_those_that_the_guard_gives() -> None:
    from steadysum.guard.attribution import Attribution

    assert set(ATTRIBUTIONS) == set(Attribution.__args__)  # type: ignore[attr-defined]


def test_notices_of_many_threads_are_all_counted(metrics: Metrics, value: Value) -> None:
    def work() -> None:
        for _ in range(500):
            post("call", operator="head", outcome="clean")

    with listen(metrics.hear):
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert value(metrics.text(), "steadysum_calls_total", outcome="clean") == 4000.0


def test_every_series_has_the_labels_of_its_process(metrics: Metrics) -> None:
    _everything(metrics)
    samples = [sample for family in metrics.collect() for sample in family.samples]
    assert {sample.name for sample in samples} > {"steadysum_calls_total", "steadysum_sync_duration_seconds_bucket"}
    assert all(LABELS.items() <= sample.labels.items() for sample in samples)


def test_promtool_has_nothing_against_the_metrics(metrics: Metrics, promtool: Any) -> None:
    _everything(metrics)
    found = promtool("check", "metrics", text=metrics.text())
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


def test_promtool_does_object_to_a_metric_without_its_unit(promtool: Any) -> None:
    found = promtool("check", "metrics", text="# TYPE wait_milliseconds gauge\nwait_milliseconds 1\n")
    assert found.returncode != 0
    assert "milliseconds" in found.stdout + found.stderr


def test_the_open_format_that_prometheus_asks_for_first_holds_the_same(metrics: Metrics) -> None:
    _everything(metrics)
    text = exposition.generate_latest(metrics).decode()  # type: ignore[no-untyped-call]
    families = {family.name for family in parser.text_string_to_metric_families(text)}  # type: ignore[no-untyped-call]
    assert families == {family.name for family in metrics.collect()}


# ---- the peak ------------------------------------------------------------------------------------------------------


def test_a_peak_is_shown_for_one_to_two_windows_and_then_passes() -> None:
    now = [0.0]
    peaks = Peaks("peak", "Longest.", "point", clock=lambda: now[0])

    def shown() -> list[float]:
        return [sample.value for family in peaks.collect() for sample in family.samples]

    assert shown() == []
    peaks.saw("exit", 2.0)
    peaks.saw("exit", 1.0)
    assert shown() == [2.0]
    now[0] = WINDOW  # the next window
    peaks.saw("exit", 0.5)
    assert shown() == [2.0]
    now[0] = 2 * WINDOW  # the one after it
    assert shown() == [0.5]
    now[0] = 9 * WINDOW  # long after: the series stays
    assert shown() == [0.0]


# ---- labels --------------------------------------------------------------------------------------------------------


def test_a_process_is_named_by_its_run_rank_and_pid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/home/me/pretrain.py", "--steps", "10"])
    assert process_labels()["run"] == "pretrain"
    assert process_labels()["rank"] == "0"
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")  # torchrun, without --rdzv-id
    assert (process_labels()["run"], process_labels()["rank"]) == ("pretrain", "3")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job-17")
    assert process_labels()["run"] == "job-17"
    monkeypatch.setenv("STEADYSUM_RUN", "ablation 4")
    assert process_labels()["run"] == "ablation 4"


@pytest.mark.parametrize("first", ["", "-c", "-"])
def test_a_process_without_a_script_is_called_python(monkeypatch: pytest.MonkeyPatch, first: str) -> None:
    monkeypatch.setattr("sys.argv", [first])
    assert process_labels()["run"] == "python"


@pytest.mark.parametrize("name", ["le", "operator", "instance", "__name", "a-b", "1st", ""])
def test_a_label_that_a_metric_or_prometheus_has_by_itself_is_refused(name: str) -> None:
    with pytest.raises(RangeError, match="no digit first") as refused:
        checked_labels({name: "x"})
    assert refused.value.seen == f"a label {name!r}"


def test_a_label_of_another_type_and_an_empty_one_are_refused() -> None:
    with pytest.raises(OperandTypeError, match=r"label loss: got 0\.5"):
        checked_labels({"loss": 0.5})  # type: ignore[dict-item]
    with pytest.raises(RangeError, match="Leave the label out"):
        checked_labels({"team": ""})
