"""What is in a bundle: evidence of a call that failed a check, and how its files are written.

Schema `steadysum.bundle/1` of verdict.json. Additions keep the number; a changed or removed key raises it. Keys are
sorted, and nothing else depends on when or where it is written but `created`, `name` and `process`:

    schema, name, created (ISO 8601, UTC), process (its number), operator
    function      "package.module:name", or null: it can't be imported by name
    attribution   "transient", "persistent", "application", or what else the guard knows
    right         which of the outputs passed its checks, or null
    findings      [{check, passed, summary, rows, places, measured, allowed}]
    settings      the guard's, as given
    module        null, or {class: "package.module:name", training}
    parts         {inputs, outputs, module: {skeleton, tensors}}; skeleton as in bundle_reading.py, tensors as in
                  storages.py; a part that was left out isn't there
    as_after      names of inputs and buffers that are as the call has left them, not as it found them
    left_out      {what: why}; what is a part, or "outputs/NAME"

Numbers that JSON can't hold are the strings "inf", "-inf" and "nan".
Not here: reading (bundle.py), and the folder that bundles lie in (bundle_files.py).
"""

from __future__ import annotations

import errno
import importlib
import json
import math
import os
import platform
import shutil
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import nn

from steadysum.guard import bundle_files, bundle_reading
from steadysum.guard.bundle_reading import SCHEMA
from steadysum.guard.checks.protocol import Finding
from steadysum.guard.storages import lay_out, materialise
from steadysum.guard.tensors import flatten

__all__ = ["Evidence", "write_files"]

# Copied into each bundle: a package's module becomes a neighbour there.
_SCRIPTS: Final = {
    "reproduce.py": "reproduce_script.py",
    "bundle_reading.py": "bundle_reading.py",
    "bundle_exact.py": "bundle_exact.py",
}
_PACKAGE: Final = "from steadysum.guard."
_SMALL: Final = 1 << 20  # bytes beside the tensors that a bundle is allowed for when it is decided what fits
_SPARE: Final = (
    16 << 20
)  # bytes that stay free on the disk, so that a checkpoint's writer isn't the one who finds it full
_MOST_TEXT: Final = 10_000  # characters of the text of an object in the settings
_DEEPEST: Final = 3 * bundle_reading.DEEPEST + 20  # levels of JSON: a level of a skeleton takes up to three


class Evidence(NamedTuple):
    """What there is to save of a call that failed a check."""

    operator: str  # its name, as in metrics
    import_path: str | None  # "package.module:callable", from import_path_of
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outputs: Mapping[str, Any]  # by name: "deviating", "rerun", "fallback"; most important first
    findings: tuple[Finding, ...]
    attribution: str
    settings: Mapping[str, Any]
    module: nn.Module | None = None  # the one that was called; its state is saved
    state: Callable[[], Mapping[str, Any]] | None = None  # the module's; None: state_dict() as it is now
    as_after: tuple[str, ...] = ()  # what of the inputs and buffers the call has changed, where there is no copy
    right: str | None = None  # which output passed; None: the last rerun if transient, the fallback if persistent


def write_files(folder: Path, name: str, evidence: Evidence, most_bytes: int) -> int:
    """Writes a bundle's files, each of them on disk when this returns.

    Args:
        folder: empty.
        name: the bundle's.
        evidence: what to write.
        most_bytes: of the bundle. What doesn't fit is left out, and the verdict says so: inputs come first, then
            outputs in their order, then the module's state.

    Returns:
        Bytes of all files.

    Raises:
        OSError: the disk is full, or can't be written to.
    """
    verdict = _verdict_of(name, evidence)
    room = most_bytes - _SMALL
    room -= _write_part(folder, "inputs", lambda: {"args": evidence.args, "kwargs": evidence.kwargs}, room, verdict)
    fitting = _fitting(evidence.outputs, room, verdict)
    room -= _write_part(folder, "outputs", lambda: fitting, room, verdict)
    module = evidence.module
    if module is not None:
        _write_part(folder, "module", evidence.state or (lambda: dict(module.state_dict())), room, verdict)
    _write_file(folder / bundle_reading.ENVIRONMENT, _json_of(_environment()))
    for copied, text in _programs().items():
        _write_file(folder / copied, text)
    _write_file(folder / bundle_reading.VERDICT, _json_of(verdict))
    bundle_files.sync(folder)
    return sum(path.stat().st_size for path in folder.iterdir())


def _fitting(outputs: Mapping[str, Any], room: int, verdict: dict[str, Any]) -> dict[str, Any]:
    """The outputs that there is room for, in their order."""
    fitting: dict[str, Any] = {}
    for name, value in outputs.items():
        try:
            needed = sum(stretch.nbytes for stretch in lay_out(flatten(value).tensors)[0].values())
        except Exception as error:  # one output that can't be taken apart doesn't take the others with it
            verdict["left_out"][f"outputs/{name}"] = f"{type(error).__name__}: {error}"
            continue
        if needed > room:
            verdict["left_out"][f"outputs/{name}"] = _too_large(needed, room)
            continue
        fitting[name] = value
        room -= needed
    return fitting


def _verdict_of(name: str, evidence: Evidence) -> dict[str, Any]:
    """All but the parts."""
    path, left_out = evidence.import_path, {}
    if path is not None and not bundle_reading.is_import_path(path):
        left_out["function"] = "its name is no path of identifiers"
        path = None
    module = evidence.module
    return {
        "schema": SCHEMA,
        "name": name,
        "created": datetime.now(UTC).isoformat(timespec="microseconds"),
        "process": os.getpid(),
        "operator": evidence.operator,
        "function": path,
        "attribution": evidence.attribution,
        "right": _right_of(evidence),
        "findings": [finding._asdict() for finding in evidence.findings],
        "settings": evidence.settings,
        "module": None
        if module is None
        else {"class": f"{type(module).__module__}:{type(module).__qualname__}", "training": module.training},
        "as_after": list(evidence.as_after),
        "parts": {},
        "left_out": left_out,
    }


def _right_of(evidence: Evidence) -> str | None:
    prefix = {"transient": "rerun", "persistent": "fallback"}.get(evidence.attribution)
    if evidence.right is not None or prefix is None:
        return evidence.right
    return next((name for name in reversed(list(evidence.outputs)) if name.startswith(prefix)), None)


def _write_part(folder: Path, name: str, make: Callable[[], Any], room: int, verdict: dict[str, Any]) -> int:
    """A part's file; its bytes, or 0 where it was left out, and why."""
    from safetensors.torch import save_file  # here: importing the guard stays cheap

    try:
        flat = flatten(make())
        stretches, layouts = lay_out(flat.tensors)
        needed = sum(stretch.nbytes for stretch in stretches.values())
        if needed > room:
            verdict["left_out"][name] = _too_large(needed, room)
            return 0
        stored = {key: materialise(stretch) for key, stretch in stretches.items()}
    except Exception as error:  # a device that answers no more, or values that can't be taken apart: the rest is saved
        verdict["left_out"][name] = f"{type(error).__name__}: {error}"
        return 0
    free = shutil.disk_usage(folder).free
    if free < needed + _SPARE:
        raise OSError(errno.ENOSPC, f"{needed} bytes would leave less than {_SPARE} of {free} free", str(folder))
    path = folder / f"{name}.safetensors"
    save_file(stored, path)
    path.chmod(folder.stat().st_mode & 0o666)  # save_file's own 0600 would hide it from other users
    bundle_files.sync(path)
    verdict["parts"][name] = {"skeleton": flat.skeleton, "tensors": layouts}
    return needed


def _too_large(needed: int, room: int) -> str:
    return f"{needed} bytes, of which {max(room, 0)} are left for it; a bundle takes at most half of most_bytes"


def _write_file(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _json_of(document: Mapping[str, Any]) -> str:
    return json.dumps(_plain(document, 0), indent=1, sort_keys=True, allow_nan=False) + "\n"


def _plain(value: Any, depth: int) -> Any:
    """What JSON can hold of a value."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if value.bit_length() < 4096 else hex(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, Mapping) and depth <= _DEEPEST:
        return {str(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (tuple, list, set, frozenset)) and depth <= _DEEPEST:
        items = sorted(value, key=str) if isinstance(value, (set, frozenset)) else value
        return [_plain(item, depth + 1) for item in items]
    try:
        return str(value) if isinstance(value, str) else str(value)[:_MOST_TEXT]
    except Exception as error:  # a setting of the user's own, whose text can't be had
        return f"{type(value).__qualname__} ({type(error).__name__})"


@lru_cache(maxsize=1)
def _programs() -> dict[str, str]:
    """reproduce.py, and what it needs beside it."""
    package = files("steadysum.guard")
    texts = {name: package.joinpath(source).read_text(encoding="utf-8") for name, source in _SCRIPTS.items()}
    return {name: text.replace(f"\n{_PACKAGE}", "\nfrom ") for name, text in texts.items()}


@lru_cache(maxsize=1)  # looked at once: vendors' tools may take seconds
def _environment() -> dict[str, Any]:
    """The record of this environment, or the least of it."""
    try:
        record: dict[str, Any] = importlib.import_module("steadysum.environment.record").environment_record()
    except Exception as error:  # evidence without its environment is better than none
        record = {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "machine": platform.machine(),
            "system": platform.platform(),
            "torch_threads": torch.get_num_threads(),
            "note": f"no full record: {type(error).__name__}: {error}",
        }
    return record
