"""Loads an operator of the zoo afresh, with the shapes and constants that a seed draws. Not for what is true of it."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType
from unittest import mock

FOLDER = Path(__file__).parent
_ASIDE = ("loading", "truth")


def names() -> tuple[str, ...]:
    """The operators that there are, in alphabetical order."""
    return tuple(sorted(file.stem for file in FOLDER.glob("*.py") if file.stem not in _ASIDE))


def load(name: str, seed: int = 0, luck: int | None = None, patience: float = 0.25) -> ModuleType:
    """A new copy of an operator's module, with state of its own, as a new process would have it.

    Args:
        name: the file's name without its ending.
        seed: draws the shapes and constants (ZOO_SEED).
        luck: draws the calls that go wrong (ZOO_LUCK); None: other ones each time.
        patience: s, after which a hang becomes a TimeoutError (ZOO_PATIENCE).
    """
    drawn = {"ZOO_SEED": str(seed), "ZOO_PATIENCE": str(patience)} | ({} if luck is None else {"ZOO_LUCK": str(luck)})
    spec = importlib.util.spec_from_file_location(f"zoo_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(os.environ, drawn):
        spec.loader.exec_module(module)
    return module
