"""The words that a command line gives for an emulation: settings with their overrides, faults, the size of a tile."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from steadysum.cores.faults import Arm
from steadysum.cores.grid import Geometry
from steadysum.diagnosis.emulation.plan import CLOCK
from steadysum.errors import RangeError
from steadysum.settings import CONFIG, PROFILE, Settings, resolve

__all__ = ["load_of", "parse_faults", "parse_tile", "settings_of"]

# The command shows the field's fault unless a policy is asked for: by an option, a file, a profile, the environment.
DEFAULT_POLICY: Final = "legacy"
_OUTSIDE: Final = ("STEADYSUM_ALLREDUCE_POLICY", CONFIG, PROFILE)


def settings_of(
    policy: str | None = None,  # name or number
    timeout: float | None = None,  # milliseconds
    retries: int | None = None,
    no_async: bool = False,
    file: Path | None = None,  # INI
    profile: str | None = None,
) -> Settings:
    """The settings of these options, and what `resolve` finds for the others.

    Raises:
        SettingsError: a value outside of its range, an unknown profile, a file that can't be used.
    """
    if policy is None and file is None and profile is None and not any(name in os.environ for name in _OUTSIDE):
        policy = DEFAULT_POLICY
    options: dict[str, Any] = {}
    if policy is not None:
        options["allreduce_policy"] = int(policy) if policy.isascii() and policy.isdecimal() else policy
    if timeout is not None:
        options["sync_wait_timeout"] = timeout
    if retries is not None:
        options["max_retries"] = retries
    if no_async:
        options["enable_async"] = False
    return resolve(options, config=file, profile=profile)


def load_of(level: float | None, scheduler: str) -> float:
    """The level that is asked for, or the default: 1 on the virtual clock; schedules without one have no load."""
    return float(scheduler == CLOCK) if level is None else level


def parse_faults(texts: Sequence[str] | None) -> tuple[Arm, ...]:
    """The faults of `kind:key=value,...`.

    Raises:
        SteadySumError: an unknown kind or key, or a value outside of its range.
    """
    return tuple(Arm.parse(text) for text in texts or ())


def parse_tile(text: str) -> Geometry:
    """ROWS,COLUMNS of a tile.

    >>> parse_tile("8,16")
    Geometry(rows=8, columns=16)
    """
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 2 or not all(part.isascii() and part.isdecimal() and int(part) > 0 for part in parts):
        raise RangeError("--tile", repr(text), "ROWS,COLUMNS: two integers > 0", "The vendor's is 128,256.")
    return Geometry(*map(int, parts))
