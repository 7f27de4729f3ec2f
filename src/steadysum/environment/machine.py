"""The machine's processor, from what the system says of it. Not here: what is installed (record.py)."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Final

__all__ = ["processor_model", "usable_cpus", "without_home"]

CPUINFO: Final = Path("/proc/cpuinfo")


def usable_cpus() -> int:
    """Those that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor_model() -> str:
    """The processor's name as Linux has it; empty where it has none."""
    if not CPUINFO.exists():
        return platform.processor()
    lines = CPUINFO.read_text(errors="replace").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def without_home(path: str) -> str:
    """The path as seen from ~, so that it names no user.

    >>> without_home("/usr/lib/libgomp.so.1")
    '/usr/lib/libgomp.so.1'
    """
    home = os.environ.get("HOME", "")
    return path.replace(f"{home}/", "~/") if len(home) > 1 else path
