"""Clocks of several workers, laid over each other: offset and drift of each against a reference, and how sure that is.

Each exchange of timestamps between the reference and a worker says two things that hold whatever the delays were: what
the worker noted as `received` came after the reference had `sent`, and what it noted as `returned` came before the
answer had `arrived`. A worker's clock that runs evenly is a straight line over the reference's, above all points of
the first kind and below all of the second. At the first and the last exchange such lines span an interval each; the
estimate joins their middles, and its stated error is their half-widths, carried on in a straight line: never less than
the true error, as long as both clocks run evenly and no delay is negative. Where no line fits, the least by which the
points must be loosened is the residual, and is added to the error.

Times are in microseconds. Sources: D. L. Mills, NTP (RFC 5905), for the exchange; for bounds by lines between two sets
of points: A. Duda, G. Harrus, Y. Haddad, G. Bernard, "Estimating global time in distributed systems" (1987).

Not here: how the timestamps are collected (synchronise.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final, NamedTuple

from steadysum.errors import RangeError
from steadysum.trace.events import Event
from steadysum.trace.recorder import Trace

__all__ = ["REFERENCE", "RESOLUTION", "Alignment", "Exchange", "align", "estimate"]


RESOLUTION: Final = 0.001  # microseconds: time.perf_counter's nanosecond


class Exchange(NamedTuple):
    """One exchange of timestamps, as in NTP: t0 to t3."""

    sent: float  # by the reference, on its clock
    received: float  # on the worker's clock, at or after `sent`
    returned: float  # on the worker's clock, at or before `arrived`
    arrived: float  # at the reference, on its clock


@dataclass(frozen=True)
class Alignment:
    """A worker's clock against the reference's: two moments on both, the line through them, and the error at each."""

    worker: tuple[float, float]  # on the worker's clock
    reference: tuple[float, float]  # the same moments on the reference's clock
    errors: tuple[float, float]  # of these
    residual: float = 0.0  # by how much the exchanges contradict two even clocks; part of the errors

    @property
    def rate(self) -> float:
        """Microseconds of the reference in one of the worker's."""
        return (self.reference[1] - self.reference[0]) / (self.worker[1] - self.worker[0])

    @property
    def drift(self) -> float:
        """How much faster than the reference the worker's clock runs: 1e-6 is one microsecond a second."""
        return 1.0 / self.rate - 1.0

    @property
    def drift_error(self) -> float:
        """Bound of the error of `drift`."""
        length, error = self.reference[1] - self.reference[0], sum(self.errors)
        return math.inf if error >= length else (1.0 + self.drift) * error / (length - error)

    @property
    def offset(self) -> float:
        """What the worker's clock shows beyond the reference's, at the first of the two moments."""
        return self.worker[0] - self.reference[0]

    def to_reference(self, time: float) -> float:
        """A time of the worker's clock, on the reference's."""
        return self.reference[0] + self.rate * (time - self.worker[0])

    def error_at(self, time: float) -> float:
        """Bound of the error of to_reference at this time of the worker's clock; it grows outside of the exchanges."""
        first, last = self.worker
        length = last - first
        return (self.errors[0] * abs(last - time) + self.errors[1] * abs(time - first)) / length


REFERENCE: Final = Alignment((0.0, 1.0), (0.0, 1.0), (0.0, 0.0))  # of the reference itself: its clock is right


def estimate(exchanges: Iterable[Exchange], resolution: float = RESOLUTION) -> Alignment:
    """The alignment of one worker.

    Args:
        exchanges: two or more, the first and the last well apart: before the work and after it.
        resolution: of the clocks, in microseconds of the reference: a clock shows its last tick, and not the time.

    Raises:
        RangeError: too few exchanges, or all at one time.
    """
    found = list(exchanges)
    if len(found) < 2 or not all(map(math.isfinite, (time for exchange in found for time in exchange))):
        seen = f"{len(found)} exchanges" if len(found) < 2 else "a time that isn't finite"
        raise RangeError(
            "exchanges", seen, "2 or more, of finite times", "Synchronise before the work, and again after it."
        )
    # Numbers near 0 keep their last bits: clocks count from far away.
    zero = min(found[0].received, found[0].returned), found[0].sent
    above = [(exchange.received - zero[0], exchange.sent - zero[1]) for exchange in found]  # the line is above these
    below = [(exchange.returned - zero[0], exchange.arrived - zero[1]) for exchange in found]  # and below these
    # Two exchanges that lie apart keep lines between the points from turning without end.
    ends = min(map(max, above, below))[0], max(map(min, above, below))[0]
    if ends[0] >= ends[1]:
        raise RangeError(
            "exchanges",
            f"{len(found)} that overlap on the worker's clock",
            "two that don't",
            "Synchronise before the work, and again after it.",
        )
    above, below = _hull(above, 1.0), _hull(below, -1.0)
    # A timestamp is off by the clock's tick, and by the last bits of its number; where two points close to each other
    # settle a line's slope, that is much further off at the other end. So it loosens the points, before any line.
    noise = 4 * max(math.ulp(abs(time)) for exchange in found for time in exchange)
    residual, lines = _lines(above, below, resolution + noise)
    places: list[tuple[float, float]] = []  # at each end: middle, half-width
    for end in ends:
        heights = [start + rate * end for start, rate in lines]
        places.append(((max(heights) + min(heights)) / 2, (max(heights) - min(heights)) / 2))
    return Alignment(
        (ends[0] + zero[0], ends[1] + zero[0]),
        (places[0][0] + zero[1], places[1][0] + zero[1]),
        (places[0][1] + residual + noise, places[1][1] + residual + noise),
        residual,
    )


def align(traces: Sequence[Trace], alignments: Sequence[Alignment]) -> Trace:
    """One trace on the reference's clock, of several workers that have a clock each.

    Args:
        traces: one of each worker, whose units are its own alone.
        alignments: in the same order; REFERENCE for the reference.

    Returns:
        All events in the order of their ends, numbered anew; `what` has "alignment", with the error of each clock.

    Raises:
        RangeError: not one alignment for each trace, or two traces of the same unit.
    """
    _check(traces, alignments)
    merged: list[tuple[float, int, int, Event]] = []
    workers: list[dict[str, Any]] = []
    words = 0  # numbers of words are made distinct as well
    for worker, (trace, alignment) in enumerate(zip(traces, alignments, strict=True)):
        most = 0
        for place, event in enumerate(trace.events):
            moved = event._replace(begin=alignment.to_reference(event.begin), end=alignment.to_reference(event.end))
            if event.action in ("write", "drain"):
                most = max(most, *event.writes, 0)
                moved = moved._replace(writes=tuple(word + words for word in event.writes))
            merged.append((moved.end, worker, place, moved))
        words += most
        workers.append(_described(trace, alignment))
    merged.sort(key=lambda entry: entry[:3])
    numbers = {
        (worker, traces[worker].events[place].epoch, traces[worker].events[place].number): number
        for number, (_, worker, place, _) in enumerate(merged)
    }
    events = tuple(
        event._replace(number=number, writes=_renumbered(event, worker, numbers))
        for number, (_, worker, _, event) in enumerate(merged)
    )
    what = {**(dict(traces[0].what) if traces else {}), "alignment": workers}
    return Trace(events, what, sum(trace.dropped for trace in traces))


def _check(traces: Sequence[Trace], alignments: Sequence[Alignment]) -> None:
    if len(traces) != len(alignments):
        raise RangeError(
            "alignments",
            f"{len(alignments)} for {len(traces)} traces",
            "one for each trace",
            "Pass REFERENCE for the trace whose clock the others are laid on.",
        )
    owners: dict[Any, int] = {}
    for worker, trace in enumerate(traces):
        for unit in sorted({event.unit for event in trace.events}):
            if owners.setdefault(unit, worker) != worker:
                raise RangeError(
                    "traces",
                    f"{unit} in traces {owners[unit]} and {worker}",
                    "units of one trace each",
                    "Number the cores of the workers apart, before or after recording.",
                )


def _renumbered(event: Event, worker: int, numbers: dict[tuple[int, int, int], int]) -> tuple[int, ...]:
    if event.action in ("write", "drain"):
        return event.writes
    found = (numbers.get((worker, event.epoch, number)) for number in event.writes)
    return tuple(number for number in found if number is not None)


def _described(trace: Trace, alignment: Alignment) -> dict[str, Any]:
    times = [time for event in trace.events for time in (event.begin, event.end)]
    drift_error = alignment.drift_error
    return {
        "offset_us": alignment.offset,
        "drift_ppm": alignment.drift * 1e6,
        "drift_error_ppm": drift_error * 1e6 if math.isfinite(drift_error) else None,
        "error_us": max(map(alignment.error_at, times), default=max(alignment.errors)),
        "residual_us": alignment.residual,
    }


# ---- lines between two sets of points -------------------------------------------------------------------------------

_Point = tuple[float, float]  # (worker's clock, reference's clock)
_Line = tuple[float, float]  # (height at 0, rate)


def _hull(points: Iterable[_Point], side: float) -> list[_Point]:
    """The points that a line above all of them (side 1), or below all (side -1), can touch."""
    best: dict[float, float] = {}
    for time, height in points:
        best[time] = max(best.get(time, -math.inf), side * height)
    hull: list[_Point] = []
    for time, height in sorted(best.items()):
        while len(hull) > 1 and _turn(hull[-2], hull[-1], (time, height)) >= 0:
            hull.pop()
        hull.append((time, height))
    return [(time, side * height) for time, height in hull]


def _turn(first: _Point, second: _Point, third: _Point) -> float:
    return (second[0] - first[0]) * (third[1] - first[1]) - (second[1] - first[1]) * (third[0] - first[0])


def _lines(above: Sequence[_Point], below: Sequence[_Point], slack: float) -> tuple[float, list[_Line]]:
    """The residual, and the outermost lines above the first points and below the others, loosened by slack and it."""
    lines = _outermost(above, below, slack)
    if lines:
        return 0.0, lines
    least, enough = 0.0, 1e-9
    while not _outermost(above, below, slack + enough):
        least, enough = enough, 2 * enough
    while enough - least > 1e-3 * enough:
        middle = (least + enough) / 2
        least, enough = (least, middle) if _outermost(above, below, slack + middle) else (middle, enough)
    return enough, _outermost(above, below, slack + enough)


def _outermost(above: Sequence[_Point], below: Sequence[_Point], slack: float) -> list[_Line]:
    """Lines through two points each that all points allow: corners of the set of lines that fit."""
    lower = [(time, height - slack) for time, height in above]
    upper = [(time, height + slack) for time, height in below]
    # A line through two points misses them by rounding alone.
    rounding = 8 * max(math.ulp(abs(height)) for _, height in (*lower, *upper))
    found = []
    for (time, height), (other, end) in combinations((*lower, *upper), 2):
        if time == other:
            continue
        rate = (end - height) / (other - time)
        start = height - rate * time
        if all(start + rate * place >= low - rounding for place, low in lower) and all(
            start + rate * place <= high + rounding for place, high in upper
        ):
            found.append((start, rate))
    return found
