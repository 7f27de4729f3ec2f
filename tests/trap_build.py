"""The second build of the extension, with the numerical traps compiled in: built when its sources change, then loaded.

It is the build of `make traps`, in build/traps (or where STEADYSUM_TRAPS_BUILD says). Nothing installs it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

from steadysum.diagnosis.profiles.strikes import load_build

ROOT: Final = Path(__file__).resolve().parents[1]
BUILD: Final = (ROOT / os.environ.get("STEADYSUM_TRAPS_BUILD", "build/traps")).resolve()


def compiler() -> str | None:
    """The C++ compiler that CMake would find."""
    names = (os.environ.get("CXX"), "c++", "g++", "clang++")
    return next((found for name in names if name and (found := shutil.which(name))), None)


def load() -> ModuleType:
    """The extension with traps, up to date; processes that ask at the same time share one build."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed
        stamp, sources = BUILD / ".sources", _digest_of_sources()
        if not stamp.exists() or stamp.read_text() != sources:
            _build()
            stamp.write_text(sources)
    return load_build(BUILD)


def _digest_of_sources() -> str:
    digest = hashlib.sha256(sys.version.encode())
    for path in [ROOT / "CMakeLists.txt", *sorted((ROOT / "native").rglob("*.?pp"))]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _build() -> None:
    def tool(name: str) -> str:
        beside_python = Path(sys.executable).with_name(name)
        return str(beside_python) if beside_python.exists() else name

    settings = {
        "CMAKE_MAKE_PROGRAM": tool("ninja"),
        "Python_EXECUTABLE": sys.executable,
        "STEADYSUM_TRAPS": "ON",
        "STEADYSUM_REQUIRE_NATIVE": "ON",
    }
    defined = [f"-D{name}={value}" for name, value in settings.items()]
    _run(tool("cmake"), "-S", str(ROOT), "-B", str(BUILD), "-G", "Ninja", *defined)
    _run(tool("cmake"), "--build", str(BUILD), "--target", "_native")


def _run(*command: str) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-4000:]}")
