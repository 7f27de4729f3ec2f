"""Digests of what happened in some runs, so that two of them can be told apart without keeping either.

One without times, which a run shares with its replay, that has no clock; one with them. They cover who did what, in
which order, where in memory, with which flags, how it ended, and what faults did; not the values that were written:
those show in the outputs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, NamedTuple

from steadysum.errors import SteadySumError
from steadysum.sync.actions import Action, Add, Await, Barrier, Compute, Flag, Note, Read, Signal, Write
from steadysum.sync.machine import Happening
from steadysum.sync.memory import Entry
from steadysum.sync.virtual import Run

__all__ = ["Fingerprint", "fingerprint"]


class Fingerprint(NamedTuple):
    """128 bits each, as 32 hexadecimal digits."""

    events: str  # what happened
    timed: str  # what happened, and when


def fingerprint(runs: Iterable[Run]) -> Fingerprint:
    """The digests of runs that were logged, in order."""
    events, timed = (hashlib.blake2b(digest_size=16) for _ in Fingerprint._fields)
    for run in runs:
        flags: dict[int, str] = {}  # text of a tuple of flags, by its id: a barrier's members are one tuple for all
        lines = [repr([tuple(unit) for unit in run.units]), *(_line(happening, flags) for happening in run.log)]
        text = "\n".join(lines).encode()
        events.update(text)
        timed.update(text)
        timed.update(repr([(happening.begin, happening.end) for happening in run.log]).encode())
    return Fingerprint(events.hexdigest(), timed.hexdigest())


def _line(happening: Happening, flags: dict[int, str]) -> str:
    unit, action, _, _, outcome, what, detail = happening
    return f"{unit} {what} {outcome} {_detail(detail)} {_action(action, flags)}"


def _detail(detail: Any) -> str:
    if isinstance(detail, Entry):
        return f"{detail.number} {_spans((detail.span, detail.own))}"
    if isinstance(detail, SteadySumError):
        return f"{type(detail).__name__}: {detail}"
    if isinstance(detail, tuple) and not hasattr(detail, "_fields"):
        return " ".join(map(str, detail))  # numbers of words, or of signals
    if isinstance(detail, str):
        return detail
    return type(detail).__name__  # the action that a dead unit didn't do


def _action(action: Action | None, flags: dict[int, str]) -> str:
    if action is None:
        return ""
    epoch, index, step, _ = action.place
    return f"{type(action).__name__} {epoch}.{index}.{step} {_own(action, flags)}"


def _own(action: Action, flags: dict[int, str]) -> str:
    if isinstance(action, Compute):
        return action.label
    if isinstance(action, Read):
        return _spans(action.spans)
    if isinstance(action, Write):
        return _spans(word.span for word in action.words)
    if isinstance(action, Add):
        return _spans((action.word.span,))
    if isinstance(action, Signal):
        return f"{_flag(action.flag)} {action.value}"
    if isinstance(action, Await):
        return f"{_flags(action.flags, flags)} {action.value}"
    if isinstance(action, Barrier):
        return f"{_flag(action.own)} {_flags(action.members, flags)} {action.value}"
    if isinstance(action, Note):
        return f"{action.action} {action.outcome} {action.core} {action.detail}"
    return ""


def _spans(spans: Iterable[tuple[str, int, int]]) -> str:
    return ",".join([f"{region}[{start}:{stop}]" for region, start, stop in spans])


def _flag(flag: Flag) -> str:
    return f"{flag.name}/{flag.core}/{flag.role}"


def _flags(flags: tuple[Flag, ...], known: dict[int, str]) -> str:
    text = known.get(id(flags))
    if text is None:
        text = known[id(flags)] = ",".join(map(_flag, flags))
    return text
