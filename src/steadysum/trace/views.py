"""Tables of single events, and of the waits at sync points, core by core.

Not here: statistics of sync points over all cores (latency.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from rich.console import Group
from rich.text import Text

from steadysum.errors import OptionError
from steadysum.tables import titled_table
from steadysum.trace.events import ACTIONS, Event
from steadysum.trace.latency import UNITS, microseconds, percent, point_name, sync_events, waits_of
from steadysum.trace.recorder import Trace

__all__ = ["LIMIT", "Filter", "events_view", "filtered", "sync_view"]

LIMIT: Final = 50  # events that the table shows


@dataclass(frozen=True)
class Filter:
    """Which events are wanted; None: all."""

    core: int | None = None
    phase: str | None = None  # begins like this, whatever the case: "p2"
    action: str | None = None


def filtered(trace: Trace, wanted: Filter) -> Trace:
    """The trace with the wanted events alone.

    Raises:
        OptionError: the trace has no such core or phase, or there is no such action.
    """
    cores = sorted({event.unit.core for event in trace.events})
    phases = list(dict.fromkeys(event.phase for event in trace.events))
    if wanted.action is not None and wanted.action not in ACTIONS:
        raise OptionError("--action", wanted.action, ", ".join(ACTIONS), "Choose one of these.")
    if wanted.core is not None and wanted.core not in cores:
        allowed = f"cores {cores[0]} to {cores[-1]}" if cores else "none: the trace has no events"
        raise OptionError("--core", str(wanted.core), allowed, "Choose a core that was at work.")
    prefix = None if wanted.phase is None else wanted.phase.casefold()
    if prefix is not None and not any(phase.casefold().startswith(prefix) for phase in phases):
        raise OptionError("--phase", wanted.phase or "", ", ".join(phases), "Give the begin of a phase's name.")
    kept = tuple(
        event
        for event in trace.events
        if (wanted.core is None or event.unit.core == wanted.core)
        and (prefix is None or event.phase.casefold().startswith(prefix))
        and (wanted.action is None or event.action == wanted.action)
    )
    return replace(trace, events=kept)


def events_view(trace: Trace, limit: int = LIMIT) -> Group:
    """The first events of a trace, in the order in which they took effect."""
    table = titled_table(f"events, {UNITS}")
    for column in ("begin", "took"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("unit", no_wrap=True)
    table.add_column("phase", no_wrap=True)
    table.add_column("action", no_wrap=True)
    table.add_column("what", overflow="fold", ratio=1)
    table.add_column("outcome", no_wrap=True)
    for event in trace.events[:limit]:
        table.add_row(
            f"{event.begin:.3f}",
            microseconds(event.end - event.begin),
            Text(str(event.unit)),
            Text(event.phase),
            event.action,
            Text(_what(event)),
            event.outcome,
            style="" if event.outcome == "ok" and event.action != "fault" else "red",
        )
    hidden = len(trace.events) - limit
    notes = [f"{hidden} more: --limit {len(trace.events)}"] if hidden > 0 else []
    notes += [f"{trace.dropped} older events were dropped"] if trace.dropped else []
    notes += ["no such events"] if not trace.events else []
    return Group(table, *(Text(note, style="dim") for note in notes))


def sync_view(trace: Trace) -> Group:
    """How long each core waited, at each sync point."""
    groups: defaultdict[tuple[int, str, str, str], list[Event]] = defaultdict(list)
    for event in sync_events(trace.events):
        groups[event.unit.core, event.phase, event.action, event.detail].append(event)
    table = titled_table(f"waits of each core, {UNITS}")
    table.add_column("core", justify="right", no_wrap=True)
    table.add_column("phase", no_wrap=True)
    table.add_column("sync point", overflow="fold")
    for column in ("count", "p50", "longest", "all", "ok"):
        table.add_column(column, justify="right", no_wrap=True)
    order = {key[1:]: place for place, key in reversed(list(enumerate(groups)))}
    before = None
    for key in sorted(groups, key=lambda key: (key[0], order[key[1:]])):
        core, phase, action, detail = key
        waits = waits_of(groups[key])
        if before not in (None, core):
            table.add_section()
        table.add_row(
            "" if core == before else str(core),
            Text(phase),
            Text(point_name(action, detail)),
            str(waits.count),
            *map(microseconds, (waits.p50, waits.max, waits.total)),
            percent(waits.ok, waits.count),
            style="" if waits.ok == waits.count else "red",
        )
        before = core
    return Group(table) if groups else Group(Text("no waits in this trace", style="dim"))


def _what(event: Event) -> str:
    spans: Sequence[str] = [f"{region}[{start}:{stop}]" for region, start, stop in event.spans]
    shown = [*([event.detail] if event.detail else []), *spans[:3]]
    return ", ".join(shown) + (f" and {len(spans) - 3} more" if len(spans) > 3 else "")
