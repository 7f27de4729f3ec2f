"""Tables of events and waits, their filters, and following the newest trace."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from steadysum.errors import OptionError, TraceNotFoundError
from steadysum.trace.json_lines import save_trace
from steadysum.trace.recorder import Trace
from steadysum.trace.views import Filter, events_view, filtered, sync_view
from steadysum.trace.watching import follow, trace_file

from .fake_call import fake_call


def _text(view: RenderableType, width: int = 100) -> str:
    console = Console(width=width, record=True, force_terminal=False)
    console.print(view)
    return console.export_text()


@pytest.mark.parametrize("core", [None, 2])
@pytest.mark.parametrize("phase", [None, "p2", "P2 tiles"])
@pytest.mark.parametrize("action", [None, "compute"])
def test_a_filter_keeps_what_it_says_and_nothing_else(core: int | None, phase: str | None, action: str | None) -> None:
    trace = fake_call()
    kept = filtered(trace, Filter(core, phase, action)).events
    for event in trace.events:
        wanted = core in (None, event.unit.core)
        wanted = wanted and (phase is None or event.phase == "P2 tiles")
        wanted = wanted and action in (None, event.action)
        assert (event in kept) == wanted


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (Filter(core=9), "--core: got 9; allowed: cores 0 to 3"),
        (Filter(phase="P7"), "P0 init, P2 tiles, P3 combine"),
        (Filter(action="nap"), "compute, write, drain"),
    ],
)
def test_a_filter_for_what_is_not_there_is_refused(wanted: Filter, message: str) -> None:
    with pytest.raises(OptionError) as raised:
        filtered(fake_call(), wanted)
    assert message in str(raised.value)


def test_the_events_are_cut_at_the_limit_which_is_said() -> None:
    trace = fake_call()
    text = _text(events_view(Trace(trace.events, dropped=3), limit=5))
    assert f"{len(trace.events) - 5} more" in text
    assert "3 older events were dropped" in text
    assert text.count("core ") == 5
    assert "more" not in _text(events_view(trace, limit=len(trace.events))).splitlines()[-1]


def test_each_core_has_a_row_for_each_of_its_sync_points() -> None:
    text = _text(sync_view(fake_call(cores=4, late=2)))
    assert (text.count("barrier init"), text.count("await ready"), text.count("barrier tiles")) == (4, 4, 4)
    assert "no waits" in _text(sync_view(Trace(())))


def test_following_yields_the_newest_trace_and_each_newer_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEADYSUM_TRACES", str(tmp_path))
    looks = 0

    def stopped() -> bool:
        nonlocal looks
        looks += 1
        if looks == 2:
            save_trace(fake_call(cores=1, late=None))
        if looks == 5:
            os.utime(save_trace(fake_call(cores=2)), (2e9, 2e9))
        return looks > 8

    found = [len(trace.events) for _, trace in follow(None, stopped, pause=0.0)]
    assert found == [len(fake_call(cores=1, late=None).events), len(fake_call(cores=2).events)]


def test_a_file_is_followed_when_it_is_named(tmp_path: Path) -> None:
    path = save_trace(fake_call(cores=1, late=None), tmp_path / "mine.jsonl")
    answers: Iterator[bool] = iter((False, False, True))
    assert [found for found, _ in follow(path, lambda: next(answers), pause=0.0)] == [path]
    assert trace_file(path) == path


def test_nothing_recorded_is_an_error_where_nothing_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEADYSUM_TRACES", str(tmp_path))
    with pytest.raises(TraceNotFoundError):
        trace_file(None)
