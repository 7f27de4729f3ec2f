"""Files of many processes are served as one; a bad one is named and takes no other's figures away."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from steadysum.errors import MetricsFileError, MetricsFileNotFoundError
from steadysum.monitor.exporter import Exporter
from steadysum.monitor.files import MetricsFiles
from steadysum.monitor.metrics import Metrics
from steadysum.monitor.metrics_file import write_metrics
from steadysum.notices import Notice

Value = Callable[..., float | None]


def _write(path: Path, rank: int, retries: int = 1, **labels: str) -> None:
    metrics = Metrics({"run": "train", "rank": str(rank), "pid": str(100 + rank), **labels}, "0.1.0")
    metrics.running.set(1)
    for _ in range(retries):
        metrics.hear(Notice("retry", {"operator": "head"}))
    metrics.hear(Notice("sync", {"point": "exit", "outcome": "ok"}, 0.25))
    write_metrics(path, metrics.text())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for rank in range(3):
        _write(tmp_path / f"{rank}.prom", rank, retries=1 + rank)
    return tmp_path


def _text(files: MetricsFiles, scrape: Callable[[str], str]) -> str:
    exporter = Exporter(files, port=0)
    try:
        return scrape(exporter.address)
    finally:
        exporter.close()


def test_every_file_of_a_folder_is_served_and_told_apart_by_labels(folder: Path, scrape: Any, value: Value) -> None:
    (folder / "notes.txt").write_text("not metrics")
    text = _text(MetricsFiles([folder]), scrape)
    for rank in range(3):
        assert value(text, "steadysum_retries_total", rank=str(rank)) == 1.0 + rank
        assert value(text, "steadysum_metrics_file_readable", file=str(folder / f"{rank}.prom")) == 1.0
    assert "notes" not in text


def test_promtool_has_nothing_against_many_files_served_as_one(folder: Path, scrape: Any, promtool: Any) -> None:
    (folder / "bad.prom").write_text("x")
    found = promtool("check", "metrics", text=_text(MetricsFiles([folder]), scrape))
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


def test_files_are_read_anew_for_each_scrape(folder: Path, scrape: Any, value: Value) -> None:
    exporter = Exporter(MetricsFiles([folder]), port=0)
    try:
        assert value(scrape(exporter.address), "steadysum_retries_total", rank="0") == 1.0
        _write(folder / "0.prom", 0, retries=5)
        _write(folder / "9.prom", 9)
        (folder / "1.prom").unlink()
        text = scrape(exporter.address)
    finally:
        exporter.close()
    assert value(text, "steadysum_retries_total", rank="0") == 5.0
    assert value(text, "steadysum_retries_total", rank="9") == 1.0
    assert value(text, "steadysum_retries_total", rank="1") is None


def test_a_file_that_turns_bad_is_shown_and_the_others_are_still_served(
    folder: Path, scrape: Any, value: Value
) -> None:
    files = MetricsFiles([folder / "0.prom", folder / "1.prom", folder / "2.prom"])
    whole = (folder / "0.prom").read_bytes()
    (folder / "0.prom").write_bytes(whole[: len(whole) // 2])
    (folder / "1.prom").unlink()
    text = _text(files, scrape)
    for rank, readable in ((0, 0.0), (1, 0.0), (2, 1.0)):
        assert value(text, "steadysum_metrics_file_readable", file=str(folder / f"{rank}.prom")) == readable
    assert value(text, "steadysum_retries_total", rank="2") == 3.0
    assert value(text, "steadysum_retries_total", rank="0") is None


def test_a_bad_file_that_is_named_is_refused_at_once(folder: Path) -> None:
    (folder / "bad.prom").write_text("steadysum_calls_total 1\n")
    with pytest.raises(MetricsFileError, match=r"bad\.prom.*doesn't begin"):
        MetricsFiles([folder / "bad.prom"])
    with pytest.raises(MetricsFileNotFoundError, match=r"none\.prom: got no such file"):
        MetricsFiles([folder / "none.prom"])
    assert [contents.path.name for contents in MetricsFiles([folder]).read() if contents.error] == ["bad.prom"]


def test_of_two_files_that_cannot_be_told_apart_the_second_is_refused(folder: Path, scrape: Any, value: Value) -> None:
    (folder / "copy.prom").write_bytes((folder / "0.prom").read_bytes())
    with pytest.raises(
        MetricsFileError, match=r"copy\.prom: got the labels pid=100, rank=0, run=train, which .*0\.prom"
    ):
        MetricsFiles([folder / "0.prom", folder / "copy.prom"])
    text = _text(MetricsFiles([folder]), scrape)
    assert (
        value(text, "steadysum_retries_total", rank="0") == 1.0
    )  # once: Prometheus refuses a series that is there twice
    assert value(text, "steadysum_metrics_file_readable", file=str(folder / "copy.prom")) == 0.0


def test_labels_of_the_users_own_tell_files_apart(folder: Path) -> None:
    _write(folder / "other host.prom", 0, host="b")
    assert not [contents for contents in MetricsFiles([folder]).read() if contents.error]


def test_a_source_that_is_named_twice_is_read_once(folder: Path) -> None:
    assert len(MetricsFiles([folder, folder / "0.prom", folder]).read()) == 3
