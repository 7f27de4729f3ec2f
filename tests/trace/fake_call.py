"""A call of a small device, made up: what its trace looks like where one core's write comes late, and another reads it.

Each core computes one tile, tells its vector units by a flag, they write their partial, meet at a barrier, and read all
slots. The late core's partial reaches memory after the barrier, as it does where nothing fences it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from steadysum.trace.events import Event, Unit
from steadysum.trace.recorder import Trace

TILE, MERGE, SLOT = 10.0, 4.0, 64  # microseconds, microseconds, elements
PHASES = ("P0 init", "P1 target", "P2 tiles", "P3 combine")


@dataclass
class Call:
    """Events as they are made up, before they get their numbers; each takes effect at its end."""

    epoch: int = 1
    made: list[Event] = field(default_factory=list)
    time: dict[Unit, float] = field(default_factory=dict)

    def does(
        self,
        unit: Unit,
        phase: int,
        action: str,
        length: float = 0.0,
        outcome: str = "ok",
        detail: str = "",
        spans: tuple[tuple[str, int, int], ...] = (),
        flags: tuple[tuple[str, int, str], ...] = (),
        writes: tuple[int, ...] = (),
        at: float | None = None,
    ) -> int:
        """The unit's next event, or one at a time of its own; gives back a key for `satisfied_by`."""
        begin = self.time.get(unit, 0.0) if at is None else at
        key = len(self.made)
        self.made.append(
            Event(key, self.epoch, unit, PHASES[phase], action, begin, begin + length, outcome,
                  (self.epoch, phase, 0), detail, spans, flags, self.epoch if flags else 0, writes)
        )  # fmt: skip
        if at is None:
            self.time[unit] = begin + length
        return key

    def events(self) -> tuple[Event, ...]:
        """In the order in which they took effect, numbered, with the signals of awaits renumbered."""
        order = sorted(self.made, key=lambda event: (event.end, event.number))
        numbers = {event.number: position for position, event in enumerate(order)}
        return tuple(
            event._replace(
                number=position,
                writes=tuple(numbers[key] for key in event.writes)
                if event.action in ("await", "barrier")
                else event.writes,
            )
            for position, event in enumerate(order)
        )


def fake_call(cores: int = 4, late: int | None = 2, lateness: float = 30.0, epoch: int = 1) -> Trace:
    """One call.

    Args:
        cores: how many.
        late: the core that a fault delays by `lateness` microseconds: its write reaches memory after the others' wait
            at the barrier has timed out, and they have read its slot without it; None: all is well.
        lateness: microseconds.
        epoch: number of the call.
    """
    call = Call(epoch)
    vectors = [Unit(core, role) for core in range(cores) for role in ("v0", "v1")]
    cubes = [Unit(core, "cube") for core in range(cores)]
    _meet(call, vectors, 0, "init", None)
    for cube in cubes:
        if cube.core == late:
            call.does(cube, 2, "fault", lateness, detail=f"delay of {lateness:g} us")
        call.does(cube, 2, "compute", TILE + 0.1 * cube.core, detail="tile product")
        signal = call.does(cube, 2, "signal", 0.05, detail="ready", flags=(("ready", *cube),))
        for role in ("v0", "v1"):
            vector = Unit(cube.core, role)
            waited = max(call.time[cube] - call.time[vector], 0.0)
            call.does(vector, 2, "await", waited, detail="ready", flags=(("ready", *cube),), writes=(signal,))
            call.does(vector, 2, "compute", MERGE, detail="statistics")
            word = len(call.made)
            call.does(vector, 2, "write", 0.2, spans=_slots(cube.core), writes=(word,))
            call.does(vector, 2, "drain", spans=_slots(cube.core), writes=(word,), at=call.time[vector] + 0.1)
    _meet(call, vectors, 2, "tiles", late)
    for vector in vectors:
        stale = late is not None and vector.core != late
        spans = tuple(span for core in range(cores) for span in _slots(core))
        call.does(vector, 3, "read", 0.2, outcome="stale" if stale else "ok", spans=spans)
        call.does(vector, 3, "compute", 1.0, detail="combine")
    return Trace(call.events(), {"runner": "made up", "cores": cores, "shape": [128, 64, 256 * cores]})


def _slots(core: int) -> tuple[tuple[str, int, int], ...]:
    return (("max", core * SLOT, (core + 1) * SLOT), ("sum", core * SLOT, (core + 1) * SLOT))


def _meet(call: Call, units: Iterable[Unit], phase: int, name: str, late: int | None) -> None:
    """A barrier; where a core is late, the others give up 5 us after the last of them came."""
    arrivals = {unit: call.time.get(unit, 0.0) for unit in units}
    on_time = [unit for unit in arrivals if unit.core != late]
    last = max(arrivals[unit] for unit in on_time)
    keys = {unit: len(call.made) + place for place, unit in enumerate(arrivals)}
    flags = tuple((name, *unit) for unit in arrivals)
    for unit, begin in arrivals.items():
        if late is None or unit.core == late:
            end, outcome, writes = max(*arrivals.values(), begin) + 0.4, "ok", tuple(keys.values())
        else:
            end, outcome, writes = last + 5.0, "timeout", ()
        call.does(unit, phase, "barrier", end - begin, outcome, name, flags=flags, writes=writes)
