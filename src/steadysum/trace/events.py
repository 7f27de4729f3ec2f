"""What a unit did, and when: the one form in which every runner reports.

Not here: where events are kept (recorder.py), what is made of them (latency.py, chrome.py, timeline.py).
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["ACTIONS", "OUTCOMES", "SYNC_ACTIONS", "Event", "Unit"]


class Unit(NamedTuple):
    """Who acts: one unit of one core. A core of the emulated device has a cube unit and two vector units."""

    core: int
    role: str  # "cube", "v0", "v1"; "core" where a core is one unit

    def __str__(self) -> str:
        return f"core {self.core}" if self.role == "core" else f"core {self.core} {self.role}"


class Event(NamedTuple):
    """One action of one unit, from its begin to its end.

    Times are in microseconds: of the virtual clock under VirtualRunner, of time.perf_counter under ThreadRunner, and
    the number of the choice where a schedule is run without a clock.
    """

    number: int  # position in the call's list of events; events are in the order in which they took effect
    epoch: int  # number of the call
    unit: Unit
    phase: str  # "P0 init", "P1 target", "P2 tiles", "P3 combine"; "exchange" outside of the operator
    action: str  # one of ACTIONS
    begin: float
    end: float
    outcome: str  # one of OUTCOMES
    place: tuple[int, int, int]  # (epoch, index of the phase, step in it): the order that the program intends
    detail: str = ""  # what was computed, or the name of the barrier
    # ("max", 128, 192): elements [128, 192) of the region "max"; those read, written, or drained
    spans: tuple[tuple[str, int, int], ...] = ()
    flags: tuple[tuple[str, int, str], ...] = ()  # (name, core, role of its owner) signalled, or awaited
    value: int = 0  # what a flag was set to, or had to reach
    writes: tuple[int, ...] = ()  # of a write: numbers of its words; of a drain: of those that reached memory; of an
    #                               await: numbers of the signal events that satisfied it


# compute: own work. write: words enter the unit's store buffer. drain: words reach memory (the unit is their writer).
# read. add: atomic add at memory. fence: the unit's store buffer is empty after it. signal: a flag is set. await: until
# flags are set. barrier: signal and await. fault: an armed fault acts on the unit. retry: a policy tries again.
ACTIONS: Final = ("compute", "write", "drain", "read", "add", "fence", "signal", "await", "barrier", "fault", "retry")
SYNC_ACTIONS: Final = ("await", "barrier")
# ok. timeout: an await that gave up. stale: a read whose record was refused by its stamp. raised: an error ended the
# program after it. dead: the unit stopped here for ever.
OUTCOMES: Final = ("ok", "timeout", "stale", "raised", "dead")
