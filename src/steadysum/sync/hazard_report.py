"""Hazards as people and machines read them: text in the manner of a sanitizer, JSON, and arrows for the timeline.

Schema of the JSON, `steadysum.hazards/1`. Additions keep the number; a changed or removed key raises it. Keys:

    schema     "steadysum.hazards/1"
    pairs      unordered pairs of accesses, all reports together
    left_out   reports beyond those that were kept
    hazards    [hazard], the manifest ones first

    hazard     kind                "read-after-write" | "write-after-read" | "write-after-write"
               region, start, stop elements [start, stop) of the region
               epoch               number of the call
               first, second       side: the access that is meant first, and the other one
               meant               whether the program's places order the two
               crosstalk           whether they only share a 64-byte line
               manifest            whether this run went wrong here
               count               pairs like it

    side       core, role, phase   who, and where in the call
               action              "read" | "write" | "add"
               place               [epoch, index of the phase, step]
               at                  time of the access: microseconds, or number of the choice
               in_memory           time at which a write or an add was in memory, or null
               event, memory_event numbers of the events of these two moments; memory_event may be null

Not here: how hazards are found (hazards.py), and files (the caller's).
"""

from __future__ import annotations

from typing import Any, Final

from steadysum.sync.hazards import RAW, WAR, Hazard, Hazards, Side
from steadysum.trace.highlights import Highlight

__all__ = ["SCHEMA", "hazards_document", "hazards_text", "marks", "text_of"]

SCHEMA: Final = "steadysum.hazards/1"


def hazards_text(hazards: Hazards, clock: bool = True) -> str:
    """All reports.

    Args:
        hazards: of one run.
        clock: whether the run had a clock, so that times are microseconds; else they are numbers of choices.
    """
    if not hazards:
        return "steadysum: no hazard found"
    shown = len(hazards.found)
    total = _plural(shown + hazards.left_out, "hazard")
    more = f", {hazards.left_out} of them not shown" if hazards.left_out else ""
    last = f"steadysum: {total}, {len(hazards.manifest)} manifest{more}; {_plural(hazards.pairs, 'unordered pair')}"
    return "\n\n".join([*(text_of(hazard, clock) for hazard in hazards.found), last])


def text_of(hazard: Hazard, clock: bool = True) -> str:
    """One report."""
    first, second = hazard.first, hazard.second
    where = "one 64-byte line of region" if hazard.crosstalk else "region"
    what = f"{hazard.kind} hazard in {where} {hazard.region} [{hazard.start},{hazard.stop}), call {hazard.epoch}"
    lines = [f"steadysum: {what}: {'manifest' if hazard.manifest else 'possible'}"]
    signal = "signal" if first.action != "write" else "fence and signal"
    if hazard.kind == RAW:
        lines += [_access("", second, clock), _access(_meant(hazard, ""), first, clock, read_at=second.at)]
    elif hazard.kind == WAR:
        lines += [_access("", first, clock), _access(_meant(hazard, "later: "), second, clock, read_at=first.at)]
    else:
        lines += [_access(_meant(hazard, "first: "), first, clock), _access(_meant(hazard, "later: "), second, clock)]
    lines.append(_needed(first, second, signal))
    if hazard.count > 1:
        lines.append(f"  {hazard.count} pairs like it")
    return "\n".join(lines)


def hazards_document(hazards: Hazards) -> dict[str, Any]:
    """The reports as the schema above has them."""
    return {
        "schema": SCHEMA,
        "pairs": hazards.pairs,
        "left_out": hazards.left_out,
        "hazards": [
            {
                "kind": hazard.kind,
                "region": hazard.region,
                "start": hazard.start,
                "stop": hazard.stop,
                "epoch": hazard.epoch,
                "first": _side(hazard.first),
                "second": _side(hazard.second),
                "meant": hazard.meant,
                "crosstalk": hazard.crosstalk,
                "manifest": hazard.manifest,
                "count": hazard.count,
            }
            for hazard in hazards.found
        ],
    }


def marks(hazards: Hazards) -> tuple[Highlight, ...]:
    """Arrows for the hazards that a run has gone wrong at: from the write to the access that missed it or met it.

    They name events by number, so they fit a timeline of this one run's events.
    """
    found = []
    for hazard in hazards.manifest:
        first, second, what = hazard.first, hazard.second, f"{hazard.region} [{hazard.start},{hazard.stop})"
        if hazard.kind == RAW:
            late = first.memory_event is None or first.memory_event > second.event
            when = "before it was written" if late else "after something else had replaced it"
            text = f"{second.unit} read {what} of {first.unit} {when}"
            found.append(Highlight(second.event, _reached(first), text))
        elif hazard.kind == WAR:
            text = f"{second.unit} overwrote {what} before {first.unit} had read it"
            found.append(Highlight(first.event, _reached(second), text))
        else:
            text = f"{first.unit} and {second.unit} undid each other's words in {what}"
            found.append(Highlight(_reached(second), _reached(first), text))
    return tuple(found)


def _reached(side: Side) -> int:
    return side.event if side.memory_event is None else side.memory_event


def _side(side: Side) -> dict[str, Any]:
    return {
        "core": side.unit.core,
        "role": side.unit.role,
        "phase": side.phase,
        "action": side.action,
        "place": list(side.place),
        "at": side.at,
        "in_memory": side.in_memory,
        "event": side.event,
        "memory_event": side.memory_event,
    }


def _meant(hazard: Hazard, when: str) -> str:
    return f"meant {when}" if hazard.meant else ""


def _access(meant: str, side: Side, clock: bool, read_at: float | None = None) -> str:
    line = f"  {meant}{side.action} by {side.unit} in {side.phase} at {_time(side.at, clock)}"
    if side.action == "write":
        if side.in_memory is None:
            return line + ", never in memory"
        line += f", in memory at {_time(side.in_memory, clock)}"
    if read_at is not None and side.in_memory is not None:
        distance = side.in_memory - read_at
        line += f" ({_interval(abs(distance), clock)} {'after' if distance >= 0 else 'before'} the read)"
    return line


def _needed(first: Side, second: Side, what: str) -> str:
    if first.unit == second.unit:
        return "  no fence orders them: an atomic add doesn't see the unit's own store buffer"
    return f"  no {what} of {first.unit}, awaited by {second.unit}, orders them"


def _time(time: float, clock: bool) -> str:
    return f"{time:.1f} us" if clock else f"choice {time:.0f}"


def _interval(time: float, clock: bool) -> str:
    if not clock:
        return _plural(round(time), "choice")
    if time >= 1000:
        return f"{time / 1000:.1f} ms"
    return f"{time:.1f} us" if time >= 10 else f"{time:.2f} us"


def _plural(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
