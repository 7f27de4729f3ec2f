"""How long syncs took, over any number of calls, in bounded memory: one histogram for each sync point.

A histogram's buckets are 1/32 of a power of two wide, and a percentile is the largest wait in its bucket: at most 2.2 %
above the exact one. The largest wait is exact. Of a single recorded call trace/latency.py gives exact figures, and
those of each core.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from steadysum.sync.actions import Await, Barrier
from steadysum.sync.virtual import Run

__all__ = ["SyncPoint", "SyncWaits", "WaitFigures"]

_STEPS: Final = 32  # buckets for each power of two


class SyncPoint(NamedTuple):
    """Where units wait for each other."""

    phase: str
    action: str  # "barrier" or "await"
    name: str  # of the barrier or flag


@dataclass(frozen=True)
class WaitFigures:
    """The waits at one sync point: microseconds of the virtual clock, or numbers of choices without one."""

    point: SyncPoint
    count: int
    ok: int  # waits that ended because all flags were there
    p50: float
    p90: float
    p99: float
    p999: float
    largest: float


@dataclass
class _Histogram:
    buckets: dict[int | None, tuple[int, float]] = field(default_factory=dict)  # waits, the largest; None: no wait
    count: int = 0
    ok: int = 0
    largest: float = 0.0

    def add(self, wait: float, ok: bool) -> None:
        self.count += 1
        self.ok += ok
        self.largest = max(self.largest, wait)
        bucket = None if wait <= 0.0 else math.floor(math.log2(wait) * _STEPS)
        count, largest = self.buckets.get(bucket, (0, 0.0))
        self.buckets[bucket] = count + 1, max(largest, wait)

    def percentiles(self) -> tuple[float, float, float, float]:
        """The 50th, 90th, 99th and 99.9th."""
        return self._percentile(50.0), self._percentile(90.0), self._percentile(99.0), self._percentile(99.9)

    def _percentile(self, share: float) -> float:
        """The largest wait in the bucket that holds the wait of this rank."""
        rank = math.ceil(self.count * share / 100.0)
        for bucket in sorted(self.buckets, key=lambda each: -math.inf if each is None else each):
            count, largest = self.buckets[bucket]
            rank -= count
            if rank <= 0:
                return largest
        return self.largest


class SyncWaits:
    """The waits of all calls that were added."""

    def __init__(self) -> None:
        self._points: dict[SyncPoint, _Histogram] = {}

    def add(self, run: Run) -> None:
        """Counts the waits of a launch that was logged."""
        for happening in run.log:
            action = happening.action
            if happening.what or not isinstance(action, Await | Barrier):
                continue
            barrier = isinstance(action, Barrier)
            name = action.own.name if isinstance(action, Barrier) else action.flags[0].name
            point = SyncPoint(action.place.phase, "barrier" if barrier else "await", name)
            histogram = self._points.setdefault(point, _Histogram())
            histogram.add(happening.end - happening.begin, happening.outcome == "ok")

    def figures(self) -> tuple[WaitFigures, ...]:
        """Of each sync point, in the order of the phases."""
        return tuple(
            WaitFigures(point, seen.count, seen.ok, *seen.percentiles(), seen.largest)
            for point, seen in sorted(self._points.items())
        )
