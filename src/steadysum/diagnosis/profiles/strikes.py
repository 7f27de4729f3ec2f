"""The build of the extension whose values can be struck, and what in a verified call a strike can fall on.

A strike: one value, in the memory or the registers of a verified call, flips a bit or is moved by a part of its
surroundings' size. The shipped extension has no such hook; the build with traps has (`make traps`).
Not here: calls with strikes (native.py, tools/checksum_campaign.py).
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Final

import torch

from steadysum import _extension

__all__ = ["BUILD", "COVERED", "MAGNITUDES", "STAGES", "build_with_traps", "load_build", "missing_build", "passes_of"]

BUILD: Final = "STEADYSUM_TRAPS_BUILD"  # names the folder; else build/traps
# What a strike falls on, by the stage that it belongs to.
STAGES: Final = {
    "operand": ("input", "weight"),
    "logit": ("logit", "late_logit"),
    "partial": ("partial",),
    "exp": ("exp",),
    "sum": ("sum", "max"),
}
COVERED: Final = ("operand", "logit", "partial")
MAGNITUDES: Final = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)  # of a value that is moved, of its surroundings' size


def passes_of(module: ModuleType, call: Callable[[], object]) -> dict[str, int]:
    """How often a verified call passes by each target; nothing is struck."""
    passes = {}
    for target in (target for targets in STAGES.values() for target in targets):
        module.strike(module.TARGETS.index(target), after=2**62)  # never
        call()
        passes[target] = module.strike_passes()
    module.strike(0)
    return passes


def missing_build() -> str | None:
    """Why there is no build with traps, and how to get one; None: there is."""
    if _extension.module is None:
        return f"the native extension is missing: {_extension.reason}"
    if hasattr(_extension.module, "strike") or len(list(_folder().glob("_native*.so"))) == 1:
        return None
    return (
        f"{_folder()} holds no build of the extension with traps, and the shipped one can't be struck; "
        f"`make traps` in a checkout makes one, and {BUILD} can name its folder"
    )


@contextmanager
def build_with_traps() -> Iterator[ModuleType]:
    """Inside, kernel `native` runs on the build with traps; nothing is struck at the end."""
    shipped, threads = _extension.module, torch.get_num_threads()
    module = shipped if shipped is not None and hasattr(shipped, "strike") else load_build(_folder())
    _extension.module = module
    torch.set_num_threads(1)  # calls are small
    try:
        yield module
    finally:
        module.strike(0)
        _extension.module = shipped
        torch.set_num_threads(threads)


@lru_cache  # its types can't be registered twice
def load_build(folder: Path) -> ModuleType:
    """The extension that lies in a folder."""
    (library,) = folder.glob("_native*.so")
    spec = importlib.util.spec_from_file_location("_native", library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _folder() -> Path:
    return Path(os.environ.get(BUILD) or "build/traps").resolve()
