"""Says once in a process that something has no effect where it runs. Not here: what has none."""

from __future__ import annotations

import warnings
from typing import Final

__all__ = ["NO_EFFECT", "say_once"]

NO_EFFECT: Final = "has no effect on this device"

_said: set[str] = set()


def say_once(what: str, reason: str, *, frames: int = 3) -> None:
    """Warn, of the line of code that lies so many frames up."""
    if what not in _said:
        _said.add(what)
        warnings.warn(f"{what} {NO_EFFECT}: {reason}. This is said once.", UserWarning, stacklevel=frames)
