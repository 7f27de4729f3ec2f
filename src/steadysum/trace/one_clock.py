"""Calls of the emulated device, one after the other on one clock: each call's virtual clock starts at 0 again.

Not here: clocks of several workers (alignment.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from steadysum.trace.events import Event

__all__ = ["in_sequence"]

_PAUSE: Final = 0.05  # of a call's length, between it and the next


def in_sequence(events: Sequence[Event]) -> tuple[Event, ...]:
    """The events with every call after the calls before it, if the clock was set back between them.

    The clock was set back where a call's first event isn't later than the first event of the call before it. Calls on a
    clock that went on are left as they are, though they may overlap.
    """
    spans: dict[int, list[float]] = {}  # epoch: [first begin, last end]
    for event in events:
        span = spans.setdefault(event.epoch, [event.begin, event.end])
        span[0], span[1] = min(span[0], event.begin), max(span[1], event.end)
    shifts: dict[int, float] = {}
    shift, reached, before = 0.0, 0.0, None
    for epoch, (first, last) in sorted(spans.items()):
        if before is not None and first <= before:
            shift = reached - first + _PAUSE * (last - first)
        shifts[epoch], before = shift, first
        reached = last + shift if len(shifts) == 1 else max(reached, last + shift)
    if not any(shifts.values()):
        return tuple(events)
    return tuple(
        event._replace(begin=event.begin + shifts[event.epoch], end=event.end + shifts[event.epoch]) for event in events
    )
