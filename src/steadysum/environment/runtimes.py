"""OpenMP and BLAS libraries that are loaded in this process, and which are there more than once.

Each copy of an OpenMP library has threads of its own: settings of one don't hold for the other, together they are more
than there are CPUs, and Intel's beside LLVM's is known to hang and to crash. Two BLAS libraries are usual with Python's
wheels (NumPy and SciPy bring one each); the same product may have other bits in each.

Not here: libraries that are part of another one, as MKL is of torch's wheels (record.py has its version).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from steadysum.environment.machine import without_home

__all__ = ["Runtime", "loaded_runtimes", "openmp_twice"]

MAPS: Final = Path("/proc/self/maps")

# By the name of the file; wheels put a hash behind it: libgomp-a34b3233.so.1.0.0.
_KINDS: Final = (
    ("OpenMP", "GNU", re.compile(r"libgomp[-.]")),
    ("OpenMP", "Intel", re.compile(r"libiomp5[-.]")),
    ("OpenMP", "LLVM", re.compile(r"libomp[-.]")),
    ("BLAS", "OpenBLAS", re.compile(r"lib(scipy_)?openblas")),
    ("BLAS", "MKL", re.compile(r"libmkl_(rt|core)[-.]")),
    ("BLAS", "BLIS", re.compile(r"libblis")),
    ("BLAS", "ARM", re.compile(r"libarmpl")),
    ("BLAS", "reference", re.compile(r"lib(c?blas|flexiblas)[-.]")),
)
_SITE: Final = "site-packages/"


class Runtime(NamedTuple):
    """A library."""

    kind: str  # OpenMP or BLAS
    vendor: str
    path: str  # below site-packages, or below ~, where it lies there


def loaded_runtimes() -> tuple[Runtime, ...] | None:
    """Those of this process by now; None where the system doesn't say.

    >>> all(runtime.kind in ("OpenMP", "BLAS") for runtime in loaded_runtimes() or ())
    True
    """
    try:
        lines = MAPS.read_text(errors="replace").splitlines()
    except OSError:
        return None
    return runtimes_of(fields[5] for fields in (line.split(maxsplit=5) for line in lines) if len(fields) == 6)


def runtimes_of(paths: Iterable[str]) -> tuple[Runtime, ...]:
    """Those among some files, each once, OpenMP first."""
    found: dict[str, Runtime] = {}
    for path in dict.fromkeys(paths):
        name = path.rpartition("/")[2]
        for kind, vendor, pattern in _KINDS:
            if pattern.match(name):
                found[path] = Runtime(kind, vendor, _shown(path))
                break
    return tuple(sorted(found.values(), key=lambda runtime: (runtime.kind != "OpenMP", runtime.path)))


def openmp_twice(runtimes: Iterable[Runtime]) -> str | None:
    """What is wrong with the OpenMP libraries of a process, in a sentence, or None."""
    openmp = [runtime for runtime in runtimes if runtime.kind == "OpenMP"]
    if len(openmp) < 2:
        return None
    vendors = {runtime.vendor for runtime in openmp}
    danger = " Intel's beside LLVM's is known to hang and to crash." if vendors >= {"Intel", "LLVM"} else ""
    paths = " and ".join(runtime.path for runtime in openmp)
    return f"{len(openmp)} OpenMP libraries are loaded, each with threads of its own: {paths}.{danger}"


def _shown(path: str) -> str:
    _, sign, below = path.rpartition(_SITE)
    return below if sign else without_home(path)
