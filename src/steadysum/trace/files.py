"""How files of this part are written, and where recorded traces live. Not here: what is in them."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Final

from steadysum.errors import TraceNotFoundError

__all__ = ["KEPT", "SUFFIX", "new_trace_path", "newest_trace", "trace_folder", "tidy", "write_whole"]

SUFFIX: Final = ".trace.jsonl"
KEPT: Final = 20  # recorded traces; each is some megabytes
FOLDER_VARIABLE: Final = "STEADYSUM_TRACES"


def trace_folder() -> Path:
    """$STEADYSUM_TRACES, or steadysum/traces in the user's cache."""
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        return Path(named).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    # The XDG specification has relative paths ignored.
    return (Path(cache) if cache and Path(cache).is_absolute() else Path.home() / ".cache") / "steadysum" / "traces"


def new_trace_path() -> Path:
    """A name in the folder that no other trace has: of this time and process."""
    now = time.time_ns()
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now / 1e9))
    return trace_folder() / f"{stamp}.{now % 10**9:09d}-{os.getpid()}{SUFFIX}"


def newest_trace() -> Path:
    """The recorded trace that was written last.

    Raises:
        TraceNotFoundError: none has been recorded.
    """
    recorded = _recorded()
    if not recorded:
        raise TraceNotFoundError(
            "recorded trace",
            seen=f"none in {trace_folder()}",
            allowed=f"a file *{SUFFIX} in that folder, or one named on the command line",
            remedy=f"Run `steadysum emulate` to record one, name a FILE, or set {FOLDER_VARIABLE} to where they are.",
        )
    return recorded[-1]


def tidy() -> None:
    """Removes all recorded traces but the newest 20."""
    for path in _recorded()[:-KEPT]:
        path.unlink(missing_ok=True)


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes to a temporary name beside `path`, and renames: readers see the old file or the new one, never a half.

    Raises:
        OSError: the folder doesn't exist or can't be written to.
    """
    try:
        _replace(path, content.encode() if isinstance(content, str) else content)
    except OSError as error:  # it names the temporary file, which the user has never heard of
        raise OSError(error.errno, error.strerror, str(path)) from error


def _replace(path: Path, content: bytes) -> None:
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp's own 0600 would hide a trace from other users
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    current = os.umask(0)  # there is no way to ask without setting
    os.umask(current)
    return current


def _recorded() -> list[Path]:
    """Oldest first. Another process may remove a file at any moment."""
    found: list[tuple[int, str, Path]] = []
    for path in trace_folder().glob(f"*{SUFFIX}"):
        try:
            found.append((path.stat().st_mtime_ns, path.name, path))
        except FileNotFoundError:
            continue
    return [path for _, _, path in sorted(found)]
