"""Figures for people and for programs: tables for a terminal from 80 columns on, and plain JSON values.

Not here: the figures themselves (figures.py).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from steadysum.monitor.figures import CheckFigures, OperatorFigures, ProcessFigures, SyncFigures
from steadysum.monitor.labels import IDENTITY
from steadysum.tables import titled_table
from steadysum.trace.latency import UNITS, microseconds, percent

__all__ = ["SCHEMA", "figures_document", "process_view"]

SCHEMA: Final = "steadysum.metrics/1"
_LATE: Final = 120.0  # seconds: a running process writes its file every 15
_MICROSECONDS: Final = 1e6  # in a second


def process_view(process: ProcessFigures, now: float | None = None) -> RenderableType:
    """All figures of a process.

    Args:
        process: the figures.
        now: seconds since 1970; None: the clock's.
    """
    parts: list[RenderableType] = [_headline(process, time.time() if now is None else now)]
    if process.operators:
        parts.append(_operators(process.operators))
    if process.checks:
        parts.append(_checks(process.checks))
    if process.syncs:
        parts.append(_syncs(process.syncs))
    if process.checks or process.syncs:
        parts.append(Text(f"times {UNITS}", style="dim"))
    if len(parts) == 1:
        parts.append(Text("nothing was counted yet", style="dim"))
    return Group(*parts)


def figures_document(processes: Iterable[ProcessFigures]) -> dict[str, Any]:
    """Plain JSON values.

    {schema, processes}; a process is {labels, is_running, written, operators, checks, syncs}. An operator is {operator,
    calls, retries, fallbacks, healed_tiles, bundles}, a check {operator, check, outcomes, anomalies, seconds,
    mean_seconds}, a sync point {point, outcomes, waits, success_rate, seconds, p99, peak}; counts by a label are
    objects; times are in seconds, `written` since 1970.
    """
    return {"schema": SCHEMA, "processes": [_plain(process) for process in processes]}


def _plain(process: ProcessFigures) -> dict[str, Any]:
    return {
        **asdict(process),
        "checks": [{**asdict(check), "mean_seconds": check.mean_seconds} for check in process.checks],
        "syncs": [{**asdict(sync), "waits": sync.waits, "success_rate": sync.success_rate} for sync in process.syncs],
    }


# ---- for a terminal -------------------------------------------------------------------------------------------------


def _headline(process: ProcessFigures, now: float) -> Text:
    age = max(0.0, now - process.written)
    state, style = "ended", "dim"
    if process.is_running:
        state, style = ("running", "green") if age < _LATE else ("says nothing any more", "bold red")
    names = [*IDENTITY, *sorted(process.labels.keys() - set(IDENTITY))]
    who = ", ".join(f"{name} {process.labels[name]}" for name in names if name in process.labels)
    return Text.assemble((who, "bold"), ": ", (state, style), (f", figures of {_age(age)} ago", "dim"))


def _operators(operators: Sequence[OperatorFigures]) -> Table:
    columns = ("calls", "clean", "healed", "fallback", "raised", "retries", "tiles", "bundles")
    table = _table("guarded calls", ("operator",), columns)
    for operator in operators:
        calls = operator.calls
        counts = [sum(calls.values()), *(calls.get(name, 0) for name in ("clean", "healed", "fallback", "raised"))]
        others = (operator.retries, operator.healed_tiles, operator.bundles.get("written", 0))
        style = "red" if calls.get("raised") else ""
        table.add_row(Text(operator.operator), *map(str, (*counts, *others)), style=style)
    return table


def _checks(checks: Sequence[CheckFigures]) -> Table:
    table = _table("checks", ("operator", "check"), ("passed", "failed", "mean time", "anomalies"))
    for check in checks:
        counts = (check.outcomes.get("passed", 0), check.outcomes.get("failed", 0))
        style = "red" if counts[1] else ""
        cells = (*map(str, counts), _time(check.mean_seconds), _counts(check.anomalies))
        table.add_row(Text(check.operator), Text(check.check), *cells, style=style)
    return table


def _syncs(syncs: Sequence[SyncFigures]) -> Table:
    table = _table("sync points", ("sync point",), ("waits", "ok", "failed", "p99 <=", "peak"))
    for sync in syncs:
        failed = _counts({name: count for name, count in sync.outcomes.items() if name != "ok"})
        rate = percent(sync.outcomes.get("ok", 0), sync.waits) if sync.waits else "-"
        style = "" if failed == "-" else "red"
        table.add_row(Text(sync.point), str(sync.waits), rate, failed, _time(sync.p99), _time(sync.peak), style=style)
    return table


def _table(title: str, left: Iterable[str], right: Iterable[str]) -> Table:
    table = titled_table(title)
    for column in left:
        table.add_column(column, overflow="fold", min_width=9)
    for column in right:
        table.add_column(column, justify="right")
    return table


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "-"


def _time(seconds: float) -> str:
    if math.isnan(seconds):
        return "-"
    return "inf" if math.isinf(seconds) else microseconds(seconds * _MICROSECONDS)


def _age(seconds: float) -> str:
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.0f} s"
