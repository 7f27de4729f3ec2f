"""Traces for Perfetto and chrome://tracing: the trace event format, as JSON.

A core is a process, a unit a thread of it; the words of a unit that reach memory are a second thread below it. Actions
are slices; faults, stale reads and waits that timed out are also marked by an instant. Where there is no room for an
event of no length, its slice stays without one.

Arrows: from each signal to the await that it satisfied; where an await needed more than a few, from the last one alone.
At a barrier from its last arriver to each of those that waited: the arrival that let them go. An arrow points at the
last piece of the wait, "let go", from the signal on.

Source: the document "Trace Event Format" of the Chromium project. Not here: how slices are laid out (slices.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from steadysum.trace.events import Event, Unit
from steadysum.trace.one_clock import in_sequence
from steadysum.trace.recorder import Trace
from steadysum.trace.slices import Slice, Track, tracks_of

__all__ = ["chrome_document", "chrome_text"]

# An await for the heartbeats of all units has as many signals as there are units: arrows from all hide everything.
_MOST_ARROWS: Final = 4
# Numbers of processes and threads: beyond 0, which Perfetto takes for the idle process, and easy to read.
_FIRST_PROCESS: Final = 1000
_THREADS: Final = 100  # at most, of a process

# Names of the viewer's palette (Chromium, color_scheme.html). Perfetto colours by name instead.
_COLOURS: Final[Mapping[str, str]] = {"stale": "terrible", "timeout": "bad", "raised": "terrible", "dead": "black"}
_FAULT_COLOUR: Final = "yellow"
_WAIT_COLOUR: Final = "grey"


def chrome_text(trace: Trace) -> str:
    """The JSON document as text."""
    return json.dumps(chrome_document(trace), separators=(",", ":"), allow_nan=False) + "\n"


def chrome_document(trace: Trace) -> dict[str, Any]:
    """The trace in the trace event format; times in microseconds, from 0."""
    events = in_sequence(trace.events)
    earliest = min((event.begin for event in events), default=0.0)
    if earliest < 0:  # the format has none before 0
        events = tuple(event._replace(begin=event.begin - earliest, end=event.end - earliest) for event in events)
    tracks = tracks_of(events)
    threads = _threads(tracks)
    entries = [*_metadata(threads)]
    places: dict[tuple[int, int], tuple[Slice, int]] = {}  # (epoch, number): slice, thread
    for track, thread in threads:
        for piece in track.slices:
            entries.append(_slice(piece, thread))
            places[piece.event.epoch, piece.event.number] = piece, thread
    entries += _arrows(events, places)
    entries += [_instant(piece, thread) for piece, thread in places.values() if _mark(piece.event)]
    return {
        "traceEvents": entries,
        "displayTimeUnit": "ns",
        "otherData": {"tool": "steadysum", "dropped events": str(trace.dropped), **_texts(trace.what)},
    }


def _texts(what: Mapping[str, Any]) -> dict[str, str]:
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in what.items()}


# ---- processes and threads ------------------------------------------------------------------------------------------


def _process(unit: Unit) -> int:
    return _FIRST_PROCESS + unit.core


def _threads(tracks: Iterable[Track]) -> list[tuple[Track, int]]:
    """Each track with the number of its thread, which no other process has."""
    counts: dict[int, int] = {}
    threads = []
    for track in tracks:
        process = _process(track.unit)
        counts[process] = counts.get(process, 0) + 1
        threads.append((track, process * _THREADS + counts[process]))
    return threads


def _metadata(threads: Iterable[tuple[Track, int]]) -> Iterable[dict[str, Any]]:
    threads = list(threads)
    named: set[int] = set()
    # Perfetto sorts by name, and would have core 10 before core 2.
    digits = max((len(str(track.unit.core)) for track, _ in threads), default=1)
    for track, thread in threads:
        unit, process = track.unit, _process(track.unit)
        if process not in named:
            named.add(process)
            yield _named("process_name", process, 0, name=unit.role if unit.core < 0 else f"core {unit.core:0{digits}}")
            yield _named("process_sort_index", process, 0, sort_index=process)
        yield _named("thread_name", process, thread, name=f"{unit.role} {track.kind}".rstrip())
        yield _named("thread_sort_index", process, thread, sort_index=thread)


def _named(what: str, process: int, thread: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": args}


# ---- slices, instants, arrows ---------------------------------------------------------------------------------------


def _slice(piece: Slice, thread: int) -> dict[str, Any]:
    event = piece.event
    entry = {
        "ph": "X",
        "name": _name(event),
        "cat": event.phase or "none",
        "ts": piece.begin / 1000,
        "dur": (piece.end - piece.begin) / 1000,
        "pid": _process(event.unit),
        "tid": thread,
        "args": _args(event),
    }
    colour = _colour(event)
    if colour is not None:
        entry["cname"] = colour
    return entry


def _name(event: Event) -> str:
    name = f"{event.action} {event.detail}" if event.detail else event.action
    regions = ", ".join(dict.fromkeys(span[0] for span in event.spans))
    name = f"{name} {regions}" if regions else name
    return name if event.outcome == "ok" else f"{name}: {event.outcome}"


def _args(event: Event) -> dict[str, Any]:
    args: dict[str, Any] = {
        "phase": event.phase,
        "outcome": event.outcome,
        "epoch": event.epoch,
        "number": event.number,
        "begin": event.begin,  # exact, where the slice has been given a length, or moved
        "end": event.end,
    }
    if event.spans:
        args["elements"] = ", ".join(f"{region}[{start}:{stop}]" for region, start, stop in event.spans)
    if event.flags:
        args["flags"] = ", ".join(f"{name} of {Unit(core, role)}" for name, core, role in event.flags)
        args["value"] = event.value
    return args


def _colour(event: Event) -> str | None:
    if event.outcome in _COLOURS:
        return _COLOURS[event.outcome]
    if event.action == "fault":
        return _FAULT_COLOUR
    return _WAIT_COLOUR if event.action in ("await", "barrier") else None


def _mark(event: Event) -> str | None:
    """What an instant says, if there is one."""
    if event.outcome == "stale":
        return "stale read"
    if event.outcome in ("timeout", "dead", "raised"):
        return event.outcome
    return "fault" if event.action == "fault" else None


def _instant(piece: Slice, thread: int) -> dict[str, Any]:
    event = piece.event
    # An outcome is marked in the slice's last nanosecond: a moment later would be the next slice's.
    moment = piece.begin if event.action == "fault" else max(piece.begin, piece.end - 1)
    return {
        "ph": "i",
        "s": "t",
        "name": f"{_mark(event)}: {event.detail}" if event.detail else str(_mark(event)),
        "cat": event.phase or "none",
        "ts": moment / 1000,
        "pid": _process(event.unit),
        "tid": thread,
        "args": {"number": event.number, "epoch": event.epoch},
    }


def _arrows(events: Iterable[Event], places: Mapping[tuple[int, int], tuple[Slice, int]]) -> Iterable[dict[str, Any]]:
    arrow = 0
    for event in events:
        if event.action not in ("await", "barrier") or event.outcome != "ok":
            continue
        target, target_thread = places[event.epoch, event.number]
        sources = [places[event.epoch, number] for number in _sources(event, places)]
        sources = [(source, thread) for source, thread in sources if source.begin <= target.end]  # clocks may disagree
        if not sources:
            continue
        # Perfetto takes the slice that begins first for an arrow's tail, and points at the other's begin. A wait begins
        # before its signal: what the arrow points at is a piece of it, from the signal on.
        moment = max(target.begin, max(source.begin for source, _ in sources) + 1)
        if target.begin < moment < target.end:
            yield _released(event, moment, target.end, target_thread)
        else:
            moment = max(target.begin, min(moment, target.end - 1))
        for source, source_thread in sources:
            if source.begin > moment:
                continue  # the wait ends with the signal, and leaves the arrow no way that doesn't go back in time
            arrow += 1
            common = {"name": event.action, "cat": "sync", "id": arrow}
            yield {
                "ph": "s",
                **common,
                "ts": source.begin / 1000,
                "pid": _process(source.event.unit),
                "tid": source_thread,
            }
            yield {
                "ph": "f",
                "bp": "e",
                **common,
                "ts": moment / 1000,
                "pid": _process(event.unit),
                "tid": target_thread,
            }


def _released(event: Event, begin: int, end: int, thread: int) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": "let go",
        "cat": event.phase or "none",
        "ts": begin / 1000,
        "dur": (end - begin) / 1000,
        "pid": _process(event.unit),
        "tid": thread,
        "args": {"number": event.number, "epoch": event.epoch},
    }


def _sources(event: Event, places: Mapping[tuple[int, int], tuple[Slice, int]]) -> list[int]:
    """Numbers of the events that an arrow to this wait comes from; those that were dropped are left out."""
    numbers = [number for number in dict.fromkeys(event.writes) if (event.epoch, number) in places]
    if event.action == "await" and len(numbers) <= _MOST_ARROWS:
        return numbers
    if not numbers:
        return []
    last = max(numbers, key=lambda number: (places[event.epoch, number][0].event.begin, number))
    return [] if last == event.number else [last]
