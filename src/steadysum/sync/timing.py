"""How long things take on the virtual clock, without any load: the figures of a quiet device.

They set the order of events, not a performance claim: a product's time follows from its size, everything else is a
fraction of a microsecond. What a load adds is in cores/load.py.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from steadysum.sync.actions import Action, Add, Barrier, Compute, Fence, Read, Signal, Write
from steadysum.trace.events import Unit

__all__ = ["QUIET", "Timing"]


@dataclass(frozen=True)
class Timing:
    """Microseconds. On a quiet device a word reaches memory before any flag that is signalled after it is seen."""

    write: float = 0.2
    read: float = 0.2
    fence: float = 0.3
    signal: float = 0.05
    latency: float = 0.4  # from a signal to the step of the unit that it wakes
    drain: tuple[float, float] = (0.05, 0.15)  # uniform, from a write to its word's drain; below `write`

    def duration(self, unit: Unit, action: Action, draw: random.Random) -> float:
        """How long an action takes, but for waits."""
        kind = type(action)
        if kind is Compute:
            return action.cost  # type: ignore[union-attr]
        return self._fixed(kind)

    def stall(self, unit: Unit, action: Action, draw: random.Random) -> float:
        """How long the unit's whole core stands still before the action."""
        return 0.0

    def _fixed(self, kind: type) -> float:
        if kind is Read:
            return self.read
        if kind is Write or kind is Add:
            return self.write
        if kind is Fence:
            return self.fence
        return self.signal if kind is Signal or kind is Barrier else 0.0


QUIET: Final = Timing()
