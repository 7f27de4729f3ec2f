"""Sync notices: tells whoever listens how long the units of a launch waited at its sync points, and with what outcome.

Times are the launch's own: of the virtual clock, unless it ran on real threads. With nobody listening a launch pays
for one comparison. Not here: what is made of the notices (monitor/).
"""

from __future__ import annotations

from typing import Final

from steadysum.notices import heard, post
from steadysum.sync.log import events
from steadysum.sync.virtual import Run
from steadysum.trace.events import SYNC_ACTIONS, Unit

__all__ = ["tell_syncs"]

_MICROSECOND: Final = 1e-6  # seconds


def tell_syncs(run: Run) -> None:
    """Posts one notice for each wait of a launch that was logged.

    A wait is stale if it ended in time, but its unit then refused a record that should have been there; it is dead if
    it never ended, since its launch, or its unit, did.

    Args:
        run: as a runner gives it back; without a log it has nothing to tell.
    """
    if not heard() or not run.log:
        return
    waits: list[tuple[str, str, float]] = []  # point, outcome, microseconds
    last: dict[Unit, int] = {}  # of each unit, the wait that ended last
    for event in events(run):
        if event.action in SYNC_ACTIONS:
            last[event.unit] = len(waits)
            waits.append((f"{event.phase}: {event.action} {event.detail}", event.outcome, event.end - event.begin))
        elif event.action == "read" and event.outcome == "stale" and event.unit in last:
            point, outcome, time = waits[last[event.unit]]
            if outcome == "ok":
                waits[last[event.unit]] = point, "stale", time
    for point, outcome, time in waits:
        post("sync", time * _MICROSECOND, point=point, outcome=outcome)
