"""The checker of the trace event format refuses broken traces: each here is a good one with one thing wrong."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from .trace_event_format import problems

Events = list[dict[str, Any]]
GOOD: Events = [
    {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "core 0"}},
    {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "v0"}},
    {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "v1"}},
    {"ph": "M", "name": "thread_sort_index", "pid": 1, "tid": 2, "args": {"sort_index": 2}},
    {"ph": "X", "name": "signal", "cat": "P0", "ts": 1.0, "dur": 2.0, "pid": 1, "tid": 1},
    {"ph": "X", "name": "await", "cat": "P0", "ts": 0, "dur": 5, "pid": 1, "tid": 2},
    {"ph": "X", "name": "inner", "cat": "P0", "ts": 2, "dur": 3, "pid": 1, "tid": 2},
    {"ph": "s", "name": "flag", "cat": "sync", "id": 1, "ts": 1.5, "pid": 1, "tid": 1},
    {"ph": "f", "bp": "e", "name": "flag", "cat": "sync", "id": 1, "ts": 4.5, "pid": 1, "tid": 2},
    {"ph": "i", "name": "fault", "s": "t", "ts": 4, "pid": 1, "tid": 2},
    {"ph": "B", "name": "outer", "ts": 10, "pid": 1, "tid": 1},
    {"ph": "E", "ts": 12, "pid": 1, "tid": 1},
]


def _set(place: int, **fields: Any) -> Callable[[Events], None]:
    return lambda events: events[place].update(fields)


def _drop(place: int, *names: str) -> Callable[[Events], None]:
    def change(events: Events) -> None:
        for name in names:
            del events[place][name]
        if not names:
            del events[place]

    return change


def test_the_good_one_is_good() -> None:
    assert problems({"traceEvents": GOOD}) == []
    assert problems(GOOD) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set(4, ph="Z"), "no known phase"),
        (_drop(4, "dur"), "no dur"),
        (_drop(7, "id"), "no id"),
        (_drop(9, "s"), "no s"),
        (_set(4, ts="1.0"), "ts is '1.0'"),
        (_set(4, ts=True), "ts is True"),
        (_set(4, ts=-1.0), "ts is -1.0"),
        (_set(4, ts=float("nan")), "ts is nan"),
        (_set(4, dur=-0.5), "dur is -0.5"),
        (_set(4, pid="core"), "pid is 'core'"),
        (_set(9, s="x"), "scope 'x'"),
        (_set(8, bp="x"), "bp 'x'"),
        (_set(0, name="process_colour"), "no known metadata"),
        (_set(0, args={}), "process_name needs args.name"),
        (_drop(3, "tid"), "thread_sort_index needs a tid"),
        (_set(6, dur=4), "overlaps one that ends at 5 in part"),
        (_drop(11), "without an E"),
        (_drop(10), "without a B"),
        (_set(7, ts=0.5), "is in no slice"),
        (_set(7, ts=3.0), "is in no slice"),  # a slice's end isn't in it
        (_set(8, ts=5.5), "is in no slice"),
        (_set(8, ts=1.0), "before it starts"),
        (_drop(8), "not one s and one f"),
        (_set(8, id=2), "not one s and one f"),
        (_set(8, cat="other"), "not one s and one f"),
        (_set(2, tid=3), "thread 2 has no name"),
        (_set(0, pid=2), "process 1 has no name"),
        (_set(2, tid=1), "has the names"),
        (_set(9, pid=2), "is in processes [1, 2]"),
    ],
)
def test_a_broken_one_is_refused(change: Callable[[Events], None], message: str) -> None:
    events = copy.deepcopy(GOOD)
    change(events)
    assert any(message in problem for problem in problems({"traceEvents": events}))


@pytest.mark.parametrize("document", [{}, {"traceEvents": {}}, 3, {"traceEvents": [3]}])
def test_what_is_no_list_of_events_is_refused(document: Any) -> None:
    assert problems(document)
