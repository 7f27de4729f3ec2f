"""How much memory this process may still take, and the refusal of a problem that needs more.

Sizes are computed in Python's integers, before any tensor is made: torch's own texts for an overflow or a failed
allocation say nothing of the option that asked for it. Not here: peak memory measured (benchmarks/memory.py).
"""

from __future__ import annotations

import os
from pathlib import Path

from steadysum.errors import RangeError

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")  # of a container, where its own limit is lower than the machine's memory


def check_memory(what: str, needed: int) -> None:
    """Refuses `needed` bytes where they aren't available.

    Args:
        what: the option and the sizes in it, for the text.
        needed: bytes.

    Raises:
        RangeError: they don't fit.
    """
    available = available_memory()
    if needed > available:
        raise RangeError(
            "--shape",
            f"{what} {_size(needed)}",
            f"operands that fit into memory ({_size(available)} available)",
            "Choose a smaller shape.",
        )


def available_memory() -> int:
    """Bytes that can be taken without swapping: the machine's, or what is left of the container's limit."""
    bounds = [_machine()]
    limit, used = _number(CGROUP / "memory.max"), _number(CGROUP / "memory.current")
    if limit is not None and used is not None:
        bounds.append(max(0, limit - used))
    return min(bounds)


def _machine() -> int:
    if MEMINFO.exists():
        for line in MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _number(path: Path) -> int | None:
    """The number in a file of the cgroup's; None where there is none, or it says "max"."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _size(count: int) -> str:
    """Bytes for a reader.

    >>> _size(3 * 2**29), _size(10**6)
    ('1.5 GiB', '1.0 MiB')
    """
    for unit, name in ((2**40, "TiB"), (2**30, "GiB")):
        if count >= unit:
            return f"{count / unit:,.1f} {name}"
    return f"{count / 2**20:.1f} MiB"
