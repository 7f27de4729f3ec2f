"""Tests of `steadysum trace` as a user sees it."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from steadysum.trace.events import Event, Unit
from steadysum.trace.json_lines import load_trace, save_trace
from steadysum.trace.recorder import Trace

Command = Callable[..., Any]
VIEWS = ("events", "sync", "latency", "timeline")
WRITER, READER = Unit(1, "v0"), Unit(0, "v0")


def _stale_call(epoch: int = 1) -> tuple[Event, ...]:
    """Core 0 gives up waiting for core 1, and reads its slot before core 1's write is in memory."""
    flags = (("tiles", 0, "v0"), ("tiles", 1, "v0"))
    slot = (("max", 16, 32),)
    tiles, combine = (epoch, 2, 1), (epoch, 3, 0)
    return (
        Event(0, epoch, READER, "P2 tiles", "barrier", 0.0, 5.0, "timeout", tiles, "tiles", flags=flags, value=epoch),
        Event(1, epoch, READER, "P3 combine", "read", 5.0, 5.2, "ok", combine, spans=slot),
        Event(2, epoch, WRITER, "P2 tiles", "compute", 0.0, 40.0, "ok", (epoch, 2, 0), "statistics"),
        Event(3, epoch, WRITER, "P2 tiles", "write", 40.0, 40.2, "ok", (epoch, 2, 0), spans=slot, writes=(1,)),
        Event(4, epoch, WRITER, "P2 tiles", "drain", 40.3, 40.3, "ok", (epoch, 2, 0), spans=slot, writes=(1,)),
    )


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The newest recorded trace, of two launches."""
    monkeypatch.setenv("STEADYSUM_TRACES", str(tmp_path / "traces"))
    events = _stale_call(1) + _stale_call(2)
    return save_trace(Trace(events, {"policy": "legacy"}))


@pytest.mark.parametrize("view", VIEWS)
def test_each_view_shows_the_newest_trace_or_the_file_that_is_named(
    steadysum: Command, recorded: Path, tmp_path: Path, view: str
) -> None:
    newest = steadysum("trace", view)
    assert newest.code == 0
    assert str(recorded) in newest.out
    other = save_trace(Trace(_stale_call()), tmp_path / "other.jsonl")
    named = steadysum("trace", view, str(other))
    assert named.code == 0
    assert str(other) in named.out


@pytest.mark.parametrize("view", [*VIEWS, "export"])
def test_without_any_trace_every_view_ends_with_two_and_says_how_to_record_one(
    steadysum: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, view: str
) -> None:
    monkeypatch.setenv("STEADYSUM_TRACES", str(tmp_path))
    result = steadysum("trace", view, *(("--output", str(tmp_path / "x")) if view == "export" else ()))
    assert result.code == 2
    assert "error: recorded trace: got none" in result.err
    assert "steadysum emulate" in result.err
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_file_is_one_line_and_a_hint(steadysum: Command, tmp_path: Path) -> None:
    path = save_trace(Trace(_stale_call()), tmp_path / "cut.jsonl")
    path.write_bytes(path.read_bytes()[:-10])
    result = steadysum("trace", "events", str(path))
    assert result.code == 2
    assert "cut.jsonl, line 6: got 4 whole events" in result.err
    assert "Traceback" not in result.err


def test_the_events_can_be_filtered(steadysum: Command, recorded: Path) -> None:
    out = steadysum("trace", "events", "--core", "1", "--phase", "p2", "--action", "drain", "--limit", "1").out
    assert "core 1 v0" in out
    assert "core 0" not in out
    assert "1 more" in out
    assert steadysum("trace", "events", "--core", "7").code == 2


def test_the_latency_is_also_written_as_json(steadysum: Command, recorded: Path, tmp_path: Path) -> None:
    path = tmp_path / "latency.json"
    assert steadysum("trace", "latency", "--json", str(path)).code == 0
    document = json.loads(path.read_text())
    (point,) = document["points"]
    assert (point["detail"], point["waits"]["count"], point["waits"]["max"], point["success_rate"]) == (
        "tiles",
        2,
        5,
        0,
    )


def test_the_timeline_says_who_read_what_too_early_in_every_launch(steadysum: Command, recorded: Path) -> None:
    out = steadysum("trace", "timeline").out
    assert out.count("! core 0 v0 read max [16,32) of core 1 v0 before it was written") == 2
    assert "core 1 v0" in out


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_the_timeline_is_drawn_to_a_file(steadysum: Command, recorded: Path, tmp_path: Path, ending: str) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is missing: extra `report`")
    path = tmp_path / f"timeline.{ending}"
    result = steadysum("trace", "timeline", "--output", str(path))
    assert result.code == 0
    assert path.read_bytes().startswith({"svg": b"<?xml", "png": b"\x89PNG"}[ending])
    if ending == "svg":
        assert "before it was written" in path.read_text()
    assert steadysum("trace", "timeline", "--output", str(tmp_path / "timeline.gif")).code == 2


def test_the_exports_are_what_their_names_say(steadysum: Command, recorded: Path, tmp_path: Path) -> None:
    chrome, lines = tmp_path / "trace.json", tmp_path / "trace.jsonl"
    assert steadysum("trace", "export", "--output", str(chrome)).code == 0
    assert {entry["ph"] for entry in json.loads(chrome.read_text())["traceEvents"]} >= {"X", "M", "i"}
    assert steadysum("trace", "export", "--format", "jsonl", "--output", str(lines)).code == 0
    assert load_trace(lines) == load_trace(recorded)
    assert steadysum("trace", "export", "--output", str(tmp_path / "none" / "x")).code == 2


def _interrupt_after(seconds: float) -> threading.Timer:
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    return timer


def test_watching_ends_with_ctrl_c_and_shows_what_it_has(steadysum: Command, recorded: Path) -> None:
    timer = _interrupt_after(0.6)
    result = steadysum("trace", "sync", "--watch")
    timer.join()
    assert result.code == 0
    assert "barrier tiles" in result.out


def test_watching_where_nothing_comes_ends_with_two(
    steadysum: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEADYSUM_TRACES", str(tmp_path))
    timer = _interrupt_after(0.6)
    result = steadysum("trace", "latency", "--watch")
    timer.join()
    assert result.code == 2
    assert "error: recorded trace: got none" in result.err
