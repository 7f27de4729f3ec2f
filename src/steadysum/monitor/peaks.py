"""The longest of the last minutes: a peak that passes, so that an alarm on it can end. Not here: which metric it is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from steadysum.monitor.extra import core

__all__ = ["WINDOW", "Peaks"]

# Seconds. A peak is shown for one to two windows: long enough for every usual scrape interval to see it several times.
WINDOW: Final = 300.0


class Peaks:
    """A gauge of each point's longest sync in the last 5 to 10 minutes: of this window and of the one before.

    >>> peaks = Peaks("sync_peak_seconds", "Longest.", "point")
    >>> peaks.saw("barrier", 0.5); peaks.saw("barrier", 0.25)
    >>> [sample.value for family in peaks.collect() for sample in family.samples]
    [0.5]
    """

    def __init__(self, name: str, help: str, label: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._name, self._help, self._label = name, help, label
        self._clock = clock
        self._lock = threading.Lock()
        self._window = self._number()
        self._now: dict[str, float] = {}
        self._before: dict[str, float] = {}

    def saw(self, point: str, seconds: float) -> None:
        """Another sync."""
        with self._lock:
            self._turn()
            self._now[point] = max(self._now.get(point, 0.0), seconds)

    def collect(self) -> Iterator[core.Metric]:
        """The gauge, as a collector of prometheus_client; 0 for points without a sync in that time."""
        with self._lock:
            self._turn()
            points = {point: max(self._now.get(point, 0.0), seconds) for point, seconds in self._before.items()}
            points = {**self._now, **points}
        yield (
            core.GaugeMetricFamily(self._name, self._help, labels=[self._label])
            if not points
            else self._family(points.items())
        )

    def _family(self, points: Iterable[tuple[str, float]]) -> core.Metric:
        family = core.GaugeMetricFamily(self._name, self._help, labels=[self._label])
        for point, seconds in sorted(points):
            family.add_metric([point], seconds)
        return family

    def _number(self) -> int:
        return int(self._clock() // WINDOW)

    def _turn(self) -> None:
        """Old windows go; their points stay, at 0: a series that vanishes looks like a process that died."""
        number = self._number()
        if number == self._window:
            return
        points = self._before.keys() | self._now.keys()
        kept = self._now if number == self._window + 1 else {}
        self._before = {point: kept.get(point, 0.0) for point in points}
        self._now = {}
        self._window = number
