"""Reads the files of a bundle: JSON and safetensors, every size checked; executes and imports nothing from them.

A copy of this file lies in every bundle, beside reproduce.py, which needs it: it must run without steadysum, on torch
and safetensors alone. steadysum itself reads bundles with it, too (bundle.py).

    nodes of a skeleton, by "kind"
    tensor      path                 dict        items: [[key, node], ...]
    tuple       items, type          value       value: null, bool, int or str
    list        items, type          float       value: a number, or "inf", "-inf", "nan"
    complex     value: [re, im]      slice       value: [start, stop, step]
    dtype       value                ellipsis
    device      value                unsaved     type, reason
"""

from __future__ import annotations

import json
import keyword
import math
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

SCHEMA = "steadysum.bundle/1"
VERDICT, ENVIRONMENT = "verdict.json", "environment.json"
PARTS = ("inputs", "outputs", "module")
DEEPEST = 64  # levels of a skeleton
SKELETON_KEY = re.compile(r"[A-Za-z0-9_.-]{1,200}")
DTYPES = {
    name: getattr(torch, name)
    for name in (
        *("float64", "float32", "float16", "bfloat16", "complex128", "complex64", "complex32", "bool"),
        *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"),
        *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
    )
    if hasattr(torch, name)
}
ACCELERATORS = ("cuda", "npu", "xpu", "mps")
_MOST_JSON = 64 << 20  # bytes of a JSON file; what steadysum writes is below 20 MB
_MOST_VIEWED = 1 << 40  # bytes that a view may claim to have: an expanded tensor has more than are stored


class RefusedError(ValueError):
    """Something in a bundle that isn't as it has to be: what it is, what was seen, what is allowed, what to do."""

    def __init__(self, what: str, seen: str, allowed: str, remedy: str = "The bundle is damaged.") -> None:
        super().__init__(what, seen, allowed, remedy)

    def __str__(self) -> str:
        return "{}: got {}; allowed: {}. {}".format(*self.args)


class Unsaved(NamedTuple):
    """In place of a value that couldn't be saved."""

    type: str
    reason: str


class Part(NamedTuple):
    """One safetensors file, and what its tensors belong to."""

    skeleton: Any
    layouts: Mapping[str, Mapping[str, Any]]  # by path
    stored: Mapping[str, Tensor]  # by name in the file


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """One of the bundle's JSON files."""
    path = _regular(folder, name)
    if path.stat().st_size > _MOST_JSON:
        raise RefusedError(str(path), f"{path.stat().st_size} bytes", f"at most {_MOST_JSON}")
    try:
        found = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RefusedError(str(path), f"no JSON ({error})", "a JSON object") from None
    if not isinstance(found, dict):
        raise RefusedError(str(path), f"a JSON {type(found).__name__}", "a JSON object")
    return found


def read_verdict(folder: Path) -> dict[str, Any]:
    """What was found, of a schema that is known."""
    verdict = read_json(folder, VERDICT)
    if verdict.get("schema") != SCHEMA:
        seen = f"schema {str(verdict.get('schema'))[:100]!r}"
        remedy = "Read it with the version of steadysum that wrote it: environment.json says which."
        raise RefusedError(str(folder / VERDICT), seen, repr(SCHEMA), remedy)
    if not isinstance(verdict.get("parts"), dict) or not isinstance(verdict.get("left_out"), dict):
        raise RefusedError(str(folder / VERDICT), "no parts or no left_out", "both, as JSON objects")
    return verdict


def read_part(folder: Path, verdict: Mapping[str, Any], name: str) -> Part | None:
    """A part with its tensors, every layout checked; None if it was left out."""
    described = verdict["parts"].get(name)
    if described is None:
        return None
    path = _regular(folder, f"{name}.safetensors")
    layouts = described.get("tensors") if isinstance(described, dict) else None
    if not isinstance(layouts, dict) or not all(isinstance(layout, dict) for layout in layouts.values()):
        raise RefusedError(f"part {name} in {folder / VERDICT}", "no skeleton and tensors", "both")
    try:
        with safe_open(path, framework="pt") as file:
            stored = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - no mapping
    except (SafetensorError, OSError, RuntimeError) as error:
        raise RefusedError(str(path), f"a file that can't be read ({error})", "a safetensors file, whole") from None
    for key, layout in layouts.items():
        if "unsaved" not in layout:
            _check_layout(f"tensor {key!r} in {path}", layout, stored)
    return Part(described.get("skeleton"), layouts, stored)


def build(part: Part, accelerator: str = "cpu") -> Any:
    """The part's value, in memory of its own: views that shared memory share it again.

    Args:
        part: as read.
        accelerator: device type for what wasn't on the CPU.
    """
    memory: dict[tuple[str, str], Tensor] = {}
    tensors: dict[str, Any] = {}
    for path, layout in part.layouts.items():
        if "unsaved" in layout:
            tensors[path] = Unsaved("torch.Tensor", str(layout["unsaved"]))
            continue
        device = "cpu" if layout["device"] == "cpu" else accelerator
        key = (layout["stored"], layout["dtype"])
        if key not in memory:
            raw = part.stored[layout["stored"]].contiguous().reshape(-1).view(torch.uint8)
            memory[key] = raw.clone().view(DTYPES[layout["dtype"]]).to(device)
        tensors[path] = memory[key].as_strided(layout["shape"], layout["stride"], layout["offset"])
    return _value(part.skeleton, tensors, 0)


def is_import_path(text: object) -> bool:
    """Whether it has the form package.module:name, of identifiers only."""
    if not isinstance(text, str) or text.count(":") != 1 or len(text) > 500:
        return False
    return all(name.isidentifier() and not keyword.iskeyword(name) for name in text.replace(":", ".").split("."))


def printable(text: object, most: int = 2000) -> str:
    """Text of a bundle for the terminal: control characters don't reach it."""
    return "".join(each if each.isprintable() else "?" for each in str(text)[:most])


def _regular(folder: Path, name: str) -> Path:
    path = folder / name
    try:
        kind = os.lstat(path).st_mode
    except OSError as error:
        raise RefusedError(str(path), str(error.strerror), "a file of the bundle", "Name a bundle's folder.") from None
    if not stat.S_ISREG(kind):  # a link leads out of the bundle, a pipe never ends
        raise RefusedError(str(path), "a link, or something else that is no file", "a regular file")
    return path


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _check_layout(what: str, layout: Mapping[str, Any], stored: Mapping[str, Tensor]) -> None:
    """That the view lies within what is stored; torch is asked for nothing that isn't there."""
    name, dtype, shape, stride = (layout.get(key) for key in ("stored", "dtype", "shape", "stride"))
    offset, device = layout.get("offset"), layout.get("device")
    if not isinstance(name, str) or name not in stored:
        raise RefusedError(what, f"memory {str(name)[:200]!r}", "a tensor of that file")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        remedy = "The bundle is damaged, or this version of torch lacks the dtype."
        raise RefusedError(what, f"dtype {str(dtype)[:100]!r}", ", ".join(DTYPES), remedy)
    if not isinstance(device, str):
        raise RefusedError(what, f"device {str(device)[:100]}", "text")
    sizes = shape if isinstance(shape, list) else [None]
    steps = stride if isinstance(stride, list) else [None]
    numbers = [*sizes, *steps, offset]
    if len(sizes) != len(steps) or any(type(each) is not int or not 0 <= each < 1 << 62 for each in numbers):
        seen = f"shape {str(shape)[:100]}, stride {str(stride)[:100]}, offset {str(offset)[:100]}"
        raise RefusedError(what, seen, "integers >= 0, as many strides as dimensions")
    size = DTYPES[dtype].itemsize
    held = stored[name].numel() * stored[name].element_size()
    last = sum((count - 1) * step for count, step in zip(sizes, steps, strict=True))
    needed = 0 if 0 in sizes else (int(offset or 0) + last + 1) * size
    if needed > held or held % size or math.prod(sizes) * size > _MOST_VIEWED:
        raise RefusedError(what, f"a view of {needed} bytes, shape {sizes}", f"one within the {held} that are stored")


def _value(node: Any, tensors: Mapping[str, Any], depth: int) -> Any:
    """The value of a skeleton's node."""
    try:
        return _value_of_kind(node, tensors, depth)
    except (KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
        if isinstance(error, RefusedError):
            raise
        raise RefusedError("node of a skeleton", printable(node, 200), "one of the kinds of this schema") from None


def _value_of_kind(node: Any, tensors: Mapping[str, Any], depth: int) -> Any:
    if depth > DEEPEST + 1:
        raise RefusedError("skeleton", f"more than {DEEPEST} levels", f"at most {DEEPEST}")
    kind = node["kind"]
    if kind == "tensor":
        return tensors[node["path"]]
    if kind in ("tuple", "list"):
        items = [_value(item, tensors, depth + 1) for item in node["items"]]
        return items if kind == "list" else tuple(items)
    if kind == "dict":
        return {_value(key, tensors, depth + 1): _value(item, tensors, depth + 1) for key, item in node["items"]}
    if kind == "value" and (node["value"] is None or isinstance(node["value"], (bool, int, str))):
        return node["value"]
    if kind == "float":
        return float(node["value"])
    if kind == "complex":
        return complex(*map(float, node["value"]))
    if kind == "slice":
        return slice(*node["value"])
    if kind == "dtype":
        return DTYPES[node["value"]]
    if kind == "device":
        return torch.device(node["value"])
    if kind == "ellipsis":
        return ...
    if kind == "unsaved":
        return Unsaved(str(node["type"]), str(node["reason"]))
    raise ValueError(kind)
