"""Calls whose clock begins anew are laid out one after the other; calls on one clock stay as they are."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from steadysum.trace.events import Event, Unit
from steadysum.trace.one_clock import in_sequence

from .fake_call import fake_call


def _call(epoch: int, begin: float, length: float) -> tuple[Event, ...]:
    one = Event(0, epoch, Unit(0, "v0"), "P0 init", "compute", begin, begin + length / 2, "ok", (epoch, 0, 0))
    return one, one._replace(number=1, begin=one.end, end=begin + length)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=6))
def test_calls_that_all_begin_at_zero_do_not_overlap_and_keep_their_lengths(lengths: list[int]) -> None:
    calls = [_call(epoch, 0.0, float(length)) for epoch, length in enumerate(lengths)]
    moved = in_sequence([event for call in calls for event in call])
    reached = 0.0
    for epoch, length in enumerate(lengths):
        call = [event for event in moved if event.epoch == epoch]
        assert call[0].begin >= reached
        reached = call[-1].end
        assert abs(reached - call[0].begin - length) < 1e-6


def test_calls_on_a_clock_that_went_on_are_left_as_they_are_even_if_they_overlap() -> None:
    events = _call(1, 0.0, 10.0) + _call(2, 8.0, 10.0)
    assert in_sequence(events) == events


def test_one_call_and_none_are_left_as_they_are() -> None:
    assert in_sequence(fake_call().events) == fake_call().events
    assert in_sequence(()) == ()
