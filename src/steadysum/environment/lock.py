"""The lock of an environment: its record in a file, and what differs from it on another day or another machine.

Schema `steadysum.lock/1`: {schema, created (ISO 8601, UTC), host, environment}; environment is a record, as record.py
has it. host and created are for the reader, and aren't compared. Nor is what bears neither on bits nor on faults: the
number of CPUs, where a component was found, which libraries are loaded.

An error is a difference in what computes: device, driver, firmware, toolkit, framework, and libraries of operators. The
rest is told: the interpreter, NumPy, the processor, threads, switches.
Not here: the record itself (record.py), and what is known of a version (rules.py).
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from steadysum.environment.record import SCHEMA as RECORD_SCHEMA
from steadysum.errors import LockError

__all__ = ["SCHEMA", "Difference", "differences", "read_lock", "save_lock"]

SCHEMA: Final = "steadysum.lock/1"

# Components whose difference is told, and is no error.
_TOLD: Final = frozenset({"python", "numpy"})
# Keys of the record that are compared beside its components: a name for the reader, and what a difference means.
_MACHINE: Final = {
    "architecture": ("architecture", "torch's product on the CPU may have other bits"),
    "processor": ("processor", "torch's product on the CPU may have other bits"),
    "torch_capability": ("torch's instructions", "torch's operations on the CPU may have other bits"),
    "release": ("system's kernel", "the device's driver is loaded into it"),
}
_THREADS: Final = {"torch": ("torch's threads", "torch may add in another order; steadysum's native kernel doesn't")}
_SWITCH: Final = "results may have other bits, or vary"
_ALLOWED: Final = "a file that `steadysum doctor --save` wrote"


class Difference(NamedTuple):
    """Something that isn't as it was locked."""

    name: str
    locked: str | None  # None: it wasn't there, or not known
    here: str | None
    is_error: bool
    note: str


def save_lock(record: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write the lock of an environment, in one step: a reader sees the old file or the new one.

    Args:
        record: of `environment_record_by_tools`, or of `environment_record`.
        path: the file; one that is there is replaced.

    Raises:
        OSError: its folder isn't there, or can't be written to.
    """
    document = {
        "schema": SCHEMA,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": platform.node(),
        "environment": dict(record),
    }
    target = Path(path)
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    except OSError as error:  # it names the temporary file, which the user has never heard of
        raise OSError(error.errno, error.strerror, str(target)) from error
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=2)
            file.write("\n")
        os.chmod(temporary, 0o644)  # mkstemp's own 0600 would hide it from other users
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read_lock(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The record that was locked.

    Raises:
        LockError: the file can't be read, or isn't a lock.
    """
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise _unusable(path, error.strerror or str(error), "Check the path.") from None
    except (ValueError, RecursionError) as error:  # not JSON, or not UTF-8; json's own text has the line
        raise _unusable(path, str(error), "Save it again on the machine that it locks.") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        seen = repr(document.get("schema")) if isinstance(document, dict) else type(document).__name__
        raise _unusable(path, f"the schema {seen}", f"This version of steadysum reads {SCHEMA}.")
    record = document.get("environment")
    if not isinstance(record, dict) or record.get("schema") != RECORD_SCHEMA:
        raise _unusable(path, "no environment of its schema", f"This version of steadysum reads {RECORD_SCHEMA}.")
    for section in ("components", "machine", "threads", "switches"):
        if not isinstance(record.get(section), dict):
            raise _unusable(path, f"no {section} in its environment", "Save it again on the machine that it locks.")
    for name, component in record["components"].items():
        if not (
            isinstance(component, dict) and "version" in component and isinstance(component["version"], str | None)
        ):
            raise _unusable(
                path, f"component {name!r} without a version", "Save it again on the machine that it locks."
            )
    return record


def differences(locked: Mapping[str, Any], here: Mapping[str, Any]) -> tuple[Difference, ...]:
    """What isn't as it was locked.

    Args:
        locked: of `read_lock`.
        here: of `environment_record_by_tools`, if the lock is of that.

    Returns:
        Errors first. What the lock doesn't have, since an older steadysum wrote it, isn't compared.

    Source: the field report, R21: driver, firmware and framework are locked together.

    >>> from steadysum.environment.record import environment_record
    >>> differences(environment_record(), environment_record())
    ()
    """
    found = [
        *_components(locked["components"], here["components"]),
        *_told(locked["machine"], here["machine"], _MACHINE),
        *_told(locked["threads"], here["threads"], _THREADS),
        *_told(locked["switches"], here["switches"], {name: (name, _SWITCH) for name in here["switches"]}),
    ]
    return tuple(sorted(found, key=lambda difference: not difference.is_error))


def _components(locked: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[Difference]:
    for name, component in locked.items():
        before = component["version"]
        if name not in here:
            yield Difference(name, before, None, False, "this version of steadysum doesn't look for it")
        elif before != here[name]["version"]:
            now, where = here[name]["version"], here[name]["where"]
            note = where if now is not None else f"not here: {where}"
            yield Difference(name, before, now, name not in _TOLD, note)


def _told(
    locked: Mapping[str, Any], here: Mapping[str, Any], compared: Mapping[str, tuple[str, str]]
) -> Iterator[Difference]:
    for key, (name, note) in compared.items():
        if key in locked and locked[key] != here[key]:
            yield Difference(name, _text(locked[key]), _text(here[key]), False, note)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _unusable(path: str | os.PathLike[str], seen: str, remedy: str) -> LockError:
    return LockError(f"lock {path}", seen, _ALLOWED, remedy)
