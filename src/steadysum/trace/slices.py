"""Events as slices of tracks: what a viewer of traces needs, in whole nanoseconds.

Slices of one track never overlap in part. A unit's own actions are one track; what reaches memory meanwhile is another,
since a drain happens while its unit does something else.

Not here: the file format (chrome.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from steadysum.trace.events import Event, Unit

__all__ = ["VISIBLE", "Slice", "Track", "tracks_of"]

VISIBLE: Final = 20  # nanoseconds that an event of no length is drawn with, where there is room


class Slice(NamedTuple):
    """An event's place on its track; nanoseconds."""

    event: Event
    begin: int
    end: int


class Track(NamedTuple):
    """What is drawn in one line."""

    unit: Unit
    kind: str  # "": the unit's actions; "memory": its words' drains; "also": actions that overlap others in part
    slices: tuple[Slice, ...]  # ascending; each ends before the next begins


def tracks_of(events: Iterable[Event]) -> list[Track]:
    """Tracks by core, then unit in the order in which they first acted, then kind."""
    by_unit: defaultdict[Unit, tuple[list[Event], list[Event]]] = defaultdict(lambda: ([], []))
    for event in events:
        by_unit[event.unit][event.action == "drain"].append(event)
    tracks: list[Track] = []
    for unit in sorted(by_unit, key=lambda unit: unit.core):
        actions, drains = by_unit[unit]
        for lane, lane_events in enumerate(_lanes(actions)):
            tracks.append(Track(unit, "also" if lane else "", _visible(lane_events)))
        for lane_events in _lanes(drains):
            tracks.append(Track(unit, "memory", _visible(lane_events)))
    return tracks


def _lanes(events: Sequence[Event]) -> list[list[Slice]]:
    """Slices in as few lines as they need, so that none overlap; events in their order where they touch."""
    lanes: list[list[Slice]] = []
    for event in sorted(events, key=lambda event: (event.begin, event.end, event.epoch, event.number)):
        piece = Slice(event, round(event.begin * 1000), round(event.end * 1000))
        for lane in lanes:
            if lane[-1].end <= piece.begin:
                lane.append(piece)
                break
        else:
            lanes.append([piece])
    return lanes


def _visible(lane: Sequence[Slice]) -> tuple[Slice, ...]:
    """Slices of no length get one, as far as the next slice lets them; several at one moment share the room."""
    slices: list[Slice] = []
    index = 0
    while index < len(lane):
        same = index  # one past the last slice of no length at this moment
        while same < len(lane) and lane[same].begin == lane[same].end == lane[index].begin:
            same += 1
        if same == index:
            slices.append(lane[index])
            index += 1
            continue
        count, begin = same - index, lane[index].begin
        room = VISIBLE * count if same == len(lane) else min(VISIBLE * count, lane[same].begin - begin)
        for place, piece in enumerate(lane[index:same]):
            slices.append(piece._replace(begin=begin + room * place // count, end=begin + room * (place + 1) // count))
        index = same
    return tuple(slices)
