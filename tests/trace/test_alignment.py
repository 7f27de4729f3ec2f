"""Clocks laid over each other: the truth lies within the stated error."""

from __future__ import annotations

import math
import multiprocessing
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from steadysum.errors import RangeError, SyncTimeout
from steadysum.trace.alignment import REFERENCE, Alignment, Exchange, align, estimate
from steadysum.trace.events import Unit
from steadysum.trace.recorder import Trace
from steadysum.trace.synchronise import (
    Participant,
    Passage,
    alignments_at_barriers,
    answer,
    ask,
    perf_clock,
    process_meeting,
    thread_meeting,
)

from .fake_call import fake_call


@dataclass(frozen=True)
class Shifted:
    """A clock that is deliberately wrong: what it shows at a time of the true one."""

    offset: float = 0.0  # microseconds
    drift: float = 0.0

    def shows(self, time: float) -> float:
        return self.offset + (1.0 + self.drift) * time

    def __call__(self) -> float:
        return self.shows(perf_clock())


delays = st.floats(0.0, 500.0)
exchanges = st.lists(st.tuples(st.floats(1.0, 1e5), delays, delays, delays), min_size=2, max_size=12)


@given(
    start=st.floats(0, 1e9),
    offset=st.floats(-1e7, 1e7),
    drift=st.floats(-1e-2, 1e-2),
    steps=exchanges,
    probe=st.floats(-2.0, 3.0),
)
def test_the_truth_lies_within_the_stated_error(
    start: float, offset: float, drift: float, steps: list[tuple[float, float, float, float]], probe: float
) -> None:
    clock, now, found = Shifted(offset, drift), start, []
    for pause, there, held, back in steps:  # delays as unequal as they like
        now += pause
        arrived = now + there + held + back
        found.append(Exchange(now, clock.shows(now + there), clock.shows(now + there + held), arrived))
        now = arrived
    alignment = estimate(found, resolution=0.0)  # these clocks have none but that of their numbers
    first, last = found[0].sent, found[-1].arrived
    time = first + probe * (last - first)  # also outside of the exchanges
    error = abs(alignment.to_reference(clock.shows(time)) - time)
    rounding = 1e-6  # of the clocks' numbers themselves: 1e9, where two doubles are 1e-7 apart
    assert error <= alignment.error_at(clock.shows(time)) + rounding
    assert alignment.residual <= rounding
    assert abs(alignment.drift - drift) <= alignment.drift_error + 1e-6


@given(
    offset=st.floats(-1e6, 1e6), drift=st.floats(-1e-3, 1e-3), steps=exchanges, tick=st.sampled_from((0.001, 1.0, 15.0))
)
def test_the_truth_lies_within_the_error_of_clocks_that_tick(
    offset: float, drift: float, steps: list[tuple[float, float, float, float]], tick: float
) -> None:
    clock, now, found = Shifted(offset, drift), 0.0, []

    def shown(time: float) -> float:
        return math.floor(time / tick) * tick

    for pause, there, held, back in steps:
        now += 2 * tick + pause
        stamps = now, clock.shows(now + there), clock.shows(now + there + held), now + there + held + back
        found.append(Exchange(*map(shown, stamps)))
        now = stamps[-1]
    alignment = estimate(found, resolution=tick * 1.002)  # in the reference's microseconds, of which it has some more
    error = abs(alignment.to_reference(clock.shows(now / 2)) - now / 2)
    assert error <= alignment.error_at(clock.shows(now / 2)) + 1e-6
    assert alignment.residual == 0.0


def test_the_error_of_equal_exchanges_is_half_the_round_trip() -> None:
    found = [Exchange(t, t + 1005.0, t + 1005.0, t + 10.0) for t in (0.0, 1e6, 2e6)]
    alignment = estimate(found, resolution=0.0)
    assert alignment.offset == pytest.approx(1000.0, abs=1e-6)
    assert alignment.errors == pytest.approx((5.0, 5.0), abs=1e-6)
    assert alignment.error_at(1000.0 + 1e6) == pytest.approx(5.0, abs=1e-6)
    assert alignment.error_at(1000.0 + 4e6) > 9.0  # grows beyond the last exchange


def test_the_shortest_round_trips_set_the_error() -> None:
    slow = [Exchange(t, t + 500.0, t + 500.0, t + 1000.0) for t in (10.0, 2e6 - 10)]
    quick = [Exchange(t, t + 1.0, t + 1.0, t + 2.0) for t in (2000.0, 1.99e6)]
    assert max(estimate(slow).errors) > 400.0
    assert max(estimate([*slow, *quick]).errors) < 1.1


def test_a_clock_that_jumps_has_a_residual_which_is_stated_in_the_error() -> None:
    jump = 100.0
    found = [
        Exchange(t, t + (jump if t == 2e6 else 0.0), t + (jump if t == 2e6 else 0.0), t) for t in (0.0, 1e6, 2e6, 3e6)
    ]
    alignment = estimate(found)
    # Heights 0, 0, 100, 0 at 0, 1, 2, 3: the line that misses all by least goes through (1.5, 50) and misses by 50.
    assert alignment.residual == pytest.approx(jump / 2, rel=2e-3)
    assert min(alignment.errors) >= alignment.residual


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([], "0 exchanges"),
        ([Exchange(0, 0, 0, 0)], "1 exchanges"),
        ([Exchange(0, 0, 0, 0), Exchange(0, 0, 0, 0)], "overlap"),
        ([Exchange(0, 0, 0, 0), Exchange(1, float("nan"), 1, 1)], "isn't finite"),
    ],
)
def test_exchanges_that_say_nothing_are_refused(found: list[Exchange], message: str) -> None:
    with pytest.raises(RangeError, match=message):
        estimate(found)


# ---- real workers ---------------------------------------------------------------------------------------------------

CLOCKS = (Shifted(), Shifted(-3e6, 2e-4), Shifted(5e5, -1e-4))


def _assert_right(alignment: Alignment, clock: Shifted, at: float) -> None:
    error = abs(alignment.to_reference(clock.shows(at)) - at)
    assert error <= alignment.error_at(clock.shows(at)) + 1e-3
    # A clock that were out by the offsets armed here would be seen: the bound is far below them.
    assert alignment.error_at(clock.shows(at)) < 1e5


def _work(participant: Participant, moments: Any = None) -> None:
    participant.synchronise()
    threading.Event().wait(0.05)
    participant.synchronise()
    if moments is not None:
        moments.put((participant.worker, participant.passages))


def test_threads_with_shifted_clocks_agree_after_meetings_at_barriers() -> None:
    participants = thread_meeting(len(CLOCKS), CLOCKS)
    begin = perf_clock()
    threads = [threading.Thread(target=_work, args=(participant,)) for participant in participants]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    middle = (begin + perf_clock()) / 2
    alignments = alignments_at_barriers([participant.passages for participant in participants])
    assert alignments[0] is REFERENCE
    for alignment, clock in zip(alignments[1:], CLOCKS[1:], strict=True):
        _assert_right(alignment, clock, middle)


def test_processes_with_shifted_clocks_agree_after_meetings_at_barriers() -> None:
    context = multiprocessing.get_context("fork")
    participants = process_meeting(len(CLOCKS), CLOCKS, context)
    moments: Any = context.Queue()
    begin = perf_clock()
    processes = [context.Process(target=_work, args=(participant, moments)) for participant in participants]
    for process in processes:
        process.start()
    passages: dict[int, list[Passage]] = dict(moments.get(timeout=60) for _ in processes)
    for process in processes:
        process.join()
    middle = (begin + perf_clock()) / 2
    alignments = alignments_at_barriers([passages[worker] for worker in range(len(CLOCKS))])
    for alignment, clock in zip(alignments[1:], CLOCKS[1:], strict=True):
        _assert_right(alignment, clock, middle)


def _answers(pipe: Connection[Any, Any], clock: Callable[[], float]) -> None:
    answer(pipe, clock=clock)
    threading.Event().wait(0.05)
    answer(pipe, clock=clock)


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_a_worker_that_is_asked_agrees_with_the_reference(kind: str) -> None:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    clock = CLOCKS[1]
    start: Any = threading.Thread if kind == "thread" else context.Process
    worker = start(target=_answers, args=(theirs, clock))
    worker.start()
    begin = perf_clock()
    found = ask(ours) + ask(ours)
    worker.join()
    _assert_right(estimate(found), clock, (begin + perf_clock()) / 2)


def test_a_worker_that_does_not_come_is_an_error_and_no_hang() -> None:
    participant, _ = thread_meeting(2)
    with pytest.raises(SyncTimeout, match="worker 0, round 1"):
        participant.synchronise(timeout=0.05)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: thread_meeting(1), "2 or more"),
        (lambda: thread_meeting(2, [perf_clock]), "1 for 2 workers"),
        (lambda: alignments_at_barriers([[], []], reference=2), "0 to 1"),
        (lambda: alignments_at_barriers([[Passage(0, 1)], []]), "0 to 1"),
    ],
)
def test_meetings_that_can_not_work_are_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(RangeError, match=message):
        call()


# ---- merging --------------------------------------------------------------------------------------------------------


def _moved(trace: Trace, clock: Shifted, cores: int) -> Trace:
    """The trace as a worker with this clock, and other cores, would have recorded it."""
    return replace(
        trace,
        events=tuple(
            event._replace(
                unit=Unit(event.unit.core + cores, event.unit.role),
                begin=clock.shows(event.begin),
                end=clock.shows(event.end),
            )
            for event in trace.events
        ),
    )


def test_merged_traces_lie_on_the_clock_of_the_reference() -> None:
    trace, clock = fake_call(cores=2, late=None), Shifted(1e6, 1e-3)
    exact = estimate([Exchange(t, clock.shows(t), clock.shows(t), t) for t in (-10.0, 100.0)])
    merged = align([trace, _moved(trace, clock, cores=2)], [REFERENCE, exact])
    assert [event.number for event in merged.events] == list(range(2 * len(trace.events)))
    assert [event.end for event in merged.events] == sorted(event.end for event in merged.events)
    ours = [event for event in merged.events if event.unit.core < 2]
    theirs = [event for event in merged.events if event.unit.core >= 2]
    assert [event.begin for event in theirs] == pytest.approx([event.begin for event in ours], abs=1e-6)
    error = merged.what["alignment"][1]["error_us"]
    assert all(abs(a.end - b.end) <= error + 1e-9 for a, b in zip(ours, theirs, strict=True))


def test_merged_awaits_still_name_their_signals_and_words_stay_apart() -> None:
    trace = fake_call(cores=2, late=None)
    merged = align([trace, _moved(trace, Shifted(), cores=2)], [REFERENCE, REFERENCE])
    awaits = [event for event in merged.events if event.action in ("await", "barrier")]
    assert awaits
    for event in awaits:
        for number in event.writes:
            signal = merged.events[number]
            assert signal.action in ("signal", "barrier")
            assert (signal.unit.core < 2) == (event.unit.core < 2)
    written = [word for event in merged.events if event.action == "write" for word in event.writes]
    assert len(written) == len(set(written))
    assert sorted(written) == sorted(
        word for event in merged.events if event.action == "drain" for word in event.writes
    )


def test_traces_of_one_unit_or_without_an_alignment_each_are_refused() -> None:
    trace = fake_call(cores=2)
    with pytest.raises(RangeError, match="core 0 cube in traces 0 and 1"):
        align([trace, trace], [REFERENCE, REFERENCE])
    with pytest.raises(RangeError, match="1 for 2 traces"):
        align([trace, trace], [REFERENCE])
