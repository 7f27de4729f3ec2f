"""Traces as files: what was saved is what is loaded, and a damaged or foreign file says where it is wrong."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from steadysum.errors import RangeError, TraceFileError, TraceNotFoundError
from steadysum.trace import files
from steadysum.trace.events import ACTIONS, OUTCOMES, Event, Unit
from steadysum.trace.json_lines import load_trace, newest_trace, save_trace, to_json_lines
from steadysum.trace.recorder import Trace

from .fake_call import fake_call

numbers = st.integers(-(2**53), 2**53)
times = st.floats(-1e12, 1e12)
texts = st.text(max_size=8)  # line ends and surrogate-free Unicode included
any_events = st.builds(
    lambda begin, length, **rest: Event(begin=begin, end=begin + length, **rest),
    begin=times,
    length=st.floats(0, 1e9),
    number=numbers,
    epoch=numbers,
    unit=st.builds(Unit, numbers, texts),
    phase=texts,
    action=st.sampled_from(ACTIONS),
    outcome=st.sampled_from(OUTCOMES),
    place=st.tuples(numbers, numbers, numbers),
    detail=texts,
    spans=st.lists(st.tuples(texts, numbers, numbers), max_size=3).map(tuple),
    flags=st.lists(st.tuples(texts, numbers, texts), max_size=3).map(tuple),
    value=numbers,
    writes=st.lists(numbers, max_size=3).map(tuple),
)


@given(st.lists(any_events, max_size=5), st.dictionaries(texts, st.lists(numbers)), st.integers(0, 10))
def test_a_saved_trace_loads_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, events: list[Event], what: dict[str, list[int]], dropped: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    trace = Trace(tuple(events), what, dropped)
    assert load_trace(save_trace(trace, path)) == trace


@given(st.data())
def test_a_file_cut_anywhere_is_refused_and_says_at_which_line(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = to_json_lines(fake_call(cores=2)).encode()
    length = data.draw(st.integers(0, len(whole) - 1))
    path = tmp_path_factory.getbasetemp() / "cut.jsonl"
    path.write_bytes(whole[:length])
    with pytest.raises(TraceFileError) as raised:
        load_trace(path)
    lines = whole[:length].count(b"\n")
    # The line that the cut goes through; where it falls between two lines, the last whole one.
    last = lines + (not whole[:length].endswith(b"\n"))
    assert f"cut.jsonl, line {max(last, 1)}:" in str(raised.value)


def _changed(change: Callable[[list[str]], None]) -> str:
    lines = to_json_lines(fake_call(cores=2)).splitlines()
    change(lines)
    return "\n".join(lines) + "\n"


def _field(line: int, name: str, value: object) -> Callable[[list[str]], None]:
    def change(lines: list[str]) -> None:
        lines[line - 1] = json.dumps({**json.loads(lines[line - 1]), name: value})

    return change


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: got no JSON"),
        ("PK\x03\x04\n", "line 1: got no JSON"),
        ('{"traceEvents": []}\n', "line 1: got schema None; allowed: 'steadysum.trace/1'. This isn't a trace"),
        (_changed(_field(1, "schema", "steadysum.trace/2")), "Use the version of steadysum that wrote it"),
        (_changed(_field(1, "events", "3")), "line 1: got events: '3'"),
        (_changed(_field(4, "action", "sleep")), "line 4: got 'sleep', none of compute, write"),
        (_changed(_field(4, "begin", "soon")), "line 4: got 'soon' where a time belongs"),
        (_changed(_field(4, "begin", float("nan"))), "line 4: got nan where a time belongs"),
        (_changed(_field(4, "end", -1.0)), "before begin"),
        (_changed(_field(4, "unit", ["x", "v0"])), "line 4: got 'x' where a whole number belongs"),
        (_changed(_field(4, "colour", "red")), "line 4: got unknown field 'colour'"),
        (_changed(lambda lines: lines.__setitem__(5, "{}")), "line 6: got no field 'unit'"),
        (_changed(lambda lines: lines.__setitem__(5, "[1]")), "line 6: got a JSON list; allowed: a JSON object"),
        (_changed(lambda lines: lines.append(lines[-1])), "added to"),
    ],
)
def test_a_foreign_or_damaged_file_says_which_line_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(text)
    with pytest.raises(TraceFileError) as raised:
        load_trace(path)
    assert message in str(raised.value)


def test_a_file_that_is_not_there_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceNotFoundError, match="no file"):
        load_trace(tmp_path / "none.jsonl")
    with pytest.raises(TraceFileError, match="a folder"):
        load_trace(tmp_path)


def test_what_json_can_not_hold_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(RangeError, match="finite numbers"):
        save_trace(replace(fake_call(), what={"load": float("inf")}), tmp_path / "trace.jsonl")
    with pytest.raises(RangeError, match="set"):
        save_trace(replace(fake_call(), what={"cores": {1}}), tmp_path / "trace.jsonl")
    assert list(tmp_path.iterdir()) == []


def test_a_trace_that_can_not_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_trace(fake_call(cores=2), tmp_path / "trace.jsonl")
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device", "temporary")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space left") as raised:
        save_trace(fake_call(cores=4), path)
    assert raised.value.filename == str(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


# ---- where recorded traces live -------------------------------------------------------------------------------------


def test_recorded_traces_live_where_the_variables_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEADYSUM_TRACES", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert save_trace(fake_call()).parent == tmp_path / "own"
    monkeypatch.delenv("STEADYSUM_TRACES")
    assert save_trace(fake_call()).parent == tmp_path / "cache/steadysum/traces"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # to be ignored, says the XDG specification
    assert save_trace(fake_call()).parent == tmp_path / "home/.cache/steadysum/traces"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert save_trace(fake_call()).parent == tmp_path / "home/.cache/steadysum/traces"


def test_the_newest_twenty_traces_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEADYSUM_TRACES", str(tmp_path))
    other = tmp_path / "notes.txt"
    other.write_text("mine")
    saved = []
    for second in range(25):
        saved.append(save_trace(fake_call(cores=1, late=None)))
        os.utime(saved[-1], (second, second))
    assert newest_trace() == saved[-1]
    last = save_trace(fake_call(cores=1, late=None))
    assert set(tmp_path.iterdir()) == {other, last, *saved[-19:]}
    assert files.KEPT == 20


def test_the_newest_trace_is_the_one_written_last_not_the_last_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEADYSUM_TRACES", str(tmp_path))
    first, second = save_trace(fake_call()), save_trace(fake_call())
    os.utime(second, (1, 1))
    assert newest_trace() == first


def test_where_nothing_was_recorded_the_error_says_how_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEADYSUM_TRACES", str(tmp_path / "nowhere"))
    with pytest.raises(TraceNotFoundError, match="steadysum emulate"):
        newest_trace()
