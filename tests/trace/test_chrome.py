"""The export for Perfetto obeys the trace event format, and shows what happened."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from steadysum.trace.chrome import chrome_document, chrome_text
from steadysum.trace.events import ACTIONS, OUTCOMES, Event, Unit
from steadysum.trace.recorder import Trace

from .fake_call import fake_call
from .trace_event_format import problems


@st.composite
def any_traces(draw: st.DrawFn) -> Trace:
    """Events that overlap, coincide, have no length, and claim signals that aren't there."""
    units = st.sampled_from([Unit(-1, "host"), Unit(0, "cube"), Unit(0, "v0"), Unit(1, "v0")])
    begins, lengths = st.integers(0, 9).map(float), st.sampled_from((0.0, 0.005, 1.0, 2.5, 7.5))
    numbers = st.lists(st.integers(0, 12), max_size=6).map(tuple)
    rows = st.tuples(
        units, begins, lengths, st.integers(1, 2), st.sampled_from(ACTIONS), st.sampled_from(OUTCOMES), numbers
    )
    return Trace(
        tuple(
            Event(number, epoch, unit, "P2 tiles", action, begin, begin + length, outcome, (epoch, 2, 0), writes=writes)
            for number, (unit, begin, length, epoch, action, outcome, writes) in enumerate(
                draw(st.lists(rows, min_size=2, max_size=12))
            )
        )
    )


def test_actions_of_a_unit_that_overlap_in_part_are_on_two_threads() -> None:
    first = Event(0, 1, Unit(0, "v0"), "P2 tiles", "compute", 0.0, 5.0, "ok", (1, 2, 0))
    document = chrome_document(Trace((first, first._replace(number=1, begin=3.0, end=8.0))))
    assert problems(document) == []
    slices = [entry for entry in document["traceEvents"] if entry["ph"] == "X"]
    assert [(entry["ts"], entry["dur"]) for entry in slices] == [(0.0, 5.0), (3.0, 5.0)]
    assert len({entry["tid"] for entry in slices}) == 2


@given(any_traces())
def test_any_trace_obeys_the_trace_event_format(trace: Trace) -> None:
    assert problems(json.loads(chrome_text(trace))) == []


@given(any_traces())
def test_every_event_is_a_slice_of_its_unit_and_says_its_exact_times(trace: Trace) -> None:
    slices = [
        entry for entry in chrome_document(trace)["traceEvents"] if entry["ph"] == "X" and "begin" in entry["args"]
    ]
    assert sorted((entry["args"]["epoch"], entry["args"]["number"]) for entry in slices) == sorted(
        (event.epoch, event.number) for event in trace.events
    )
    by_number = {event.number: event for event in trace.events}
    for entry in slices:
        event = by_number[entry["args"]["number"]]
        assert entry["pid"] == 1000 + event.unit.core
        if event.end > event.begin:  # a slice with a length of its own is drawn with it, to the nanosecond
            assert entry["dur"] == pytest.approx(event.end - event.begin, abs=1.1e-3)


@pytest.mark.parametrize("late", [None, 2])
def test_a_call_has_a_process_for_each_core_and_a_thread_for_each_unit(late: int | None) -> None:
    entries = chrome_document(fake_call(cores=4, late=late))["traceEvents"]
    names = [(entry["name"], entry["args"]["name"]) for entry in entries if entry["name"].endswith("_name")]
    assert [name for kind, name in names if kind == "process_name"] == [f"core {core}" for core in range(4)]
    threads = [name for kind, name in names if kind == "thread_name"]
    assert sorted(threads) == sorted(["cube", "v0", "v0 memory", "v1", "v1 memory"] * 4)


def _ends(entries: list[dict[str, Any]], phase: str) -> dict[int, dict[str, Any]]:
    return {entry["id"]: entry for entry in entries if entry["ph"] == phase}


def test_an_arrow_leads_from_each_signal_to_both_awaits_that_it_satisfied() -> None:
    entries = chrome_document(fake_call(cores=4, late=None))["traceEvents"]
    threads = {
        (entry["pid"], entry["tid"]): entry["args"]["name"] for entry in entries if entry["name"] == "thread_name"
    }
    starts, finishes = _ends(entries, "s"), _ends(entries, "f")
    assert starts.keys() == finishes.keys()
    arrows = [(starts[arrow], finishes[arrow]) for arrow in starts if starts[arrow]["name"] == "await"]
    led = [
        (start["pid"], threads[start["pid"], start["tid"]], finish["pid"], threads[finish["pid"], finish["tid"]])
        for start, finish in arrows
    ]
    assert sorted(led) == sorted((1000 + core, "cube", 1000 + core, role) for core in range(4) for role in ("v0", "v1"))


def test_a_barrier_has_one_arrow_to_each_waiter_from_its_last_arriver() -> None:
    trace = fake_call(cores=4, late=None)
    entries = chrome_document(trace)["traceEvents"]
    tiles = [event for event in trace.events if (event.action, event.detail) == ("barrier", "tiles")]
    last = max(tiles, key=lambda event: (event.begin, event.number))
    starts = [
        entry
        for entry in entries
        if entry["ph"] == "s" and entry["name"] == "barrier" and entry["ts"] == pytest.approx(last.begin, abs=1e-3)
    ]
    assert len(starts) == len(tiles) - 1
    assert {entry["pid"] for entry in starts} == {1000 + last.unit.core}


def test_an_arrow_points_at_a_slice_that_begins_after_the_signal() -> None:
    # Perfetto turns an arrow round whose head's slice begins before its tail's.
    entries = chrome_document(fake_call(cores=4, late=2))["traceEvents"]
    slices = [entry for entry in entries if entry["ph"] == "X"]
    starts, finishes = _ends(entries, "s"), _ends(entries, "f")
    assert starts
    for arrow, finish in finishes.items():
        inside = [
            entry["ts"]
            for entry in slices
            if entry["tid"] == finish["tid"] and entry["ts"] <= finish["ts"] < entry["ts"] + entry["dur"]
        ]
        assert max(inside) > starts[arrow]["ts"]


def test_an_await_for_many_signals_has_an_arrow_from_the_last_alone() -> None:
    units = [Unit(core, "v0") for core in range(9)]
    signals = [
        Event(core, 1, unit, "P0 init", "signal", float(core), core + 0.1, "ok", (1, 0, 0))
        for core, unit in enumerate(units)
    ]
    waiter = Event(9, 1, Unit(9, "v0"), "P0 init", "await", 0.0, 9.0, "ok", (1, 0, 0), writes=tuple(range(9)))
    starts = _ends(chrome_document(Trace((*signals, waiter)))["traceEvents"], "s")
    assert [(entry["pid"], entry["ts"]) for entry in starts.values()] == [(1008, 8.0)]


def test_faults_stale_reads_and_timeouts_have_instants_and_colours() -> None:
    trace = fake_call(cores=4, late=2)
    entries = chrome_document(trace)["traceEvents"]
    instants = [entry["name"].partition(":")[0] for entry in entries if entry["ph"] == "i"]
    assert {name: instants.count(name) for name in instants} == {"fault": 1, "timeout": 6, "stale read": 6}
    coloured = {entry["args"]["outcome"]: entry.get("cname") for entry in entries if "outcome" in entry.get("args", {})}
    slices = [entry for entry in entries if entry["ph"] == "X"]
    for entry in entries:
        if entry["ph"] == "i":  # in the slice of its event: a viewer would hang it on another one else
            own = next(piece for piece in slices if piece["args"]["number"] == entry["args"]["number"])
            assert own["ts"] <= entry["ts"] <= own["ts"] + own["dur"]
    assert (coloured["stale"], coloured["timeout"]) == ("terrible", "bad")
    assert all(
        entry.get("cname") == "yellow"
        for entry in entries
        if entry["name"].startswith("fault delay") and entry["ph"] == "X"
    )


def test_events_of_no_length_become_visible_only_where_there_is_room() -> None:
    unit = Unit(0, "v0")
    one = Event(0, 1, unit, "P0 init", "signal", 1.0, 1.0, "ok", (1, 0, 0))
    soon = one._replace(number=1, action="compute", begin=1.004, end=2.0)
    apart = one._replace(number=2, begin=5.0, end=5.0)
    entries = chrome_document(Trace((one, soon, apart)))["traceEvents"]
    lengths = {entry["args"]["number"]: entry["dur"] for entry in entries if entry["ph"] == "X"}
    assert lengths == pytest.approx({0: 0.004, 1: 0.996, 2: 0.02})


def test_times_before_zero_and_calls_that_begin_anew_are_laid_out_one_after_the_other() -> None:
    first = fake_call(cores=2, late=None)
    second = fake_call(cores=2, late=None, epoch=2)
    entries = chrome_document(replace(first, events=first.events + second.events))["traceEvents"]
    ends = max(entry["ts"] + entry["dur"] for entry in entries if entry["ph"] == "X" and entry["args"]["epoch"] == 1)
    begins = min(entry["ts"] for entry in entries if entry["ph"] == "X" and entry["args"]["epoch"] == 2)
    assert begins >= ends
    early = tuple(event._replace(begin=event.begin - 100, end=event.end - 100) for event in first.events)
    assert problems(chrome_document(Trace(early))) == []
