"""Follows recorded traces: each new one, and each that is written anew.

Not here: what is shown (views.py, latency.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from steadysum.errors import TraceNotFoundError
from steadysum.trace.files import newest_trace
from steadysum.trace.json_lines import load_trace
from steadysum.trace.recorder import Trace

__all__ = ["PAUSE", "follow", "trace_file"]

PAUSE: Final = 0.25  # seconds between two looks


def trace_file(file: Path | None) -> Path:
    """The file that was named, or the newest recorded trace.

    Raises:
        TraceNotFoundError: none was named, and none has been recorded.
    """
    return newest_trace() if file is None else file


def follow(file: Path | None, stopped: Callable[[], bool], pause: float = PAUSE) -> Iterator[tuple[Path, Trace]]:
    """Yields a trace now and whenever there is a newer one, until it is stopped.

    Args:
        file: the one to follow; None: whichever is the newest.
        stopped: asked between two looks.
        pause: seconds between two looks.

    Raises:
        TraceFileError: a file isn't a trace.
    """
    seen: tuple[Path, int, int] | None = None
    while not stopped():
        try:
            path = trace_file(file)
            state = path.stat()
            now = path, state.st_mtime_ns, state.st_ino
            if now != seen:
                yield path, load_trace(path)
                seen = now
                continue
        except (TraceNotFoundError, FileNotFoundError):
            pass  # not yet there, or just replaced by a newer one
        time.sleep(pause)
