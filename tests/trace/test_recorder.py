"""Events in memory: the newest are kept, the rest is counted."""

from __future__ import annotations

import threading

import hypothesis.strategies as st
import pytest
from hypothesis import given

from steadysum.errors import RangeError
from steadysum.trace.recorder import Recorder

from .fake_call import fake_call

EVENTS = fake_call().events


@given(st.integers(1, 2 * len(EVENTS)), st.integers(0, len(EVENTS)))
def test_the_newest_events_are_kept_and_the_others_counted(capacity: int, count: int) -> None:
    recorder = Recorder(capacity)
    recorder.extend(EVENTS[:count])
    kept = min(capacity, count)
    assert recorder.events == EVENTS[count - kept : count]
    assert recorder.dropped == count - kept
    trace = recorder.trace({"seed": 1})
    assert (trace.events, trace.what, trace.dropped) == (recorder.events, {"seed": 1}, recorder.dropped)


def test_no_event_of_many_threads_is_lost_from_the_count() -> None:
    recorder = Recorder(capacity=10)
    threads = [threading.Thread(target=recorder.extend, args=(EVENTS * 20,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(recorder.events) + recorder.dropped == 4 * 20 * len(EVENTS)


def test_a_recorder_without_room_is_refused() -> None:
    with pytest.raises(RangeError, match="capacity: got 0; allowed: 1 or more"):
        Recorder(0)
