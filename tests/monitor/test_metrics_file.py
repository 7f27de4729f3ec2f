"""The metrics file is whole or refused, and is never put in the place of somebody's other file."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from steadysum.errors import MetricsFileError, MetricsFileNotFoundError
from steadysum.monitor.metrics import Metrics
from steadysum.monitor.metrics_file import identity_of, parse_metrics, path_in, read_metrics, write_metrics
from steadysum.notices import Notice

LABELS = {"run": "train", "rank": "0", "pid": "7", "team": 'a"b\\c\nd'}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.prom"
    write_metrics(path, Metrics(LABELS, "0.1.0").text())
    return path


def _series(families: Iterable[Any]) -> set[tuple[str, frozenset[tuple[str, str]], float]]:
    return {
        (sample.name, frozenset(sample.labels.items()), sample.value)
        for family in families
        for sample in family.samples
        if sample.name != "steadysum_written_timestamp_seconds"
    }


def test_what_was_written_is_read(file: Path) -> None:
    metrics = Metrics(LABELS, "0.1.0")
    metrics.hear(Notice("sync", {"point": "exit", "outcome": "ok"}, 0.1 + 0.2))  # no short decimal
    write_metrics(file, metrics.text())
    assert _series(read_metrics(file)) == _series(metrics.collect())
    assert identity_of(read_metrics(file)) == LABELS


def test_a_file_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(MetricsFileNotFoundError, match=r"no such file.*start\(file"):
        read_metrics(tmp_path / "run.prom")


def test_every_beginning_of_a_file_is_refused(file: Path) -> None:
    whole = file.read_bytes()
    for length in [*range(0, len(whole), 101), *range(len(whole) - 40, len(whole))]:
        file.write_bytes(whole[:length])
        with pytest.raises(MetricsFileError, match="metrics file"):
            read_metrics(file)


@pytest.mark.parametrize(
    ("content", "seen"),
    [
        (b"", "doesn't begin as metrics of steadysum do"),
        (b"\x00\xff" * 40, "doesn't begin as metrics of steadysum do"),
        (b"# steadysum metrics 1\n\xff\n# EOF\n", "bytes that aren't text, at 22"),
        (b"# steadysum metrics 1\nsteadysum_a 1\n", "it isn't whole"),
        (b"# steadysum metrics 1\nsteadysum_a{b=1} x y z\n# EOF\n", "isn't in Prometheus's format"),
        (b"# steadysum metrics 1\nsteadysum_a one\n# EOF\n", "isn't in Prometheus's format"),
        (b"# steadysum metrics 1\nother 1\n# EOF\n", "no steadysum_monitor_running with the labels run, rank, pid"),
        (b"# steadysum metrics 1\nsteadysum_monitor_running 1\n# EOF\n", "with the labels run, rank, pid"),
    ],
)
def test_a_bad_file_is_refused_with_what_is_wrong(tmp_path: Path, content: bytes, seen: str) -> None:
    path = tmp_path / "run.prom"
    path.write_bytes(content)
    with pytest.raises(MetricsFileError, match="metrics file") as refused:
        read_metrics(path)
    assert seen in refused.value.seen
    assert str(path) in refused.value.what


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MetricsFileError, match="Is a directory"):
        read_metrics(tmp_path)


def test_metrics_of_others_are_left_out(file: Path) -> None:
    text = file.read_text() + "# TYPE python_gc_objects counter\npython_gc_objects_total 3\n"
    assert all(family.name.startswith("steadysum_") for family in parse_metrics(text, "here"))


def test_a_write_that_fails_leaves_the_old_file_and_no_other(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = file.read_bytes()

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OSError, match="No space left"):
        write_metrics(file, Metrics(LABELS, "0.1.0").text())
    assert file.read_bytes() == before
    assert os.listdir(file.parent) == [file.name]


def test_processes_of_one_folder_have_files_of_their_own(tmp_path: Path) -> None:
    names = {
        path_in(tmp_path, {"run": run, "rank": rank, "pid": pid}).name
        for run in ("a", "b")
        for rank in ("0", "1")
        for pid in ("7", "8")
    }
    assert len(names) == 8
    assert path_in(tmp_path, {"run": "../x", "rank": "0", "pid": "1"}).parent == tmp_path
