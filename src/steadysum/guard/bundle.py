"""Bundles: what a failing check saw, saved to disk, so that it can be looked at and run again.

A bundle is a folder:

    verdict.json          what was called, what was found, how tensors lie in memory; schema below
    environment.json      versions, threads, devices
    inputs.safetensors    args and kwargs of the call
    outputs.safetensors   its outputs, by name: "deviating", "rerun", "fallback"
    module.safetensors    the state of the module that was called, if it was one
    reproduce.py          makes the call again; with its own bundle_reading.py and bundle_exact.py

Nothing is pickled, and reading executes nothing. Not here: how the files are written (bundle_content.py), and the
folder that bundles lie in (bundle_files.py).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from steadysum.errors import BundleError, BundleNotFoundError, RangeError
from steadysum.guard import bundle_files, bundle_reading
from steadysum.guard.bundle_content import Evidence, write_files
from steadysum.guard.bundle_reading import SCHEMA, Part, RefusedError
from steadysum.guard.checks.protocol import Finding
from steadysum.guard.failure import callers_level
from steadysum.notices import post

__all__ = ["SCHEMA", "Bundle", "BundleStore", "Evidence", "import_path_of", "read_bundle"]

_LEAST_BYTES: Final = 4 << 20  # a bundle's own texts, and some tensors


class Bundle(NamedTuple):
    """A bundle, as read. Tensors are on the CPU, as views of memory that is laid out as it was."""

    path: Path
    operator: str
    import_path: str | None  # text, of whoever wrote the bundle: not imported
    args: tuple[Any, ...]  # NamedTuples come back as tuples, what couldn't be saved as bundle_reading.Unsaved
    kwargs: dict[str, Any]
    outputs: dict[str, Any]
    findings: tuple[Finding, ...]
    attribution: str
    right: str | None
    settings: dict[str, Any]
    state: dict[str, Any] | None  # of the module, if one was called
    environment: dict[str, Any]
    left_out: dict[str, str]  # what is missing, and why
    verdict: dict[str, Any]  # all of verdict.json


class BundleStore:
    """A folder that bundles are written to, never more than so many, by any number of threads and processes.

    The first bundles stay, up to half of the number and of the bytes; of the others the newest ones. One bundle takes
    at most half of the bytes: what doesn't fit is left out, and the bundle says so.

    Args:
        folder: made when the first bundle is written.
        most: bundles, at least 1.
        most_bytes: bytes of all bundles together, at least 4 MiB.

    Raises:
        RangeError: a limit that is too small.
    """

    def __init__(self, folder: str | os.PathLike[str], most: int = 20, most_bytes: int = 2**30) -> None:
        if most < 1:
            raise RangeError("most", str(most), "at least 1", "Pass bundles=None for no bundles.")
        if most_bytes < _LEAST_BYTES:
            raise RangeError(
                "most_bytes", str(most_bytes), f"at least {_LEAST_BYTES}", "A bundle's own texts need them."
            )
        self.folder = Path(folder)
        self.most = most
        self.most_bytes = most_bytes
        self._has_warned = False

    def write(self, evidence: Evidence) -> Path | None:
        """Saves the evidence, and never raises for it: a full disk must not stop a training run.

        Returns:
            The bundle's folder, or None: it couldn't be written (warned of once, and counted as outcome "failed" of
            the notice "bundle"), or had no room beside the first ones (outcome "dropped").
        """
        try:
            written = self._write(evidence)
        except Exception as error:
            self._tell_of_failure(evidence, error)
            return None
        _post(evidence, "dropped" if written is None else "written", 0 if written is None else written.nbytes)
        return None if written is None else written.path

    def _write(self, evidence: Evidence) -> bundle_files.Saved | None:
        self.folder.mkdir(parents=True, exist_ok=True)
        name = bundle_files.new_name(evidence.operator)
        with bundle_files.exclusive(self.folder):
            bundle_files.sweep(self.folder)
            if self._giving_way(0) is None:
                return None
            partial = bundle_files.make_partial(self.folder, name)
        removed: list[Path] = []
        try:
            nbytes = write_files(partial, name, evidence, self.most_bytes // 2)
            with bundle_files.exclusive(self.folder):
                giving_way = self._giving_way(nbytes)
                if giving_way is None:
                    return None
                removed.extend(bundle_files.hide(self.folder, path) for path in giving_way)
                path = partial.rename(self.folder / name)
            bundle_files.sync(self.folder)
            return bundle_files.Saved(path, nbytes)
        finally:  # after the rename there is no partial any more; before it, nothing of it may stay
            for each in (partial, *removed):
                shutil.rmtree(each, ignore_errors=True)

    def _giving_way(self, nbytes: int) -> list[Path] | None:
        saved = bundle_files.saved_in(self.folder)
        places = bundle_files.to_remove([each.nbytes for each in saved], nbytes, self.most, self.most_bytes)
        return None if places is None else [saved[place].path for place in places]

    def _tell_of_failure(self, evidence: Evidence, error: Exception) -> None:
        _post(evidence, "failed", 0)
        if self._has_warned:
            return
        self._has_warned = True
        text = f"a bundle could not be written to {self.folder}: {error}; the run goes on, later failures are counted"
        with contextlib.suppress(Warning):  # warnings that are errors must not stop the run either
            warnings.warn(text, RuntimeWarning, stacklevel=callers_level())


def read_bundle(path: str | os.PathLike[str]) -> Bundle:
    """Reads a bundle; nothing in it is executed, unpickled or imported, whoever has written it.

    Args:
        path: the bundle's folder.

    Returns:
        All that it holds.

    Raises:
        BundleNotFoundError: there is no such folder.
        BundleError: it isn't a bundle, is damaged, or is of another schema.
    """
    folder = Path(path)
    if not folder.is_dir():
        remedy = "Name the folder of one bundle."
        raise BundleNotFoundError(f"bundle {folder}", "no folder of this name", "a bundle's folder", remedy)
    try:
        return _read(folder)
    except RefusedError as error:
        raise BundleError(*error.args) from None


def import_path_of(function: Callable[..., Any]) -> str | None:
    """The path by which another process can import a callable, or None: a lambda, a local function, one of __main__.

    >>> import torch
    >>> import_path_of(torch.nn.functional.linear)
    'torch.nn.functional:linear'
    """
    names = {str(getattr(function, name, "")) for name in ("__qualname__", "__name__")}
    modules = ["torch.nn.functional", "torch", str(getattr(function, "__module__", ""))]  # torch's own, by public names
    for module in modules:
        if module == "__main__" or module not in sys.modules:
            continue
        for name in sorted(names):
            found: Any = sys.modules[module]
            for each in name.split("."):
                found = getattr(found, each, None)
            is_it = found is function or getattr(found, "guarded", None) is function
            path = f"{module}:{name}"
            if is_it and bundle_reading.is_import_path(path):
                return path
    return None


def _read(folder: Path) -> Bundle:
    verdict = bundle_reading.read_verdict(folder)
    parts = {name: bundle_reading.read_part(folder, verdict, name) for name in bundle_reading.PARTS}
    call = _dict_of(parts["inputs"], "inputs")
    args, kwargs = call.get("args", ()), call.get("kwargs", {})
    if not isinstance(args, tuple) or not isinstance(kwargs, dict):
        raise RefusedError(f"inputs in {folder}", "no args and kwargs", "a tuple and a dict")
    path = verdict.get("function")
    if path is not None and not bundle_reading.is_import_path(path):
        raise RefusedError(f"function in {folder}", f"{str(path)[:200]!r}", "package.module:name, or null")
    right = verdict.get("right")
    return Bundle(
        folder,
        str(verdict.get("operator")),
        path,
        args,
        kwargs,
        _dict_of(parts["outputs"], "outputs"),
        _findings_of(folder, verdict),
        str(verdict.get("attribution")),
        None if right is None else str(right),
        dict(verdict.get("settings") or {}),
        _dict_of(parts["module"], "module") if verdict.get("module") else None,
        bundle_reading.read_json(folder, bundle_reading.ENVIRONMENT),
        {str(what): str(why) for what, why in verdict["left_out"].items()},
        verdict,
    )


def _dict_of(part: Part | None, name: str) -> dict[str, Any]:
    value = {} if part is None else bundle_reading.build(part)
    if not isinstance(value, dict):
        raise RefusedError(f"part {name}", type(value).__name__, "a dict")
    return value


def _findings_of(folder: Path, verdict: Mapping[str, Any]) -> tuple[Finding, ...]:
    try:
        return tuple(
            Finding(
                str(each["check"]),
                bool(each["passed"]),
                str(each["summary"]),
                tuple(int(row) for row in each["rows"]),
                tuple(tuple(int(index) for index in place) for place in each["places"]),
                None if each["measured"] is None else float(each["measured"]),
                None if each["allowed"] is None else float(each["allowed"]),
            )
            for each in verdict["findings"]
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RefusedError(f"findings in {folder}", f"{error!r}", "those of this schema") from None


def _post(evidence: Evidence, outcome: str, nbytes: int) -> None:
    with contextlib.suppress(Warning):
        post("bundle", nbytes, operator=evidence.operator, outcome=outcome)
