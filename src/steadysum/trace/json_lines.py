"""Traces as files of JSON lines: a header, then one event a line.

Header: {"schema": "steadysum.trace/1", "events": number of lines that follow, "dropped": events that there was no room
for, "what": what was run}. An event has the fields of events.Event by their names; those with their default may be
missing. An addition keeps the schema's number; a changed or removed key raises it.

Not here: where traces live (files.py), the export for other programs (chrome.py).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn

from steadysum.errors import RangeError, TraceFileError, TraceNotFoundError
from steadysum.trace.events import ACTIONS, OUTCOMES, Event, Unit
from steadysum.trace.files import new_trace_path, newest_trace, tidy, write_whole
from steadysum.trace.recorder import Trace

__all__ = ["SCHEMA", "load_trace", "newest_trace", "save_trace", "to_json_lines"]

SCHEMA: Final = "steadysum.trace/1"
_NAME: Final = SCHEMA.partition("/")[0]
_OPTIONAL: Final = Event._field_defaults


def save_trace(trace: Trace, path: Path | str | None = None) -> Path:
    """Writes a trace, whole or not at all; gives back where.

    Args:
        trace: its `what` must be plain JSON values.
        path: None: a new file where recorded traces live, of which the newest 20 are kept.

    Raises:
        RangeError: the trace holds what JSON can't.
        OSError: the folder can't be written to.
    """
    text = to_json_lines(trace)
    if path is not None:
        write_whole(Path(path), text)
        return Path(path)
    recorded = new_trace_path()
    recorded.parent.mkdir(parents=True, exist_ok=True)
    write_whole(recorded, text)
    tidy()
    return recorded


def load_trace(path: Path | str) -> Trace:
    """Reads a trace.

    Raises:
        TraceNotFoundError: there is no such file.
        TraceFileError: the file isn't a trace, or isn't whole: which line, and why.
    """
    file = Path(path)
    try:
        lines = file.read_bytes().split(b"\n")
    except FileNotFoundError:
        raise TraceNotFoundError(
            "trace", f"no file {file}", "a file that a trace was saved to", "Check the path, or leave FILE out."
        ) from None
    except IsADirectoryError:
        raise TraceFileError("trace", f"{file}, a folder", "a file", "Name a file in it.") from None
    header = _header(file, lines[0])
    body, rest = lines[1:-1], lines[-1]
    if rest or len(body) != header["events"]:
        _refuse(
            file,
            len(lines) if rest else len(lines) - 1,
            f"{len(body)} whole events, then the end of the file" + (" within a line" if rest else ""),
            f"{header['events']} events, as line 1 says",
            "The file was cut off, or added to: record the trace again.",
        )
    events = tuple(_event(file, number, line) for number, line in enumerate(body, start=2))
    return Trace(events, header["what"], header["dropped"])


def to_json_lines(trace: Trace) -> str:
    """The text of the file.

    Raises:
        RangeError: the trace holds what JSON can't.
    """
    header = {"schema": SCHEMA, "events": len(trace.events), "dropped": trace.dropped, "what": trace.what}
    try:
        return "".join(f"{_dump(line)}\n" for line in (header, *map(_fields, trace.events)))
    except (TypeError, ValueError) as error:
        raise RangeError(
            "trace", str(error), "JSON values, finite numbers", "Describe the run with texts and numbers."
        ) from error


_dump: Final[Callable[[Any], str]] = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def _fields(event: Event) -> dict[str, Any]:
    return {
        name: value
        for name, value in zip(Event._fields, event, strict=True)
        if name not in _OPTIONAL or value != _OPTIONAL[name]
    }


# ---- reading: every line is taken as a stranger's ------------------------------------------------------------------


def _refuse(file: Path, line: int, seen: str, allowed: str, remedy: str) -> NoReturn:
    raise TraceFileError(f"{file}, line {line}", seen, allowed, remedy)


def _object(file: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        found = f"no JSON ({error})"
    if not isinstance(found, dict):
        _refuse(
            file,
            number,
            found if isinstance(found, str) and found.startswith("no JSON") else f"a JSON {type(found).__name__}",
            "a JSON object",
            "Name a file that `steadysum trace export --format jsonl` or a recorded run wrote.",
        )
    return found


def _header(file: Path, line: bytes) -> dict[str, Any]:
    header = _object(file, 1, line)
    schema = header.get("schema")
    if schema != SCHEMA:
        known = isinstance(schema, str) and schema.startswith(f"{_NAME}/")
        _refuse(
            file,
            1,
            f"schema {schema!r}",
            repr(SCHEMA),
            "Use the version of steadysum that wrote it." if known else "This isn't a trace of steadysum.",
        )
    for name, kind in (("events", int), ("dropped", int), ("what", dict)):
        if type(header.get(name)) is not kind:
            seen, allowed = f"{name}: {header.get(name)!r}", f"a JSON {kind.__name__}"
            _refuse(file, 1, seen, allowed, "The header is damaged: record the trace again.")
    return header


def _event(file: Path, number: int, line: bytes) -> Event:
    fields = _object(file, number, line)
    try:
        return _checked(fields)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        reason = f"no field {error}" if isinstance(error, KeyError) else str(error)
        _refuse(file, number, reason, f"an event of {SCHEMA}", "The line is damaged: record the trace again.")


def _checked(fields: dict[str, Any]) -> Event:
    unknown = fields.keys() - set(Event._fields)
    if unknown:
        raise ValueError(f"unknown field {sorted(unknown)[0]!r}")
    core, role = fields["unit"]
    begin, end = _time(fields["begin"]), _time(fields["end"])
    if end < begin:
        raise ValueError(f"end {end} before begin {begin}")
    epoch, index, step = map(_whole, fields["place"])
    return Event(
        _whole(fields["number"]),
        _whole(fields["epoch"]),
        Unit(_whole(core), _text(role)),
        _text(fields["phase"]),
        _one_of(fields["action"], ACTIONS),
        begin,
        end,
        _one_of(fields["outcome"], OUTCOMES),
        (epoch, index, step),
        _text(fields.get("detail", "")),
        tuple((_text(region), _whole(start), _whole(stop)) for region, start, stop in fields.get("spans", ())),
        tuple((_text(name), _whole(owner), _text(part)) for name, owner, part in fields.get("flags", ())),
        _whole(fields.get("value", 0)),
        tuple(map(_whole, fields.get("writes", ()))),
    )


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} where a whole number belongs")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"{value!r} where a text belongs")
    return value


def _time(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise TypeError(f"{value!r} where a time belongs")
    return float(value)


def _one_of(value: Any, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ValueError(f"{value!r}, none of {', '.join(allowed)}")
    return str(value)
