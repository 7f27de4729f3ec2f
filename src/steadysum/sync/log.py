"""The log for people: what a machine's units did, as the events that trace/ keeps, measures and draws.

What an event can't say is made to fit its form: an arrival at a barrier is the begin of the barrier's event, which
stands where the wait ended; an error that ended a program is own work of no length, with the error as its detail.

Not here: what the events show (hazards.py, trace/).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from steadysum.errors import StaleRead, SyncTimeout
from steadysum.sync.actions import Action, Add, Await, Barrier, Compute, Fence, Flag, Note, Place, Read, Signal, Write
from steadysum.sync.machine import Happening
from steadysum.sync.memory import Entry, Span
from steadysum.sync.virtual import Run
from steadysum.trace.events import ACTIONS, Event

__all__ = ["events"]

_NOWHERE: Final = Place(0, 0, 0, "")  # of what happened to a unit that never did anything
_NAMES: Final[dict[type, str]] = {
    Compute: "compute",
    Write: "write",
    Read: "read",
    Add: "add",
    Fence: "fence",
    Signal: "signal",
    Await: "await",
    Barrier: "barrier",
}


def events(run: Run, epoch: int | None = None) -> tuple[Event, ...]:
    """The events of a run that was logged.

    Args:
        run: as a runner gives it back.
        epoch: the one call whose events are wanted, which are numbered among themselves; None: all that the run holds.
    """
    places = _places(run.log)
    kept = [index for index, place in enumerate(places) if epoch is None or place.epoch == epoch]
    kept = [index for index in kept if run.log[index].what != "arrive"]
    numbers = {index: number for number, index in enumerate(kept)}
    begins = _arrivals(run.log, numbers)
    refused = _refused(run.log)
    words = {entry.number: entry.own for entry in _entries(run.log)}
    return tuple(
        _event(number, run, index, places[index], numbers, begins, "stale" if index in refused else None, words)
        for number, index in enumerate(kept)
    )


def _event(
    number: int,
    run: Run,
    index: int,
    place: Place,
    numbers: dict[int, int],
    begins: dict[int, float],
    outcome: str | None,
    words: dict[int, Span],
) -> Event:
    happening = run.log[index]
    action = happening.action
    name, detail, spans, flags, value, writes = (
        _by_itself(happening) if action is None else _of_action(action, happening.detail, numbers, words)
    )
    return Event(
        number,
        place.epoch,
        run.units[happening.unit],
        place.phase,
        name,
        begins.get(index, happening.begin),
        happening.end,
        outcome or (action.outcome if isinstance(action, Note) else happening.outcome),
        (place.epoch, place.index, place.step),
        detail,
        spans,
        flags,
        value,
        writes,
    )


_Fields = tuple[str, str, tuple[Span, ...], tuple[Flag, ...], int, tuple[int, ...]]


def _by_itself(happening: Happening) -> _Fields:
    """What isn't an action of a program: (action, detail, spans, flags, value, writes)."""
    what, detail = happening.what, happening.detail
    if what == "drain":
        return "drain", "", (detail.span,), (), 0, (detail.number,)
    if what == "dead":
        return "fault", f"dead, before its {_NAMES.get(type(detail), 'note')}", (), (), 0, ()
    if what == "raised":
        return "compute", f"{type(detail).__name__}: {detail}", (), (), 0, ()
    return "fault", str(detail), (), (), 0, ()


def _of_action(action: Action, found: Any, numbers: dict[int, int], words: dict[int, Span]) -> _Fields:
    kind = type(action)
    if isinstance(action, Read):
        return "read", "", action.spans, (), 0, ()
    if isinstance(action, Write):
        # A fault may have cut words, or lost them: what entered the store buffer is what later drained.
        entered = tuple(found or ())
        spans = tuple(words[number] for number in entered) if entered else _written(action, found)
        return "write", "", spans, (), 0, entered
    if isinstance(action, Compute):
        return "compute", action.label, (), (), 0, ()
    if isinstance(action, Add):
        return "add", "", (action.word.span,), (), 0, ()
    if isinstance(action, Signal):
        return "signal", action.flag.name, (), (action.flag,), action.value, ()
    if isinstance(action, Await | Barrier):
        flags = action.flags if isinstance(action, Await) else action.members
        name = ", ".join(dict.fromkeys(flag.name for flag in flags)) if isinstance(action, Await) else action.own.name
        signals = tuple(numbers[index] for index in found or () if index in numbers)
        return _NAMES[kind], name, (), flags, action.value, signals
    if isinstance(action, Note):
        return action.action if action.action in ACTIONS else "compute", action.detail, (), (), 0, ()
    return "fence", "", (), (), 0, ()


def _written(action: Write, found: Any) -> tuple[Span, ...]:
    """The spans of a write that has no words in a store buffer: all lost, or, on real threads, in memory at once."""
    return tuple(word.span for word in action.words) if found is None else ()


def _places(log: Iterable[Happening]) -> list[Place]:
    """The place of each happening: a drain's is its word's, a fault's that of the action that it holds up."""
    places: list[Place] = []
    last: dict[int, Place] = {}
    held: dict[int, list[int]] = {}  # by unit, faults before its next action
    words: dict[int, Place] = {}
    for index, (unit, action, _, _, _, what, detail) in enumerate(log):
        place = last.get(unit, _NOWHERE)
        if action is not None:
            place = last[unit] = action.place
            for fault in held.pop(unit, ()):
                places[fault] = place
            if type(action) is Write:
                words.update(dict.fromkeys(detail or (), place))
        elif what == "drain":
            place = words.get(detail.number, place)
        elif what == "dead":
            place = detail.place
        elif what == "fault":
            held.setdefault(unit, []).append(index)
        places.append(place)
    return places


def _arrivals(log: Iterable[Happening], numbers: dict[int, int]) -> dict[int, float]:
    """When the barriers of a log were reached, by index of their ends; arrivals get the numbers of those ends."""
    begins: dict[int, float] = {}
    open_at: dict[int, tuple[int, float]] = {}  # by unit: the arrival's index and time
    for index, happening in enumerate(log):
        if happening.what == "arrive":
            open_at[happening.unit] = index, happening.begin
        elif type(happening.action) is Barrier and happening.unit in open_at:
            arrival, begins[index] = open_at.pop(happening.unit)
            if index in numbers:
                numbers[arrival] = numbers[index]
    return begins


def _refused(log: Iterable[Happening]) -> set[int]:
    """Reads whose record was refused by its stamp: a policy tries again after them, or gives up."""
    refused: set[int] = set()
    last: dict[int, int] = {}  # by unit, its last action, if that was a read
    for index, (unit, action, _, _, _, what, detail) in enumerate(log):
        gives_up = what == "raised" and isinstance(detail, StaleRead | SyncTimeout)
        if unit in last and (gives_up or (type(action) is Note and action.outcome == "stale")):
            refused.add(last[unit])
        if type(action) is Read:
            last[unit] = index
        elif action is not None:
            last.pop(unit, None)
    return refused


def _entries(log: Iterable[Happening]) -> Iterable[Entry]:
    return (happening.detail for happening in log if happening.what == "drain")
