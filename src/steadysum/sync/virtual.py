"""VirtualRunner: programs on a virtual clock, or in an order that a scheduler chooses; one seed, one run.

On the clock, events happen in the order of their times, which are drawn from the seed; a scheduler has no clock, and
chooses among all that can happen. Either way the choices are written down: replay() takes them again.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from steadysum.errors import ScheduleError, SteadySumError
from steadysum.sync.actions import Action, Await, Barrier, Program
from steadysum.sync.collector import collector_held_off
from steadysum.sync.interference import Interference
from steadysum.sync.machine import Choice, Happening, Machine, State
from steadysum.sync.memory import Memory
from steadysum.sync.schedule import BEGIN, END, Pct, RandomOrder, Schedule, Scheduler, steps, token
from steadysum.sync.timing import QUIET, Timing
from steadysum.trace.events import Unit

__all__ = ["SCHEDULERS", "Launch", "Run", "VirtualRunner"]

SCHEDULERS: Final = ("clock", "random", "pct")
# A run of so many choices is one that doesn't end: the largest calls of the device take some ten thousand.
MOST_CHOICES: Final = 5_000_000

_STEP, _DRAIN, _TIMEOUT, _WAKE = range(4)


class Launch(NamedTuple):
    """What a runner runs: programs are made by it, so that they can be made again."""

    memory: Memory
    programs: Callable[[], Mapping[Unit, Program]]  # by unit; the order numbers the units
    interference: Interference | None = None
    timing: Timing = QUIET
    retries: int = 3  # how often a wait may time out though others can go on, where a scheduler chooses
    stops_at_error: bool = False  # whether the first error ends all units, as a kernel's abort does
    log: bool = True
    begin: Callable[[], None] | None = None  # before the first step, under the faults' control as a step is
    end: Callable[[], None] | None = None  # after the last drain, likewise


class Run(NamedTuple):
    """How a run went."""

    results: dict[Unit, Any]  # of the units that ended
    errors: tuple[tuple[Unit, SteadySumError], ...]  # of those that raised, in that order
    stuck: tuple[Unit, ...]  # units that wait for ever
    dead: tuple[Unit, ...]  # units that a fault stopped
    schedule: Schedule
    units: tuple[Unit, ...]
    log: tuple[Happening, ...]
    time: float  # microseconds on the virtual clock; 0 without one


@dataclass(frozen=True)
class VirtualRunner:
    """Runs programs by a virtual clock and seeded delays, or by a scheduler.

    Args:
        seed: of everything that is drawn.
        scheduler: "clock", "random" or "pct".
    """

    seed: int = 0
    scheduler: str = "clock"

    def run(self, launch: Launch, call: int | str = 0) -> Run:
        """One run; `call` chooses its own stream of draws, so that calls can be replayed one by one."""
        draw = random.Random(f"{self.seed}/{call}")
        with collector_held_off():
            if self.scheduler == "clock":
                return _Clocked(launch, draw).run()
            order = RandomOrder(draw) if self.scheduler == "random" else Pct(draw)
            return _choose(launch, order)

    def replay(self, launch: Launch, schedule: Schedule) -> Run:
        """The run that a schedule describes, without any clock.

        Raises:
            ScheduleError: the schedule doesn't fit these programs, and where.
        """
        return replay(launch, schedule)


def _choose(launch: Launch, scheduler: Scheduler) -> Run:
    taken: list[Choice] = []
    machine = _begin(launch, None, taken)
    while not _is_over(launch, machine):
        choices = machine.choices()
        if not choices or len(taken) > MOST_CHOICES:
            break
        choice = scheduler.choose(machine, choices)
        machine.now = float(len(taken))
        machine.take(choice)
        _keep(taken, choice, launch)
    return _close(launch, machine, taken, None)


@collector_held_off()
def replay(launch: Launch, schedule: Schedule) -> Run:
    """See VirtualRunner.replay."""
    taken: list[Choice] = []
    remaining = list(steps(schedule.choices))
    ending: frozenset[tuple[int, int]] = frozenset()
    if remaining and remaining[-1][0].kind == END.kind:
        ending = remaining.pop()[1]
    first = frozenset[tuple[int, int]]()
    if remaining and remaining[0][0].kind == BEGIN.kind:
        first = remaining.pop(0)[1]
    machine = _begin(launch, first, taken)
    for position, (choice, script) in enumerate(remaining):
        machine.now = float(len(taken))
        try:
            machine.take(choice, script)
        except (ValueError, IndexError) as error:
            raise ScheduleError(
                f"schedule, choice {position}",
                seen=f"{token(choice)} ({error})",
                allowed="choices that the programs have, in their order",
                remedy="Replay it with the shape, cores, policy and faults that it was recorded with.",
            ) from error
        _keep(taken, choice, launch)
    return _close(launch, machine, taken, ending)


class _Clocked:
    """One run in the order of a virtual clock."""

    def __init__(self, launch: Launch, draw: random.Random) -> None:
        self._launch = launch
        self._draw = draw
        self._timing = launch.timing
        self._heap: list[tuple[float, int, int, int, Any]] = []  # (time, order, kind, unit, what)
        self._order = 0
        self._taken: list[Choice] = []
        self._stalls: dict[int, tuple[float, float]] = {}  # from when until when a core stands still, or last did
        self._can_stall = type(launch.timing).stall is not Timing.stall

    def run(self) -> Run:
        launch, taken = self._launch, self._taken
        self._machine = machine = _begin(launch, None, taken, self._duration)
        for unit in range(len(machine.units)):
            self._push(0.0, _STEP, unit, None)
        heap = self._heap
        while heap and not (launch.stops_at_error and machine.errors):
            time, _, kind, unit, what = heapq.heappop(heap)
            if kind == _STEP:
                self._steps(time, unit)
            elif kind == _DRAIN:
                entries = machine.buffers[unit].entries
                for position, entry in enumerate(entries):
                    if entry is what:
                        machine.now = time
                        machine.drain(unit, position)
                        taken.append(Choice("d", unit, position))
                        break
            elif kind == _TIMEOUT:
                if machine.pending[unit] is what[0] and machine.state[unit] is State.BLOCKED:
                    start, until = self._stalls.get(machine.units[unit].core, (0.0, 0.0))
                    if until > what[1]:  # a core that stands still doesn't count the time: its wait is longer by it
                        began = max(start, what[2])
                        self._push(time + until - began, _TIMEOUT, unit, (what[0], until, until))
                        continue
                    machine.now = time
                    machine.time_out(unit)
                    _keep(taken, Choice("t", unit), launch)
                    self._push(time, _STEP, unit, None)
            elif machine.state[unit] is State.ASLEEP:
                machine.now = time
                machine.wake(unit)
                taken.append(Choice("w", unit))
                self._push(time, _STEP, unit, None)
            if machine.ended:
                break
        return _close(launch, machine, taken, None)

    def _push(self, time: float, kind: int, unit: int, what: Any) -> None:
        self._order += 1
        heapq.heappush(self._heap, (time, self._order, kind, unit, what))

    def _duration(self, unit: int, action: Action) -> float:
        return self._timing.duration(self._machine.units[unit], action, self._draw)

    def _stalled_until(self, time: float, unit: int, core: int, action: Any) -> float:
        """When the unit's core goes on; a stall may begin now."""
        until = self._stalls.get(core, (0.0, 0.0))[1]
        if until <= time:
            stall = self._timing.stall(self._machine.units[unit], action, self._draw)
            if stall > 0.0:
                until = time + stall
                self._stalls[core] = (time, until)
        return until

    def _steps(self, time: float, unit: int) -> None:
        """A unit's next action, and those after it that come before anything else does."""
        machine, heap, launch = self._machine, self._heap, self._launch
        state, core = machine.state, machine.units[unit].core
        while True:
            if state[unit] is not State.READY:
                return
            action = machine.pending[unit]
            if self._can_stall:
                until = self._stalled_until(time, unit, core, action)
                if until > time:
                    self._push(until, _STEP, unit, None)
                    return
            machine.now = time
            before = len(machine.buffers[unit].entries)
            spent = machine.step(unit)
            if launch.interference is None:
                self._taken.append(Choice("s", unit))
            else:
                _keep(self._taken, Choice("s", unit), launch)
            if machine.woken:
                for woken in machine.woken:
                    self._push(time + self._timing.latency, _STEP, woken, None)
                machine.woken.clear()
            if len(machine.buffers[unit].entries) > before:
                self._schedule_drains(time, unit, before)
            if state[unit] is State.BLOCKED:
                assert isinstance(action, Await | Barrier)
                if action.timeout is not None:
                    self._push(time + action.timeout, _TIMEOUT, unit, (action, time, time))
                return
            if state[unit] is State.ASLEEP:
                self._push(time + machine.sleep[unit], _WAKE, unit, None)
                return
            if launch.stops_at_error and machine.errors:
                return
            time += spent
            if heap and heap[0][0] <= time:
                if state[unit] is State.READY:
                    self._push(time, _STEP, unit, None)
                return

    def _schedule_drains(self, time: float, unit: int, first: int) -> None:
        low, high = self._timing.drain
        buffer, meddler = self._machine.buffers[unit], self._launch.interference
        for position in range(first, len(buffer.entries)):
            entry = buffer.entries[position]
            left = time + low + (high - low) * self._draw.random()
            if meddler is not None:
                left += meddler.drain_delay(self._machine.units[unit], entry.span)
            for older in buffer.entries[:position]:  # first-in first-out where they overlap
                if older.left > left and older.span.region == entry.span.region:
                    left = older.left
            entry.left = left
            self._push(left, _DRAIN, unit, entry)


def _begin(
    launch: Launch,
    script: frozenset[tuple[int, int]] | None,
    taken: list[Choice],
    duration: Callable[[int, Action], float] | None = None,
) -> Machine:
    """Work before the first step, and all programs up to their first actions; faults may act in both."""
    meddler = launch.interference
    if meddler is not None:
        meddler.begin_step(script)
    if launch.begin is not None:
        launch.begin()
    machine = Machine(launch.memory, launch.programs(), meddler, duration, retries=launch.retries, log=launch.log)
    if launch.begin is not None or (meddler is not None and meddler.acted):
        _keep(taken, BEGIN, launch)
    return machine


def _keep(taken: list[Choice], choice: Choice, launch: Launch) -> None:
    if launch.interference is not None and choice.kind in "sbet":
        taken.extend(Choice("f", fault, opportunity) for fault, opportunity in launch.interference.acted)
    taken.append(choice)


def _is_over(launch: Launch, machine: Machine) -> bool:
    return machine.ended or (launch.stops_at_error and bool(machine.errors))


def _close(launch: Launch, machine: Machine, taken: list[Choice], script: frozenset[tuple[int, int]] | None) -> Run:
    machine.flush()
    if launch.end is not None:  # faults may act in what comes after the last step as well
        if launch.interference is not None:
            launch.interference.begin_step(script)
        launch.end()
        _keep(taken, END, launch)
    stuck = () if launch.stops_at_error and machine.errors else _units(machine, State.BLOCKED, State.ASLEEP)
    return Run(
        machine.results,
        tuple(machine.errors),
        stuck,
        _units(machine, State.DEAD),
        Schedule(tuple(taken)),
        machine.units,
        tuple(machine.log),
        machine.now,
    )


def _units(machine: Machine, *states: State) -> tuple[Unit, ...]:
    return tuple(unit for unit, state in zip(machine.units, machine.state, strict=True) if state in states)
