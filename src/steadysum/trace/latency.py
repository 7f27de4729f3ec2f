"""How long units wait at the sync points, and which core comes last.

A sync point is all waits of one (phase, action, detail): a barrier by its name, or the awaits of a flag. A wait that
timed out counts with the time that it took; the success rate says how many did.

Not here: single waits (views.py), pictures (timeline.py).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from steadysum.tables import titled_table
from steadysum.trace.events import SYNC_ACTIONS, Event
from steadysum.trace.recorder import Trace

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

__all__ = [
    "CoreWaits",
    "Latency",
    "SyncPoint",
    "Waits",
    "core_table",
    "latency_document",
    "latency_of",
    "latency_table",
    "latency_tables",
    "sync_events",
    "waits_of",
]

SCHEMA: Final = "steadysum.latency/1"
_QUANTILES: Final = (0.5, 0.9, 0.99, 0.999)


@dataclass(frozen=True)
class Waits:
    """Durations of some waits, in microseconds; quantiles are numpy's, interpolated linearly."""

    count: int
    ok: int  # of them, those that didn't time out, or end in an error
    p50: float
    p90: float
    p99: float
    p999: float
    max: float
    total: float

    @property
    def success_rate(self) -> float:
        """Share of the waits that ended well."""
        return self.ok / self.count


@dataclass(frozen=True)
class SyncPoint:
    """One place where units wait for each other."""

    phase: str
    action: str
    detail: str
    waits: Waits
    last_core: (
        int | None
    )  # of a barrier: the core that came last most often, the straggler; None: no core did, or a flag
    last_count: int  # how often
    passes: int  # of how many


@dataclass(frozen=True)
class CoreWaits:
    """All waits of one core's units."""

    core: int
    waits: Waits
    came_last: int  # at how many barriers
    barriers: int  # of how many that it came to
    late_by: float  # microseconds by which it came later than all others, over the barriers at which it came last


@dataclass(frozen=True)
class Latency:
    """The sync latency of a run."""

    points: tuple[SyncPoint, ...]  # in the order in which they were first passed
    cores: tuple[CoreWaits, ...]  # ascending

    @property
    def straggler(self) -> int | None:
        """The core for which the others waited longest at barriers; None where nobody waited for one alone."""
        latest = max(self.cores, key=lambda core: core.late_by, default=None)
        return latest.core if latest is not None and latest.late_by > 0.0 else None


def sync_events(events: Iterable[Event]) -> tuple[Event, ...]:
    """The waits among some events."""
    return tuple(event for event in events if event.action in SYNC_ACTIONS)


def waits_of(events: Sequence[Event]) -> Waits:
    """Statistics of the durations of some waits, at least one."""
    durations = np.array([event.end - event.begin for event in events])  # [events]
    quantiles = np.quantile(durations, _QUANTILES)
    ok = sum(event.outcome == "ok" for event in events)
    p50, p90, p99, p999 = map(float, quantiles)
    return Waits(len(events), ok, p50, p90, p99, p999, float(durations.max()), float(durations.sum()))


def latency_of(trace: Trace) -> Latency:
    """The latency of every sync point and core of a trace."""
    points: defaultdict[tuple[str, str, str], list[Event]] = defaultdict(list)
    cores: defaultdict[int, list[Event]] = defaultdict(list)
    for event in sync_events(trace.events):
        points[event.phase, event.action, event.detail].append(event)
        cores[event.unit.core].append(event)
    last: dict[tuple[str, str, str], Counter[int]] = {}
    came: Counter[int] = Counter()
    passes: Counter[tuple[str, str, str]] = Counter()
    late_by: defaultdict[int, float] = defaultdict(float)
    for point, events in points.items():
        last[point] = Counter()
        if point[1] == "barrier":
            for arrivals in _passes(events).values():
                *_, (before, _), (latest, core) = sorted((time, core) for core, time in arrivals.items())
                passes[point] += 1
                if latest > before:  # else nobody came last
                    last[point][core] += 1
                    late_by[core] += latest - before
                came.update(arrivals.keys())
    lasts = sum(last.values(), Counter[int]())
    return Latency(
        tuple(_point(point, events, last[point], passes[point]) for point, events in points.items()),
        tuple(CoreWaits(core, waits_of(cores[core]), lasts[core], came[core], late_by[core]) for core in sorted(cores)),
    )


def _passes(events: Iterable[Event]) -> dict[int, dict[int, float]]:
    """By epoch, when each core was all there, at a barrier that two cores or more came to.

    A core waits least where it comes last; arrivals say so also where a wait timed out, or was tried again.
    """
    epochs: defaultdict[int, dict[tuple[int, str], float]] = defaultdict(dict)
    for event in events:  # a unit's first arrival in an epoch: later ones are retries
        epochs[event.epoch].setdefault(event.unit, event.begin)
    passes: dict[int, dict[int, float]] = {}
    for epoch, units in epochs.items():
        arrivals: dict[int, float] = {}
        for (core, _), begin in units.items():
            arrivals[core] = max(arrivals.get(core, begin), begin)
        if len(arrivals) > 1:
            passes[epoch] = arrivals
    return passes


def _point(point: tuple[str, str, str], events: Sequence[Event], last: Counter[int], passes: int) -> SyncPoint:
    core, count = min(last.items(), key=lambda item: (-item[1], item[0])) if last else (None, 0)
    return SyncPoint(*point, waits_of(events), core, count, passes)


def latency_document(latency: Latency) -> dict[str, Any]:
    """Plain JSON values. Times are in microseconds.

    {schema, straggler: core or null, points, cores}; a point is {phase, action, detail, waits, success_rate, last_core,
    last_count, passes}, a core {core, waits, success_rate, came_last, barriers, late_by}; waits are {count, ok, p50,
    p90, p99, p999, max, total}.
    """
    return {
        "schema": SCHEMA,
        "straggler": latency.straggler,
        "points": [_plain(point) for point in latency.points],
        "cores": [_plain(core) for core in latency.cores],
    }


def _plain(part: SyncPoint | CoreWaits) -> dict[str, Any]:
    return {**asdict(part), "success_rate": part.waits.success_rate}


# ---- for a terminal, from 80 columns on ----------------------------------------------------------------------------


def latency_table(latency: Latency) -> Table:
    """A row for each sync point."""
    table = _table(f"sync latency, {UNITS}", ("phase", "sync point"), (*_QUANTILE_NAMES, "ok", "last core"))
    for point in latency.points:
        last = "-" if point.last_core is None else f"{point.last_core} ({point.last_count}/{point.passes})"
        table.add_row(point.phase, point_name(point.action, point.detail), *_cells(point.waits), last)
    return table


def core_table(latency: Latency) -> Table:
    """A row for each core; the straggler in bold."""
    table = _table("by core", ("core",), (*_QUANTILE_NAMES, "ok", "last at", "late by"))
    for core in latency.cores:
        style = "bold" if core.core == latency.straggler else ""
        came_last = f"{core.came_last}/{core.barriers}" if core.barriers else "-"
        late_by = microseconds(core.late_by) if core.came_last else "-"
        table.add_row(str(core.core), *_cells(core.waits), came_last, late_by, style=style)
    return table


def latency_tables(latency: Latency) -> Group:
    """Both tables, and who the straggler is."""
    from rich.console import Group
    from rich.text import Text

    straggler = next((core for core in latency.cores if core.core == latency.straggler), None)
    who = "at no barrier did all wait for one core"
    if straggler is not None:
        where = f"{straggler.came_last} of {straggler.barriers} barriers"
        who = f"core {straggler.core} came last at {where}, {microseconds(straggler.late_by)} us after all others"
    return Group(latency_table(latency), Text(), core_table(latency), Text(who, style="dim"))


def point_name(action: str, detail: str) -> str:
    """A sync point in a few words."""
    return f"{action} {detail}" if detail else action


UNITS: Final = "in microseconds (k: thousands, M: millions)"
_QUANTILE_NAMES: Final = ("count", "p50", "p90", "p99", "p99.9", "max")


def _table(title: str, left: Iterable[str], right: Iterable[str]) -> Table:
    table = titled_table(title)
    for column in left:
        table.add_column(column, overflow="fold", min_width=9)
    for column in right:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _cells(waits: Waits) -> tuple[str, ...]:
    times = (waits.p50, waits.p90, waits.p99, waits.p999, waits.max)
    return (str(waits.count), *map(microseconds, times), percent(waits.ok, waits.count))


def microseconds(time: float) -> str:
    """At most five characters: waits of 0.4 us and of seconds stand in one column."""
    if abs(time) < 999.5:
        return f"{time:.3g}"
    if abs(time) < 9999.5:
        return f"{time:.0f}"
    size, letter = (1e6, "M") if abs(time) >= 999.5e3 else (1e3, "k")
    scaled = time / size
    return (
        f"{scaled:.2f}" if abs(scaled) < 9.995 else f"{scaled:.1f}" if abs(scaled) < 99.95 else f"{scaled:.0f}"
    ) + letter


def percent(part: int, whole: int) -> str:
    """A share that is 100 % only if it is all, and 0 % only if it is none."""
    if part in (0, whole):
        return "100 %" if part else "0 %"
    return f"{min(max(100 * part / whole, 0.1), 99.9):.1f} %"
