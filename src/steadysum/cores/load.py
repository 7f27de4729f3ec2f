"""Load: how long things take on a device that isn't quiet: jitter of the cores' own work, and stalls of a whole core.

A stall is what the field report calls a late core: a neighbour tenant or the scheduler takes the core away for seconds.
Where it outlasts sync_wait_timeout, the policy `legacy` goes on without the core. The figures here are chosen, not
measured on a chip: they give the report's rate of deviating calls at the report's shape.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any, Final

from steadysum.errors import RangeError
from steadysum.sync.actions import Action, Compute
from steadysum.sync.timing import Timing
from steadysum.trace.events import Unit

__all__ = ["Load"]

# Standard deviation of the logarithm of a piece of work's time, at level 1; its square grows with the level. Work is
# late by a fifth now and then, never by a wait: jitter breaks nothing, but no two calls have the same order of events.
_JITTER: Final = 0.2
# A stall's length, in microseconds: its median and the standard deviation of its logarithm. 3 of 4 stalls are longer
# than the default sync_wait_timeout of 2 s; 1 of 4 isn't, and does no harm.
_STALL_MEDIAN: Final = 3e6
_STALL_SIGMA: Final = 0.6
# Stalls for each piece of work, at level 1. At the report's shape (N = 1024, H = 256, V = 512 on 24 cores) there are 16
# tiles. P2 has 4 pieces of vector units for each, 64 in all; a stall there is lethal to policy `legacy` if it outlasts
# one wait of 2 s, as 75 % do. The 16 pieces of cubes begin with the call: there it must outlast three waits, those of
# P0 and P1 too, as 12 % do. So a call has 64 x 0.75 + 16 x 0.12 = 50 chances, and 50 x 1.52e-3 = 0.076 lethal stalls
# make 1 - exp(-0.076), 7.3 % of calls, deviate: the middle of the report's 5-10 %.
_STALLS: Final = 1.52e-3
_MOST_LEVEL: Final = 100  # 1 piece of work in 7 begins with a stall: there is nothing beyond it to be learnt


@dataclass(frozen=True, init=False)
class Load(Timing):
    """Times under a system load.

    Args:
        level: 0: a quiet device, exactly; 1: the load under which the field report's fault was seen. The number of
            stalls is proportional to it.

    Raises:
        RangeError: level isn't a number from 0 to 100.

    >>> Load(level=-1.0)
    Traceback (most recent call last):
    steadysum.errors.RangeError: load level: got -1.0; allowed: a number from 0 to 100. 1 is the field report's load.
    """

    level: float = 1.0

    def __init__(self, level: float = 1.0) -> None:
        _check(level)
        super().__init__()
        object.__setattr__(self, "level", float(level))

    def duration(self, unit: Unit, action: Action, draw: random.Random) -> float:
        """How long an action takes, but for waits: own work has jitter."""
        quiet = super().duration(unit, action, draw)
        if self.level == 0.0 or type(action) is not Compute:
            return quiet
        return quiet * math.exp(_JITTER * math.sqrt(self.level) * draw.gauss(0.0, 1.0))

    def stall(self, unit: Unit, action: Action, draw: random.Random) -> float:  # noqa: ARG002 - Timing's signature
        """How long the unit's whole core stands still before the action: seldom, and for seconds."""
        if self.level == 0.0 or type(action) is not Compute or draw.random() >= _STALLS * self.level:
            return 0.0
        return _STALL_MEDIAN * math.exp(_STALL_SIGMA * draw.gauss(0.0, 1.0))


def _check(level: Any) -> None:
    if isinstance(level, bool) or not isinstance(level, int | float) or not 0.0 <= level <= _MOST_LEVEL:
        raise RangeError(
            "load level", repr(level), f"a number from 0 to {_MOST_LEVEL}", "1 is the field report's load."
        )
