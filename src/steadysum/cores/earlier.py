"""What memory held when an earlier call ended: a journal of what was stored over, for stale reads.

A call is known by its epoch. A journal of an epoch begins with the first action of it that any unit takes, so where
programs run several epochs in a row, what drains later counts as the next one's.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from numpy.typing import NDArray

from steadysum.sync.memory import Span

__all__ = ["Journal"]


class Journal:
    """What was stored over, by epoch and region.

    Args:
        most: the greatest age that is asked for. One epoch more is kept, since units may be in two at once.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._epoch = 0
        self._overwritten: dict[int, dict[str, list[tuple[int, int, NDArray[Any]]]]] = {}

    def begin(self, epoch: int) -> None:
        """An epoch begins, unless it or a later one has."""
        if epoch <= self._epoch:
            return
        self._epoch = epoch
        self._overwritten[epoch] = defaultdict(list)
        for old in [known for known in self._overwritten if known < epoch - self._most]:
            del self._overwritten[old]

    def forget(self) -> None:
        """Memory has other regions now: what was before can't be found in them."""
        self._overwritten = {self._epoch: defaultdict(list)}

    def stored(self, span: Span, before: NDArray[Any]) -> None:
        """Memory is about to change; it held this."""
        if self._epoch:
            self._overwritten[self._epoch][span.region].append((span.start, span.stop, before))

    def earlier(self, span: Span, now: NDArray[Any], epoch: int, age: int) -> NDArray[Any]:
        """What the span held when the call `age` before this epoch ended, as far as is kept; `now` is what it holds."""
        found = now.copy()
        for known in sorted(self._overwritten, reverse=True):
            if known <= epoch - age:
                break
            for start, stop, before in reversed(self._overwritten[known].get(span.region, ())):
                low, high = max(start, span.start), min(stop, span.stop)
                if low < high:
                    found[low - span.start : high - span.start] = before[low - start : high - start]
        return found
