"""An emulation's calls as a file, line by line: the plan, and for each call the schedules that replay it.

Schema `steadysum.emulation-calls/1`, JSON lines. An addition keeps the number; a changed or removed key raises it.

    line 1     schema, created (ISO 8601, UTC), versions (of what the bits depend on), plan (plan.values_of)
    then       call        number, from 1
               schedules   one for each launch, as text (steadysum.sync.schedule)
               outputs     128-bit digest of max and sum_exp, hexadecimal; null where the call raised
               error       null, or {type, cores}
               events      digest of what happened, without times: a replay, which has no clock, has the same
               timed       digest of what happened, with times: a run from the same seed has the same

Two runs of one plan write the same lines but for `created`. Each line is whole in the file before the next call begins,
so that a killed run leaves what it has made. Not here: what is done with a file (replay.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, NamedTuple, NoReturn, Self

from steadysum.cores.device import Call
from steadysum.diagnosis.digest import digest
from steadysum.diagnosis.document import created
from steadysum.diagnosis.emulation.plan import EmulationPlan, plan_of, values_of
from steadysum.diagnosis.environment import versions
from steadysum.errors import ScheduleError, SteadySumError
from steadysum.maxsum import MaxSum
from steadysum.sync.fingerprint import fingerprint

__all__ = ["SCHEMA", "CallLine", "CallWriter", "SavedCalls", "line_of"]

SCHEMA: Final = "steadysum.emulation-calls/1"
_NAME: Final = SCHEMA.partition("/")[0]
# torch's product gives the bits: these must be the same for a replay to be.
_DECIDING: Final = ("steadysum", "torch", "numpy", "machine")


class CallLine(NamedTuple):
    """One call, as the file has it."""

    call: int
    schedules: tuple[str, ...]
    outputs: str | None
    error: tuple[str, tuple[int, ...]] | None  # (type, cores)
    events: str
    timed: str


def line_of(call: Call, outputs: MaxSum | SteadySumError) -> CallLine:
    """What the file keeps of a call."""
    error = None
    if isinstance(outputs, SteadySumError):
        error = type(outputs).__name__, tuple(getattr(outputs, "cores", ()))
    return CallLine(
        call.number,
        tuple(str(run.schedule) for run in call.runs),
        None if isinstance(outputs, SteadySumError) else f"{digest(outputs):032x}",
        error,
        *fingerprint(call.runs),
    )


class CallWriter:
    """Writes the file, call by call.

    Raises:
        OSError: the path can't be written to; before any call is made.
    """

    def __init__(self, path: Path, plan: EmulationPlan) -> None:
        self._file: IO[str] = path.open("w", encoding="utf-8")
        found = versions()
        header = {
            "schema": SCHEMA,
            "created": created(),
            "versions": {name: found[name] for name in _DECIDING if name in found},
            "plan": values_of(plan),
        }
        self._write(header)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def made(self, call: Call, outputs: MaxSum | SteadySumError) -> None:
        """Adds a call's line."""
        line = line_of(call, outputs)._asdict()
        if line["error"] is not None:
            line["error"] = dict(zip(("type", "cores"), line["error"], strict=True))
        self._write(line)

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")
        self._file.flush()


class SavedCalls:
    """A file that CallWriter wrote; its calls are read one by one.

    Args:
        path: the file.

    Raises:
        OSError: there is no such file, or it can't be read.
        ScheduleError: it isn't such a file, or is of another schema.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.is_cut = False  # whether the file ends within a line; known once its calls have been read
        with path.open("rb") as file:
            header = self._header(file.readline())
        self.created = str(header.get("created"))
        self.versions: dict[str, Any] = header["versions"]
        try:
            self.plan = plan_of(header["plan"])
        except (KeyError, TypeError, ValueError, AttributeError, SteadySumError) as error:
            self._refuse(1, f"a plan that can't be used ({error})", "a plan as `steadysum emulate --save` writes it")

    def other_versions(self) -> dict[str, tuple[Any, Any]]:
        """What bits depend on, and isn't as it was: name -> (then, now)."""
        now = versions()
        return {name: (then, now.get(name)) for name, then in self.versions.items() if now.get(name) != then}

    def lines(self) -> Iterator[CallLine]:
        """The calls, in order; a last line that was cut off isn't one.

        Raises:
            ScheduleError: a damaged line, and which.
        """
        with self._path.open("rb") as file:
            file.readline()
            for number, raw in enumerate(file, start=2):
                if not raw.endswith(b"\n"):
                    self.is_cut = True
                    return
                yield self._line(number, raw)

    def _header(self, raw: bytes) -> dict[str, Any]:
        if not raw.endswith(b"\n"):
            self._refuse(1, "a line that was cut off", "the header, whole", _remedy(1))
        header = self._object(1, raw)
        schema = header.get("schema")
        if schema != SCHEMA:
            known = isinstance(schema, str) and schema.startswith(f"{_NAME}/")
            self._refuse(
                1,
                f"schema {schema!r}",
                repr(SCHEMA),
                "Use the version of steadysum that wrote it." if known else _remedy(1),
            )
        if not isinstance(header.get("versions"), dict) or not isinstance(header.get("plan"), dict):
            self._refuse(1, "no versions or no plan", "both, as JSON objects")
        return header

    def _line(self, number: int, raw: bytes) -> CallLine:
        found = self._object(number, raw)
        try:
            error = found["error"]
            line = CallLine(
                found["call"],
                tuple(found["schedules"]),
                found["outputs"],
                None if error is None else (str(error["type"]), tuple(error["cores"])),
                found["events"],
                found["timed"],
            )
        except (KeyError, TypeError) as wrong:
            self._refuse(number, f"a line without what a call has ({wrong})", "a call of this schema")
        if line.call != number - 1 or not all(isinstance(each, str) for each in line.schedules):
            self._refuse(number, f"call {line.call!r}", f"call {number - 1}, with schedules as text")
        if line.call > self.plan.calls:
            self._refuse(number, f"call {line.call}", f"the {self.plan.calls} calls of the plan")
        return line

    def refuse_schedule(self, line: CallLine, error: ScheduleError) -> NoReturn:
        """Refuses a call's line for a schedule that can't be read.

        Raises:
            ScheduleError: naming the file and the line.
        """
        self._refuse(line.call + 1, f"a {error.what}, {error.seen}", error.allowed)

    def _object(self, number: int, raw: bytes) -> dict[str, Any]:
        try:
            found = json.loads(raw.decode())
        except (ValueError, RecursionError) as error:
            self._refuse(number, f"no JSON ({error})", "a JSON object", _remedy(number))
        if not isinstance(found, dict):
            self._refuse(number, f"a JSON {type(found).__name__}", "a JSON object", _remedy(number))
        return found

    def _refuse(
        self, number: int, seen: str, allowed: str, remedy: str = "The line is damaged: save the calls again."
    ) -> NoReturn:
        raise ScheduleError(f"{self._path}, line {number}", seen, allowed, remedy)


def _remedy(number: int) -> str:
    """Of a line that nothing can be made of: a first line is another kind of file's."""
    return "Name a file that `steadysum emulate --save` wrote." if number == 1 else "Save the calls again."
