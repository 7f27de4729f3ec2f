"""The two consoles, the progress bar, and Ctrl-C, for all commands."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class _Console(Console):
    def on_broken_pipe(self) -> NoReturn:
        """Exits with 2 where the reader (`| head`) is gone. Rich's own 1 would say that a kernel deviates."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(2)


stdout = _Console()
stderr = _Console(stderr=True)


def progress_bar() -> Progress:
    """A bar on stderr, so that a redirected table stays clean; nothing where stderr is no terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=stderr,
        transient=True,
        disable=not stderr.is_terminal,
    )


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Yields a function that says whether Ctrl-C was pressed, so that work can end between two calls.

    A second Ctrl-C interrupts at once. Handlers of signals belong to the main thread: elsewhere Ctrl-C is as ever.
    """
    pressed = False

    def on_interrupt(_signal: int, _frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    try:
        before = signal.signal(signal.SIGINT, on_interrupt)
    except ValueError:  # not the main thread
        yield lambda: False
        return
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)
