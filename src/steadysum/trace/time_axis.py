"""The time axis of a timeline: straight, with long stretches cut out in which nothing begins or ends.

One core that comes a thousand times later than the rest would else push everything into the first pixel.

Not here: drawing (timeline.py, text_timeline.py).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from steadysum.trace.events import SYNC_ACTIONS, Event, Unit

__all__ = ["Cut", "TimeAxis", "axis_of", "interval"]

# A stretch is long if it is so many times what a unit's longest piece of work takes, ...
_LONG: Final = 8.0
# ... and such a share of all that isn't cut.
_SHARE: Final = 0.1
_LEFT: Final = 0.01  # of what isn't cut, that stays at each end of a cut
_LEAST: Final = 1e-9  # of a stretch that is cut: more than the last bits of its ends
_CUT_WIDTH: Final = 0.03  # of the axis, that a cut takes; less where there are many
_CUTS_WIDTH: Final = 0.3  # of the axis, that all cuts may take


class Cut(NamedTuple):
    """A stretch that is left out."""

    begin: float  # microseconds
    end: float


@dataclass(frozen=True)
class TimeAxis:
    """Microseconds to places on [0, 1]: the knots, linear between them."""

    times: tuple[float, ...]  # ascending: the begin, each cut's two ends, the end
    places: tuple[float, ...]
    cuts: tuple[Cut, ...]

    def place(self, time: float) -> float:
        """Where a time is drawn; beyond the ends, at the ends."""
        return float(np.interp(time, self.times, self.places))

    @property
    def cut_out(self) -> float:
        """Microseconds that are left out."""
        return sum(cut.end - cut.begin for cut in self.cuts)

    def note(self) -> str:
        """What to tell the viewer about it; "" where the axis is straight."""
        if not self.cuts:
            return ""
        what = "a stretch" if len(self.cuts) == 1 else f"{len(self.cuts)} stretches"
        return f"{what} in which nothing begins or ends cut out, {interval(self.cut_out)} in all"

    def ticks(self, count: int) -> list[float]:
        """About so many round times, none of them in a cut."""
        ticks: list[float] = []
        for index in range(0, len(self.times), 2):
            begin, end = self.times[index : index + 2]
            wanted = max(1, round(count * (self.places[index + 1] - self.places[index])))
            step = _round_step((end - begin) / wanted)
            if step <= 0.0:
                ticks.append(begin)
                continue
            first = math.ceil(begin / step - 1e-9)
            last = math.floor(end / step + 1e-9)
            # A tick at an end may be off by its last bits, and would be in the cut.
            ticks += [min(max(place * step, begin), end) for place in range(first, last + 1)][: wanted + 2]
        return ticks


def axis_of(events: Sequence[Event]) -> TimeAxis:
    """The axis for some events, at least one."""
    moments = sorted({time for event in events for time in (event.begin, event.end)})
    gaps = [(end - begin, begin, end) for begin, end in pairwise(moments)]
    limit = _LONG * _work(events, [gap for gap, _, _ in gaps])
    kept = sum(gap for gap, _, _ in gaps if gap <= limit)
    limit = max(limit, _SHARE * kept)
    # A little is left at both ends: what happens there has some length to be drawn on, and bars are seen to go on.
    cuts = tuple(
        Cut(begin + left, end - left)
        for gap, begin, end in gaps
        if gap > limit
        for left in [max(_LEFT * kept, _LEAST * gap)]
    )
    times = [moments[0], *(time for cut in cuts for time in cut), moments[-1]]
    if times[0] == times[-1]:
        times[-1] += 1.0  # everything at one moment
    lengths = [times[index + 1] - times[index] for index in range(0, len(times), 2)]
    width = min(_CUT_WIDTH, _CUTS_WIDTH / len(cuts)) if cuts else 0.0
    scale = (1.0 - width * len(cuts)) / sum(lengths)
    places = [0.0]
    for index, length in enumerate(lengths):
        places += [places[-1] + scale * length] + [places[-1] + scale * length + width] * (index < len(cuts))
    return TimeAxis(tuple(times), tuple(places), cuts)


def _work(events: Sequence[Event], gaps: Sequence[float]) -> float:
    """What a unit's longest piece of work takes: the lower quartile over units, so that slow cores don't count."""
    longest: defaultdict[Unit, float] = defaultdict(float)
    for event in events:
        if event.action not in SYNC_ACTIONS and event.action != "fault":
            longest[event.unit] = max(longest[event.unit], event.end - event.begin)
    working = sorted(length for length in longest.values() if length > 0.0)
    if working:
        return working[(len(working) - 1) // 4]
    return float(np.median(gaps)) if gaps else 0.0


def _round_step(step: float) -> float:
    """1, 2 or 5 times a power of ten, not below `step`."""
    if step <= 0.0:
        return 0.0
    power = 10.0 ** math.floor(math.log10(step))
    return power * (1.0, 2.0, 5.0, 10.0)[bisect_right((1.0, 2.0, 5.0), step / power * (1 - 1e-9))]


def interval(microseconds: float) -> str:
    """A length of time for people: 250 us, 5.1 ms, 7.86 s."""
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if abs(microseconds) >= 0.9995 * size:  # 999.9 ms is rounded to 1 s, not to 1e+03 ms
            return f"{microseconds / size:.3g} {unit}"
    return f"{microseconds:.3g} us"
