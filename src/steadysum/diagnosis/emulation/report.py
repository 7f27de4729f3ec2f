"""An emulation as tables for a terminal, from 80 columns on. The same as JSON: document.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from steadysum.diagnosis.arguments import DTYPE_NAMES
from steadysum.diagnosis.emulation.judge import THRESHOLD, Outcome
from steadysum.diagnosis.emulation.replay import ReplayReport
from steadysum.diagnosis.emulation.tally import EmulationReport
from steadysum.diagnosis.rates import clopper_pearson, runs_needed
from steadysum.sync.hazard_report import hazards_text
from steadysum.sync.hazards import Hazards
from steadysum.tables import titled_table

__all__ = ["render_emulation", "render_hazards", "render_replay"]

_MOST_PLACES: Final = 8  # rows of the table of hazards; the JSON has them all
_MOST_HAZARDS: Final = 10  # reports in full, where fewer are manifest: `legacy` has a thousand possible ones a call
_RARE: Final = 1e-3  # the example of a rate that a short campaign can't exclude
_STYLES: Final = {
    Outcome.RIGHT: "green",
    Outcome.DIFFERS: "yellow",
    Outcome.DEVIATES: "bold red",
    Outcome.RAISED: "bold red",
}
_MEANINGS: Final = {
    Outcome.RIGHT: "all bits are the fault-free call's",
    Outcome.DIFFERS: f"some bits aren't, by at most {THRESHOLD:g}",
    Outcome.DEVIATES: f"a row's max or log-sum is off by more than {THRESHOLD:g}",
    Outcome.RAISED: "the policy refused to answer",
}


def render_emulation(report: EmulationReport) -> RenderableType:
    """The verdict, all tables, and what to do next."""
    parts: list[RenderableType] = [_subject(report), Text(), _verdict(report), Text()]
    if report.calls:
        parts += [_outcomes(report), Text(), *_details(report)]
        tables = (_faults(report), _hazards(report), _waits(report))
        parts += [part for table in tables if table is not None for part in (table, Text())]
    parts += [Text(line) for line in _loop(report)]
    parts += [Text(line, style="dim") for line in _next(report)]
    return Group(*parts)


def render_hazards(report: EmulationReport) -> RenderableType:
    """The newest deviating call's hazards in full: all manifest ones, and a few of those that were only possible."""
    if report.last_hazards is None:
        return Text("No call deviated: there is no call whose hazards could be shown.")
    found, left_out, pairs = report.last_hazards
    shown = max(len(report.last_hazards.manifest), _MOST_HAZARDS)  # the manifest ones come first
    hazards = Hazards(found[:shown], left_out + max(0, len(found) - shown), pairs)
    text = hazards_text(hazards, report.plan.has_clock)
    return Group(Text(f"call {report.last_call}, the newest that deviates:", style="bold"), Text(text))


def render_replay(report: ReplayReport) -> RenderableType:
    """Identical, or the first difference."""
    calls = _plural(report.calls, "call")
    parts = []
    if report.difference is None:
        style = "green" if report.exit_code == 0 else "yellow"
        parts.append(Text(f"replayed {calls}: identical", style=style))
    else:
        call, what, then, now = report.difference
        parts.append(Text(f"replayed {calls}: call {call} differs in its {what}", style="bold red"))
        parts.append(Text(f"saved:    {then}\nreplayed: {now}"))
        parts += [
            Text(f"{name} was {then}, and is {now}: its bits may be others", style="yellow")
            for name, (then, now) in report.other_versions.items()
        ]
    if report.stopped:
        parts.append(Text("Stopped early: the file has more calls.", style="yellow"))
    if report.is_cut:
        parts.append(Text("The file's last line was cut off, and isn't replayed.", style="yellow"))
    if not report.stopped and report.difference is None and report.calls < report.plan.calls:
        parts.append(Text(f"The file has {report.calls} of {report.plan.calls} planned calls.", style="yellow"))
    return Group(*parts)


def _subject(report: EmulationReport) -> Text:
    plan = report.plan
    rows, hidden, vocabulary = plan.shape
    logits = "" if plan.logits_dtype is None else f", logits in {DTYPE_NAMES[plan.logits_dtype]}"
    inputs = "equal inputs" if plan.inputs == 1 else f"{plan.inputs} sets of inputs in turn"
    text = f"N={rows} H={hidden} V={vocabulary} {DTYPE_NAMES[plan.dtype]}{logits}, {inputs}, seed {plan.seed}"
    return Text(text, style="bold")


def _verdict(report: EmulationReport) -> Text:
    """The line that a reader in a hurry reads."""
    raised = report.outcomes[Outcome.RAISED]
    stopped = "" if report.complete else "stopped early; "
    low, high = report.interval
    text = f"{report.plan.title}: {stopped}{report.deviating} of {_plural(report.calls, 'call')} deviate"
    if report.calls:
        text += f", {_percent(report.deviating / report.calls)} % [{_percent(low)}, {_percent(high)}]"
    if raised:
        text += f"; {raised} raised"
    if report.void:
        text += f"; void: {', '.join(report.void)} never acted"
    return Text(text, style={0: "green", 1: "bold red", 2: "yellow"}[report.exit_code])


def _outcomes(report: EmulationReport) -> Table:
    table = _table("outcomes", ("outcome",), ("calls", "95 % interval"), ("meaning",))
    for outcome, count in report.outcomes.items():
        low, high = clopper_pearson(count, report.calls)
        style = _STYLES[outcome] if count else "dim"
        interval = f"{_percent(low)} – {_percent(high)} %"
        table.add_row(outcome.value, str(count), interval, _MEANINGS[outcome], style=style)
    return table


def _details(report: EmulationReport) -> Iterator[Text]:
    lines = []
    for raised, count in report.raised:
        cores = f", naming core {', '.join(map(str, raised.cores))}" if raised.cores else ""
        lines.append(f"{_plural(count, 'call')} raised {raised.error}{cores}")
    if report.noticed:
        again = f"{report.launched_again} were launched again, and " if report.launched_again else ""
        lines.append(
            f"the policy saw something wrong in {_plural(report.noticed, 'call')}; of these, "
            f"{again}{report.noticed_and_right} ended right"
        )
    if report.worst is not None:
        largest, call, rows, first = report.worst
        lines.append(
            f"largest deviation {largest:.3g}, in call {call}: {_plural(rows, 'row')}, the first is row {first}"
        )
    lines += [f"deviating calls are {words}" for words in report.pattern]
    yield from map(Text, lines)
    if lines:
        yield Text()


def _faults(report: EmulationReport) -> Table | None:
    if not report.faults:
        return None
    table = _table("faults", ("armed",), ("could act", "acted"), ("",))
    for fault in report.faults:
        note = "" if fault.acted else "void: nothing is said about it"
        table.add_row(fault.text, str(fault.offered), str(fault.acted), note, style="" if fault.acted else "yellow")
    return table


def _hazards(report: EmulationReport) -> Table | None:
    calls, with_manifest, places = report.hazards
    if not calls:
        return None
    every = "every deviating call has" if with_manifest == calls else f"{with_manifest} of {calls} deviating calls have"
    table = _table(
        f"hazards: {every} one that it went wrong at", ("kind", "region", "between"), ("calls",), ("in these calls",)
    )
    for place, count in places[:_MOST_PLACES]:
        between = place.first if place.first == place.second else f"{place.first} and {place.second}"
        harm = "manifest: it went wrong" if place.manifest else "possible: luck had it right"
        table.add_row(place.kind, place.region, between, str(count), harm, style="" if place.manifest else "dim")
    if len(places) > _MOST_PLACES:
        table.add_row(f"{len(places) - _MOST_PLACES} more", "", "", "", "see --json", style="dim")
    return table


def _waits(report: EmulationReport) -> Table | None:
    if not report.waits:
        return None
    unit = "microseconds of the virtual clock" if report.plan.has_clock else "choices of the schedule"
    table = _table(
        f"waits at sync points, {unit}",
        ("phase", "sync point"),
        ("count", "p50", "p90", "p99", "p99.9", "max", "ok"),
        (),
    )
    for waits in report.waits:
        times = (waits.p50, waits.p90, waits.p99, waits.p999, waits.largest)
        name = f"{waits.point.action} {waits.point.name}"
        ok = "100 %" if waits.ok == waits.count else f"{_percent(min(waits.ok / waits.count, 0.9999))} %"
        table.add_row(waits.point.phase, name, str(waits.count), *map(_time, times), ok)
    return table


def _loop(report: EmulationReport) -> Iterator[str]:
    if report.loop is None:
        return
    loop, raised = report.loop
    text = f"The field report's own loop on such a device, {_plural(loop.calls + raised, 'call')} with equal inputs"
    text += f", of which {loop.deviating} gave other bits: it {loop.says}"
    yield text + (f"; {raised} raised" if raised else "") + "."


def _next(report: EmulationReport) -> Iterator[str]:
    plan = report.plan
    if report.trace is not None:
        whose = "the newest deviating call" if report.last_call is not None else "the last call"
        recorded = not report.trace.startswith("not recorded")
        yield f"See {whose}: steadysum trace timeline" if recorded else f"The trace of {whose} was {report.trace}"
    if report.deviating and plan.policy == "legacy":
        yield "The cure under the same load and seed: --policy enhanced. What went wrong, in full: --hazards"
    elif report.deviating:
        yield "What went wrong, in full: --hazards. A policy can't see every kind of fault: docs/faults.md says which"
    if report.outcomes[Outcome.RAISED]:
        yield "A core that is only late has time with a larger --timeout or more --retries; a dead one hasn't"
    if report.void:
        yield "A fault that never acts proves nothing: raise its probability, --calls, or look at where it is armed"
    if report.exit_code == 0:
        high = report.interval.high
        text = f"{_plural(report.calls, 'call')} exclude rates of deviating calls above {_percent(high)} % (95 %)"
        rarer = f"; to see 1 in {round(1 / _RARE)}: --calls {runs_needed(_RARE)}" if high > _RARE else ""
        yield f"{text}, not rarer ones{rarer}"


def _table(title: str, left: tuple[str, ...], right: tuple[str, ...], notes: tuple[str, ...]) -> Table:
    table = titled_table(title)
    for column in left:
        table.add_column(column, overflow="fold")
    for column in right:
        table.add_column(column, justify="right", no_wrap=True)
    for column in notes:
        table.add_column(column, overflow="fold")
    return table


def _percent(rate: float) -> str:
    """A rate in per cent, with one digit after the point below 10; 0 and 100 without."""
    percent = 100.0 * rate
    if percent in (0.0, 100.0):
        return f"{percent:.0f}"
    return f"{percent:.1f}" if 0.095 <= percent < 99.95 else f"{percent:.2g}" if percent < 1 else f"{percent:.2f}"


def _time(time: float) -> str:
    return f"{time:.3g}" if time < 1000 else f"{time:.0f}"


def _plural(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
