"""A checker of the trace event format, written from its document: what is wrong with a JSON trace.

Source: "Trace Event Format", the Chromium project: phases, their required fields, and how flows bind to slices.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

REQUIRED = {
    "X": ("name", "cat", "ts", "dur", "pid", "tid"),
    "B": ("name", "ts", "pid", "tid"),
    "E": ("ts", "pid", "tid"),
    "i": ("name", "ts", "pid", "tid", "s"),
    "s": ("name", "cat", "id", "ts", "pid", "tid"),
    "t": ("name", "cat", "id", "ts", "pid", "tid"),
    "f": ("name", "cat", "id", "ts", "pid", "tid"),
    "M": ("name", "pid", "args"),
    "C": ("name", "ts", "pid", "args"),
}
METADATA = {
    "process_name": ("name", str),
    "process_labels": ("labels", str),
    "process_sort_index": ("sort_index", int),
    "thread_name": ("name", str),
    "thread_sort_index": ("sort_index", int),
}
TYPES: dict[str, type | tuple[type, ...]] = {
    "name": str, "cat": str, "ts": (int, float), "dur": (int, float), "pid": int, "tid": int,
    "s": str, "id": (int, str), "args": dict, "cname": str,
}  # fmt: skip
Track = tuple[int, int]
Span = tuple[float, float]


def problems(document: Any) -> list[str]:
    """Everything that is wrong with a document; [] for a good one."""
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list):
        return ["no list of traceEvents"]
    found = [problem for place, event in enumerate(events) for problem in _of_event(place, event)]
    if found:
        return found  # what follows trusts the fields
    slices, found = _slices(events)
    return found + _overlaps(slices) + _flows(events, slices) + _names(events)


def _of_event(place: int, event: Any) -> list[str]:
    if not isinstance(event, dict):
        return [f"event {place}: not an object"]
    phase = event.get("ph")
    if phase not in REQUIRED:
        return [f"event {place}: no known phase: {phase!r}"]
    found = [f"event {place} ({phase}): no {name}" for name in REQUIRED[phase] if name not in event]
    for name, kind in TYPES.items():
        if name in event and (not isinstance(event[name], kind) or isinstance(event[name], bool)):
            found.append(f"event {place} ({phase}): {name} is {event[name]!r}")
    for name in ("ts", "dur"):
        value = event.get(name, 0)
        if isinstance(value, int | float) and not (math.isfinite(value) and value >= 0):
            found.append(f"event {place} ({phase}): {name} is {value!r}")
    if phase == "i" and event.get("s") not in ("g", "p", "t"):
        found.append(f"event {place} (i): scope {event.get('s')!r}")
    if phase == "f" and event.get("bp", "e") != "e":
        found.append(f"event {place} (f): bp {event['bp']!r}")
    if phase == "M" and not found:
        name = event["name"]
        if name not in METADATA:
            found.append(f"event {place} (M): no known metadata: {name!r}")
        else:
            key, kind = METADATA[name]
            if not isinstance(event["args"].get(key), kind):
                found.append(f"event {place} (M): {name} needs args.{key}")
            if name.startswith("thread") and "tid" not in event:
                found.append(f"event {place} (M): {name} needs a tid")
    return found


def _slices(events: Sequence[Mapping[str, Any]]) -> tuple[dict[Track, list[Span]], list[str]]:
    slices: defaultdict[Track, list[Span]] = defaultdict(list)
    stacks: defaultdict[Track, list[float]] = defaultdict(list)
    found: list[str] = []
    timed = [event for event in events if event["ph"] in "XBE"]
    for event in sorted(timed, key=lambda event: event["ts"]):  # stable: B and E at one moment keep their order
        track = event["pid"], event["tid"]
        if event["ph"] == "X":
            slices[track].append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] == "B":
            stacks[track].append(event["ts"])
        elif not stacks[track]:
            found.append(f"{track}: E at {event['ts']} without a B")
        else:
            slices[track].append((stacks[track].pop(), event["ts"]))
    found += [f"{track}: B at {begin} without an E" for track, stack in stacks.items() for begin in stack]
    return slices, found


ROUNDING = 1e-4  # microseconds: sums of doubles; viewers work in nanoseconds


def _overlaps(slices: Mapping[Track, Sequence[Span]]) -> list[str]:
    found = []
    for track, spans in slices.items():
        open_until: list[float] = []
        for begin, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_until and open_until[-1] <= begin + ROUNDING:
                open_until.pop()
            if open_until and end > open_until[-1] + ROUNDING:
                found.append(f"{track}: slice [{begin}, {end}] overlaps one that ends at {open_until[-1]} in part")
            open_until.append(end)
    return found


def _flows(events: Sequence[Mapping[str, Any]], slices: Mapping[Track, Sequence[Span]]) -> list[str]:
    found = []
    flows: defaultdict[tuple[str, str, Any], list[Mapping[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] in "stf":
            flows[event["cat"], event["name"], event["id"]].append(event)
            track, moment = (event["pid"], event["tid"]), event["ts"]
            inside = any(begin <= moment < end or begin == moment == end for begin, end in slices.get(track, ()))
            if not inside:
                found.append(f"flow {event['id']} ({event['ph']}) at {moment} is in no slice of {track}")
    for (_, _, number), steps in flows.items():
        phases = [step["ph"] for step in steps]
        if phases.count("s") != 1 or phases.count("f") != 1:
            found.append(f"flow {number}: steps {phases}, not one s and one f")
            continue
        start, finish = steps[phases.index("s")]["ts"], steps[phases.index("f")]["ts"]
        if finish < start:
            found.append(f"flow {number}: finishes at {finish}, before it starts at {start}")
    return found


def _names(events: Sequence[Mapping[str, Any]]) -> list[str]:
    """Every process and thread that has anything has a name, and one only; a thread belongs to one process."""
    names: defaultdict[tuple[str, int, int], set[str]] = defaultdict(set)
    owners: defaultdict[int, set[int]] = defaultdict(set)
    for event in events:
        if event["ph"] == "M" and event["name"].endswith("_name"):
            tid = event["tid"] if event["name"] == "thread_name" else 0
            names[event["name"], event["pid"], tid].add(event["args"]["name"])
        elif event["ph"] != "M" and "tid" in event:
            owners[event["tid"]].add(event["pid"])
    found = [f"{key} has the names {sorted(values)}" for key, values in names.items() if len(values) > 1]
    for tid, pids in owners.items():
        if len(pids) > 1:
            found.append(f"thread {tid} is in processes {sorted(pids)}")
        for pid in pids:
            found += [f"process {pid} has no name"] * (("process_name", pid, 0) not in names)
            found += [f"thread {tid} has no name"] * (("thread_name", pid, tid) not in names)
    return found
