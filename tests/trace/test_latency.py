"""Sync latency: counts, quantiles and stragglers from their definitions."""

from __future__ import annotations

import json

import hypothesis.strategies as st
import pytest
from hypothesis import given
from rich.console import Console

from steadysum.trace.events import Event, Unit
from steadysum.trace.latency import (
    Latency,
    latency_document,
    latency_of,
    latency_tables,
    microseconds,
    percent,
    waits_of,
)
from steadysum.trace.recorder import Trace

from .fake_call import fake_call


def _wait(core: int, begin: float, end: float, epoch: int = 1, outcome: str = "ok", action: str = "barrier") -> Event:
    return Event(0, epoch, Unit(core, "v0"), "P2 tiles", action, begin, end, outcome, (epoch, 2, 0), "tiles")


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=200))
def test_quantiles_bound_the_shares_that_they_name(durations: list[int]) -> None:
    waits = waits_of([_wait(0, 5.0, 5.0 + duration) for duration in durations])
    assert waits.count == len(durations)
    assert (waits.max, waits.total) == (max(durations), sum(durations))
    for share, quantile in ((0.5, waits.p50), (0.9, waits.p90), (0.99, waits.p99), (0.999, waits.p999)):
        # numpy's linear rule: at place share * (n - 1) of the sorted durations, so between its two neighbours.
        place = share * (len(durations) - 1)
        low, high = sorted(durations)[int(place)], sorted(durations)[min(int(place) + 1, len(durations) - 1)]
        assert low - 1e-6 <= quantile <= high + 1e-6


def test_waits_are_grouped_by_phase_action_and_detail_in_the_order_of_the_run() -> None:
    latency = latency_of(fake_call(cores=4, late=None))
    assert [(point.phase, point.action, point.detail, point.waits.count) for point in latency.points] == [
        ("P0 init", "barrier", "init", 8),
        ("P2 tiles", "await", "ready", 8),
        ("P2 tiles", "barrier", "tiles", 8),
    ]
    assert [core.core for core in latency.cores] == [0, 1, 2, 3]
    assert all(core.waits.count == 6 for core in latency.cores)


def test_the_success_rate_counts_waits_that_gave_up() -> None:
    tiles = latency_of(fake_call(cores=4, late=2)).points[-1]
    assert (tiles.waits.count, tiles.waits.ok, tiles.waits.success_rate) == (8, 2, 0.25)


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=8, unique=True))
def test_the_core_that_came_last_at_a_barrier_waited_least_and_is_the_straggler(arrivals: list[int]) -> None:
    end = max(arrivals) + 1.0
    latency = latency_of(Trace(tuple(_wait(core, float(begin), end) for core, begin in enumerate(arrivals))))
    least = min(latency.cores, key=lambda core: core.waits.max).core
    assert latency.straggler == latency.points[0].last_core == least
    last, before = sorted(arrivals)[-1], sorted(arrivals)[-2]
    assert [core.late_by for core in latency.cores if core.core == least] == [last - before]
    assert [core.came_last for core in latency.cores] == [int(core.core == least) for core in latency.cores]


def test_the_straggler_is_who_kept_the_others_waiting_longest_not_most_often() -> None:
    events = [_wait(0, 10.0, 20.0, epoch) for epoch in (1, 2)] + [_wait(1, 9.0, 20.0, epoch) for epoch in (1, 2)]
    events += [_wait(0, 0.0, 5000.0, 3), _wait(1, 4999.0, 5000.0, 3)]
    latency = latency_of(Trace(tuple(events)))
    assert latency.points[0].last_core == 0
    assert (latency.points[0].last_count, latency.points[0].passes) == (2, 3)
    assert latency.straggler == 1


def test_nobody_is_the_straggler_where_all_come_at_once_or_wait_for_flags() -> None:
    assert latency_of(Trace(tuple(_wait(core, 1.0, 2.0) for core in range(3)))).straggler is None
    assert latency_of(Trace(tuple(_wait(core, 0.0, core, action="await") for core in range(3)))).straggler is None
    assert latency_of(Trace(())) == Latency((), ())


def test_a_late_core_is_named_although_the_others_gave_up_waiting() -> None:
    assert latency_of(fake_call(cores=4, late=2)).straggler == 2


def test_the_document_is_plain_json_and_says_what_the_table_says() -> None:
    latency = latency_of(fake_call(cores=3, late=1))
    document = json.loads(json.dumps(latency_document(latency), allow_nan=False))
    assert document["schema"] == "steadysum.latency/1"
    assert document["straggler"] == 1
    assert [point["waits"]["count"] for point in document["points"]] == [6, 6, 6]
    assert document["points"][-1]["success_rate"] == pytest.approx(1 / 3)


def test_the_tables_fit_eighty_columns_and_name_the_straggler() -> None:
    console = Console(width=80, record=True, force_terminal=False)
    console.print(latency_tables(latency_of(fake_call(cores=12, late=11, lateness=2e6))))
    text = console.export_text()
    assert "p99.9" in text
    assert "2.00M" in text
    assert "core 11 came last at 1 of 2 barriers" in text
    assert "…" not in text


@given(st.floats(0, 9.99e8))
def test_a_time_takes_at_most_five_characters_and_keeps_three_digits(time: float) -> None:
    text = microseconds(time)
    assert len(text) <= 5 or time < 0.01  # very small ones have an exponent
    value = float(text.rstrip("kM")) * {"k": 1e3, "M": 1e6}.get(text[-1], 1.0)
    assert value == pytest.approx(time, rel=0.00501)


def test_only_all_is_a_hundred_per_cent_and_only_none_is_nothing() -> None:
    assert [percent(part, 100_000) for part in (0, 1, 50_000, 99_999, 100_000)] == [
        "0 %",
        "0.1 %",
        "50.0 %",
        "99.9 %",
        "100 %",
    ]
