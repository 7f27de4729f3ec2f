"""A timeline for a terminal: a row for each unit, a character for each stretch of time.

Not here: the picture (timeline.py).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from rich.text import Text

from steadysum.errors import OptionError
from steadysum.trace.events import SYNC_ACTIONS, Event, Unit
from steadysum.trace.highlights import Highlight
from steadysum.trace.one_clock import in_sequence
from steadysum.trace.recorder import Trace
from steadysum.trace.time_axis import TimeAxis, axis_of, interval

__all__ = ["text_timeline"]

# What a character shows where several things happen in its time: the first of these.
_RANKS: Final = ("early", "stale", "timeout", "raised", "dead", "fault", "work", "wait")
_MARKS: Final = {"early": "!", "stale": "S", "timeout": "T", "raised": "R", "dead": "D", "fault": "F", "wait": "-"}
_STYLES: Final = {"fault": "bold yellow", "wait": "dim"}
_PHASE_STYLES: Final = ("white", "cyan", "blue", "magenta", "green")
_CUT: Final = "/"
_MOST_NOTES: Final = 8


def text_timeline(trace: Trace, highlights: Sequence[Highlight] = (), width: int = 100) -> Text:
    """The timeline.

    Args:
        trace: what happened.
        highlights: reads that came too early.
        width: characters of a line, at least 40.

    Raises:
        OptionError: the trace has no events.
    """
    if not trace.events:
        raise OptionError("timeline", "a trace without events", "one event or more", "Record a run first.")
    events = in_sequence(trace.events)
    axis = axis_of(events)
    units = sorted({event.unit for event in events})
    margin = max(len(str(unit)) for unit in units) + 1
    columns = max(width, 40) - margin
    early = {highlight.reader_event for highlight in highlights}
    rows = {unit: ["" for _ in range(columns)] for unit in units}  # what each character shows
    phases: dict[Unit, list[int]] = {unit: [0] * columns for unit in units}
    for position, event in enumerate(events):
        _fill(rows[event.unit], phases[event.unit], event, axis, position in early)
    text = Text(no_wrap=True, overflow="crop")
    for unit in units:
        text.append(str(unit).ljust(margin))
        for column, look in enumerate(rows[unit]):
            text.append(*_cell(look, phases[unit][column]))
        text.append("\n")
    _cut_columns(text, axis, columns, margin, len(units))
    text.append(_ruler(axis, columns, margin), "dim")
    text.append(_legend(rows.values(), axis), "dim")
    for highlight in highlights[:_MOST_NOTES]:
        text.append(f"\n! {highlight.text}", "bold red")
    if len(highlights) > _MOST_NOTES:
        text.append(f"\n! and {len(highlights) - _MOST_NOTES} more", "bold red")
    return text


def _fill(row: list[str], phases: list[int], event: Event, axis: TimeAxis, early: bool) -> None:
    look = "early" if early else _look(event)
    if not look:
        return
    last = len(row) - 1
    begin, end = (min(int(axis.place(time) * len(row)), last) for time in (event.begin, event.end))
    # An outcome is one of the event's end; what leads up to it looks like any event of its kind.
    before = "wait" if event.action in SYNC_ACTIONS else "work" if event.action != "fault" else "fault"
    for column in range(begin, end + 1):
        shown = look if column == end or look in ("work", "wait") else before
        if not row[column] or _RANKS.index(shown) < _RANKS.index(row[column]):
            row[column], phases[column] = shown, event.place[1]


def _look(event: Event) -> str:
    if event.outcome != "ok":
        return event.outcome
    if event.action in SYNC_ACTIONS:
        return "wait" if event.end > event.begin else ""
    if event.action == "fault":
        return "fault"
    return "work" if event.end > event.begin else ""


def _cell(look: str, phase: int) -> tuple[str, str]:
    if look == "work":
        return str(phase % 10), _PHASE_STYLES[phase % len(_PHASE_STYLES)]
    return _MARKS.get(look, " "), _STYLES.get(look, "bold red" if look else "")


def _cut_columns(text: Text, axis: TimeAxis, columns: int, margin: int, rows: int) -> None:
    """Puts a slash where the axis is cut, in every row."""
    lines = text.plain.split("\n")[:rows]
    places = [margin + int(columns * (axis.place(cut.begin) + axis.place(cut.end)) / 2) for cut in axis.cuts]
    plain = text.plain
    offset = 0
    for line in lines:
        for place in places:
            spot = offset + place
            plain = plain[:spot] + _CUT + plain[spot + 1 :]
        offset += len(line) + 1
    text.plain = plain


def _ruler(axis: TimeAxis, columns: int, margin: int) -> str:
    """Times below the places where they are."""
    line = [" "] * (margin + columns)
    free = 0
    ticks = axis.ticks(max(2, columns // 14))
    digits = max((len(f"{tick:.3f}".rstrip("0").partition(".")[2]) for tick in ticks), default=0)
    for tick in ticks:
        spot = margin + min(int(axis.place(tick) * columns), columns - 1)
        label = f"|{tick:,.{digits}f}"
        if spot >= free and spot + len(label) <= len(line):
            line[spot : spot + len(label)] = label
            free = spot + len(label) + 1
    return "".join(line).rstrip() + " us\n"


def _legend(rows: Collection[Sequence[str]], axis: TimeAxis) -> str:
    names = {
        "early": "! read too early, or overwritten",
        "stale": "S stale read, refused",
        "timeout": "T gave up waiting",
        "raised": "R raised",
        "dead": "D dead",
        "fault": "F fault",
        "work": "0-9 work, by phase",
        "wait": "- waits",
    }
    seen = {look for row in rows for look in row}
    parts = [name for look, name in names.items() if look in seen]
    parts += [f"{_CUT} cut out, {interval(axis.cut_out)} in all"] if axis.cuts else []
    return "; ".join(parts)
