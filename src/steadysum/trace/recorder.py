"""Keeps events in memory, in a bounded number; what was kept is a Trace.

Not here: files (json_lines.py), and what is made of events.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from steadysum.errors import RangeError
from steadysum.trace.events import Event

__all__ = ["CAPACITY", "Recorder", "Trace"]

CAPACITY: Final = 200_000  # events: about 100 calls of the emulated device, and some 100 MB


@dataclass(frozen=True)
class Trace:
    """Events of one run, or of several on one clock."""

    events: tuple[Event, ...]
    what: dict[str, Any] = field(default_factory=dict)  # what was run: shape, policy, seed, ...; plain JSON values
    dropped: int = 0  # older events that there was no room for


class Recorder:
    """Takes events from any thread, and keeps the newest.

    Args:
        capacity: most events that are kept, >= 1.

    Raises:
        RangeError: the capacity is below 1.

    >>> recorder = Recorder(capacity=2)
    >>> recorder.dropped
    0
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        if capacity < 1:
            raise RangeError("capacity", str(capacity), "1 or more events", "Leave it out for the default.")
        self._kept: deque[Event] = deque(maxlen=capacity)
        self._seen = 0
        self._lock = threading.Lock()

    def record(self, event: Event) -> None:
        """Keeps an event; the oldest goes where there is no room."""
        with self._lock:  # both change, or neither: threads record at the same time
            self._kept.append(event)
            self._seen += 1

    def extend(self, events: Iterable[Event]) -> None:
        """Keeps many events, as record does."""
        for event in events:
            self.record(event)

    @property
    def events(self) -> tuple[Event, ...]:
        """What was kept, oldest first."""
        with self._lock:
            return tuple(self._kept)

    @property
    def dropped(self) -> int:
        """How many events there was no room for."""
        with self._lock:
            return self._seen - len(self._kept)

    def trace(self, what: dict[str, Any] | None = None) -> Trace:
        """What was kept, with a description of the run."""
        with self._lock:
            return Trace(tuple(self._kept), dict(what or {}), self._seen - len(self._kept))
