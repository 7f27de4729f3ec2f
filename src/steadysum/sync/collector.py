"""Holding off Python's cyclic garbage collector while a run records what happens.

A run makes thousands of small objects, nearly all of which live as long as its log, and no cycles. Left on, the
collector walks them, and from time to time the whole heap of a process that has imported torch (200 000 objects),
to free nothing: a third of the time of a call at the report's shape. Not here: memory that a log holds (its owner's).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["collector_held_off"]


@contextmanager
def collector_held_off() -> Iterator[None]:
    """Inside, no cyclic garbage is collected; reference counts still free what they can.

    The switch is the whole process's: of runs in several threads, the first to end switches the collector on again,
    which costs the others time and nothing else.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
