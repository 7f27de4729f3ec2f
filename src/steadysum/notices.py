"""Notices: how the floors above hear of what happens below, without being imported by it.

Whoever does the work posts a notice; monitor/ and others listen. With nobody listening a notice costs one comparison.
Not here: counting, formats, files (monitor/).

The kinds, with their labels and what their value is:

    call          operator, outcome ("clean", "healed", "fallback", "raised")    1
    check         operator, check, outcome ("passed", "failed")          seconds that it took
    anomaly       operator, check, attribution                           1
    retry         operator                                               1
    fallback      operator, to                                           1
    healed_tile   operator                                               number of tiles computed again
    bundle        operator, outcome ("written", "failed", "dropped")     bytes
    sync          point, outcome ("ok", "timeout", "stale", "dead")      seconds that it took
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple

__all__ = ["KINDS", "Notice", "heard", "listen", "post"]

KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "call": ("operator", "outcome"),
    "check": ("operator", "check", "outcome"),
    "anomaly": ("operator", "check", "attribution"),
    "retry": ("operator",),
    "fallback": ("operator", "to"),
    "healed_tile": ("operator",),
    "bundle": ("operator", "outcome"),
    "sync": ("point", "outcome"),
}


class Notice(NamedTuple):
    """Something that happened."""

    kind: str  # one of KINDS
    labels: Mapping[str, str]  # by the kind's label names
    value: float = 1.0


_listeners: tuple[Callable[[Notice], None], ...] = ()


def heard() -> bool:
    """Whether anybody listens: whoever would have to measure something for a notice asks first."""
    return bool(_listeners)


def post(kind: str, value: float = 1.0, /, **labels: str) -> None:
    """Tells every listener. A listener that fails is warned of, and never stops the work.

    Raises:
        KeyError: no such kind, or other labels than the kind has; only with a listener.

    >>> with listen(lambda notice: print(notice.kind, notice.value, notice.labels["operator"])):
    ...     post("healed_tile", 2.0, operator="linear_max_sum")
    healed_tile 2.0 linear_max_sum
    """
    if not _listeners:
        return
    if set(KINDS[kind]) != set(labels):
        raise KeyError(f"a notice of kind {kind} has the labels {KINDS[kind]}, not {tuple(labels)}")
    notice = Notice(kind, labels, value)
    for listener in _listeners:
        try:
            listener(notice)
        except Exception as error:
            warnings.warn(f"a listener of steadysum's notices failed: {error!r}", RuntimeWarning, stacklevel=2)


@contextmanager
def listen(listener: Callable[[Notice], None]) -> Iterator[None]:
    """Inside, the listener hears every notice of every thread."""
    global _listeners
    _listeners = (*_listeners, listener)
    try:
        yield
    finally:
        remaining = list(_listeners)
        remaining.remove(listener)
        _listeners = tuple(remaining)
