"""The two consoles, the progress that they show, and Ctrl-C, for all commands."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn


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


class Watcher:
    """Shows how far work is, and passes Ctrl-C on to it."""

    def __init__(self, progress: Progress, interrupted: Callable[[], bool]) -> None:
        self._progress = progress
        self._interrupted = interrupted
        self._task: TaskID | None = None

    def stopped(self) -> bool:
        """Whether work is to end."""
        return self._interrupted()

    def begins(self, what: str, calls: int) -> None:
        """A part of the work, which takes the place of the last one."""
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(what, total=calls)

    def progressed(self) -> None:
        """One call of it is done."""
        if self._task is not None:
            self._progress.advance(self._task)

    def describe(self, text: str) -> None:
        """What is being done at the moment."""
        if self._task is not None:
            self._progress.update(self._task, description=text)
