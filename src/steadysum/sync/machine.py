"""The state of one run of programs over shared memory, and every way in which it can go on.

A machine does what it is told: a unit's next action, one word's drain, the end of a wait, the end of a sleep. Who
chooses is a runner's matter. Its choices, in order, are the whole of a run: taken again, they give the same run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steadysum.errors import SteadySumError
from steadysum.sync.actions import (
    Action,
    Add,
    Await,
    Barrier,
    Compute,
    Fence,
    Flag,
    Program,
    Read,
    Signal,
    Word,
    Write,
)
from steadysum.sync.interference import Interference
from steadysum.sync.memory import Entry, Memory, Span, StoreBuffer
from steadysum.trace.events import Unit

__all__ = ["Choice", "Happening", "Machine", "Saved", "State"]


class Choice(NamedTuple):
    """One way in which a run goes on. Written `s3`, `d2.0`, `t5`, `w1`, `f0.1`."""

    kind: str  # s: a unit's step; d: a drain; t: a wait times out; w: a sleeper wakes; f: a fault acts in the next step
    unit: int  # number of the unit; of a fault: its number
    index: int = 0  # type: ignore[assignment]  # of a drain: position in the store buffer; of a fault: number of the opportunity


class State(IntEnum):
    """What a unit is doing."""

    READY = 0
    BLOCKED = 1  # in an await whose flags aren't there
    ASLEEP = 2  # delayed by a fault
    DONE = 3
    RAISED = 4
    DEAD = 5


class Happening(NamedTuple):
    """An entry of a machine's log: what took effect. trace/ has the form for people (see log.py)."""

    unit: int
    action: Action | None  # None: a drain, a fault, a death: see what
    begin: float
    end: float
    outcome: str
    what: str = ""  # "drain", "fault", "dead" where action is None
    detail: Any = None  # drain: the Entry; write: numbers of its words; await: numbers of the signals that it has seen


class Saved(NamedTuple):
    """All that a machine's future depends on, but for its programs and its interference: they keep their own."""

    memory: bytes
    flags: frozenset[tuple[Flag, int]]
    timeouts: frozenset[tuple[tuple[int, tuple[Flag, ...], int], int]]  # of waits whose flags aren't there yet
    buffers: tuple[tuple[tuple[int, Span, NDArray[Any], Span], ...], ...]  # number, span, values, own of each entry
    # Of each unit: its state, whether interference was asked, whether it arrived, and which flag it waits for.
    units: tuple[tuple[State, bool, bool, int], ...]


class Machine:
    """Programs, one for each unit, over a memory.

    Args:
        memory: shared by all units; it keeps what the run leaves in it.
        programs: by unit; the order of the mapping numbers the units.
        interference: what interferes; None: nothing.
        duration: gives the microseconds that an action takes, by number of the unit; None: no clock.
        retries: how often a wait may time out though others can still go on (only asked where there is no clock).
        log: whether to keep what happens.
    """

    def __init__(
        self,
        memory: Memory,
        programs: Mapping[Unit, Program],
        interference: Interference | None = None,
        duration: Callable[[int, Action], float] | None = None,
        retries: int = 3,
        log: bool = True,
    ) -> None:
        self.memory = memory
        self.units = tuple(programs)
        self.interference = interference
        self.retries = retries
        self.now = 0.0
        self.log: list[Happening] = []
        self.results: dict[Unit, Any] = {}
        self.errors: list[tuple[Unit, SteadySumError]] = []  # in the order in which they were raised
        self.woken: list[int] = []  # units that a signal has made ready; a runner with a clock empties it
        count = len(self.units)
        self.state = [State.READY] * count
        self.pending: list[Action | None] = [None] * count
        self.buffers = [StoreBuffer() for _ in range(count)]
        self.sleep = [0.0] * count  # microseconds that a sleeper sleeps
        self.flags: dict[Flag, int] = {}
        self._programs = tuple(programs.values())
        self._duration = duration
        self._keeps_log = log
        self._began = [0.0] * count  # when a blocked unit began to wait
        self._passed = [False] * count  # the pending action's interference was asked for
        self._arrived = [False] * count  # the pending barrier's own flag is set
        # A blocked unit waits for one flag at a time, in the order of its action's; those before it have been seen.
        self._watched = [0] * count  # position of that flag
        self._waiting: dict[Flag, list[int]] = {}  # the units that wait for a flag
        self._signals: dict[Flag, int] = {}  # number of the happening that set a flag last
        self._seen: tuple[tuple[Flag, ...], int, tuple[int, ...]] | None = None  # since the last: see _signals_of
        self._timeouts: dict[tuple[int, tuple[Flag, ...], int], int] = {}  # timed out, though others could go on
        self._words = 0
        self._running = count  # units that may do something again
        if interference is not None:
            interference.begin_run(memory)
        for unit in range(count):
            self._advance(unit, None)

    # ---- what can happen --------------------------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """Whether no unit will ever do anything again, by itself or woken."""
        return self._running == 0

    def choices(self) -> list[Choice]:
        """Every way to go on. A wait times out at most `retries` times while others can go on, else freely."""
        found = [Choice("s", unit) for unit, state in enumerate(self.state) if state is State.READY]
        found += [Choice("w", unit) for unit, state in enumerate(self.state) if state is State.ASLEEP]
        for unit, buffer in enumerate(self.buffers):
            if buffer.entries:
                found += [Choice("d", unit, position) for position in buffer.drainable()]
        alone = not found
        return found + [Choice("t", unit) for unit in self._can_time_out(alone)]

    def _can_time_out(self, alone: bool) -> Iterator[int]:
        for unit, state in enumerate(self.state):
            if state is State.BLOCKED:
                action = self.pending[unit]
                assert isinstance(action, Await | Barrier)
                if action.timeout is not None and (alone or self._timeouts.get(_wait(unit, action), 0) < self.retries):
                    yield unit

    def take(self, choice: Choice, script: frozenset[tuple[int, int]] | None = None) -> None:
        """Goes on in this way; with a script of the faults that act in it.

        Raises:
            IndexError, ValueError: the choice isn't open to this machine.
        """
        kind, unit, index = choice
        if kind == "s":
            if self.state[unit] is not State.READY:
                raise ValueError(f"unit {unit} is {self.state[unit].name}")
            self.step(unit, script)
        elif kind == "d":
            self.drain(unit, index)
        elif kind == "t":
            if self.state[unit] is not State.BLOCKED:
                raise ValueError(f"unit {unit} is {self.state[unit].name}")
            action = self.pending[unit]
            assert isinstance(action, Await | Barrier)
            key = _wait(unit, action)
            self._timeouts[key] = self._timeouts.get(key, 0) + 1
            self.time_out(unit, script)
        elif kind == "w":
            if self.state[unit] is not State.ASLEEP:
                raise ValueError(f"unit {unit} is {self.state[unit].name}")
            self.wake(unit)
        else:
            raise ValueError(f"no choice of kind {kind!r}")

    # ---- the ways to go on ------------------------------------------------------------------------------------------

    def step(self, unit: int, script: frozenset[tuple[int, int]] | None = None) -> float:
        """Does a ready unit's next action; gives back the microseconds that it takes."""
        action = self.pending[unit]
        meddler = self.interference
        if meddler is not None:
            meddler.begin_step(script)
            if not self._passed[unit] and self._is_held(unit, action, meddler):
                return 0.0
        kind = type(action)
        begin, spent = self.now, 0.0 if self._duration is None else self._duration(unit, action)  # type: ignore[arg-type]
        if meddler is not None:
            spent *= meddler.slowness(self.units[unit])
        result: Any = None
        detail: Any = None
        if kind is Compute:
            result = action.work()  # type: ignore[union-attr]
            if meddler is not None:
                result = meddler.computed(self.units[unit], action, result)  # type: ignore[arg-type]
        elif kind is Read:
            result = self._read(unit, action)  # type: ignore[arg-type]
        elif kind is Write:
            detail = self._write(unit, action)  # type: ignore[arg-type]
        elif kind is Await or kind is Barrier:
            ended = self._wait_for(unit, action)  # type: ignore[arg-type]
            if ended is None:
                return 0.0
            result, outcome, begin, detail = ended
            self._note(Happening(unit, action, begin, self.now, outcome, "", detail))
            self._advance(unit, result)
            return spent
        elif kind is Signal:
            # The log's entry comes first: its number is what those that it wakes are satisfied by.
            self._note(Happening(unit, action, begin, begin + spent, "ok"))
            self._signal(action.flag, action.value)  # type: ignore[union-attr]
            self._wipe(unit, action)  # type: ignore[arg-type]
            self._advance(unit, None)
            return spent
        elif kind is Fence:
            entries = self.buffers[unit].entries
            if entries and (
                meddler is None or meddler.fences(self.units[unit], action, [entry.own for entry in entries])  # type: ignore[arg-type]
            ):
                while entries:
                    self.drain(unit, 0)
        elif kind is Add:
            self._add(unit, action)  # type: ignore[arg-type]
        if self._keeps_log:
            self._note(Happening(unit, _without_values(action), begin, begin + spent, "ok", "", detail))
        self._advance(unit, result)
        return spent

    def drain(self, unit: int, position: int) -> None:
        """One word of a unit's store buffer reaches memory."""
        buffer = self.buffers[unit]
        if buffer.overlaps_older(position):
            raise ValueError(f"word {position} of unit {unit} can't drain before an older one in the same place")
        entry = buffer.entries.pop(position)
        self._store(entry.span, entry.values)
        entry.values = _NO_VALUES  # the log keeps the entry
        self._note(Happening(unit, None, self.now, self.now, "ok", "drain", entry))

    def time_out(self, unit: int, script: frozenset[tuple[int, int]] | None = None) -> None:
        """A blocked unit gives up waiting."""
        if self.interference is not None:
            self.interference.begin_step(script)
        action = self.pending[unit]
        assert isinstance(action, Await | Barrier)
        missing = self._missing(action)
        self._stop_waiting(unit, action)
        self._note(Happening(unit, action, self._began[unit], self.now, "timeout", "", self._signals_of(action)))
        self.state[unit] = State.READY
        self._advance(unit, missing)

    def wake(self, unit: int) -> None:
        """A sleeping unit is ready again."""
        self.state[unit] = State.READY

    def flush(self) -> None:
        """Drains every store buffer, and notes the waits that never ended: the end of a call."""
        for unit, state in enumerate(self.state):
            if state is State.BLOCKED:
                action = self.pending[unit]
                assert isinstance(action, Await | Barrier)
                self._note(Happening(unit, action, self._began[unit], self.now, "dead", "", self._signals_of(action)))
        for unit, buffer in enumerate(self.buffers):
            while buffer.entries:
                self.drain(unit, 0)

    # ---- states as values -------------------------------------------------------------------------------------------

    def save(self) -> Saved:
        """The state, so that the run can be taken up again from here. Its log, results and clock aren't part of it."""
        flags = self.flags
        return Saved(
            self.memory.arena.tobytes(),
            frozenset(flags.items()),
            # A wait whose flags are all there can't time out again: how often it did is of no account any more.
            frozenset(
                item for item in self._timeouts.items() if any(flags.get(flag, 0) < item[0][2] for flag in item[0][1])
            ),
            tuple(tuple((e.number, e.span, e.values, e.own) for e in buffer.entries) for buffer in self.buffers),
            tuple(zip(self.state, self._passed, self._arrived, self._watched, strict=True)),
        )

    def load(self, saved: Saved, pending: Iterable[Action | None]) -> None:
        """Goes back to a saved state, with the action that each unit's program is about to do in it."""
        self.memory.arena[:] = np.frombuffer(saved.memory, dtype=np.uint8)
        self.flags, self._seen = dict(saved.flags), None
        self._timeouts = dict(saved.timeouts)
        self.pending = list(pending)
        self.results, self.errors, self.woken, self._waiting = {}, [], [], {}
        for unit, (state, passed, arrived, watched) in enumerate(saved.units):
            self.buffers[unit].entries = [Entry(*fields) for fields in saved.buffers[unit]]
            self.state[unit], self._passed[unit], self._arrived[unit] = state, passed, arrived
            self._watched[unit] = watched
            if state is State.BLOCKED:
                action = self.pending[unit]
                assert isinstance(action, Await | Barrier)
                self._waiting.setdefault(_awaited(action)[watched], []).append(unit)
        self._running = sum(state < State.DONE for state in self.state)

    # ---- how ----------------------------------------------------------------------------------------------------

    def _advance(self, unit: int, result: Any) -> None:
        self._passed[unit] = self._arrived[unit] = False
        try:
            self.pending[unit] = self._programs[unit].send(result)
        except StopIteration as stop:
            self.pending[unit] = None
            self.state[unit] = State.DONE
            self._running -= 1
            self.results[self.units[unit]] = stop.value
        except SteadySumError as error:
            self.pending[unit] = None
            self.state[unit] = State.RAISED
            self._running -= 1
            self.errors.append((self.units[unit], error))
            self._note(Happening(unit, None, self.now, self.now, "raised", "raised", error))

    def _is_held(self, unit: int, action: Any, meddler: Interference) -> bool:
        """Whether a fault keeps the unit from its action, now or for ever."""
        self._passed[unit] = True
        if meddler.dies(self.units[unit], action.place):
            self.state[unit] = State.DEAD
            self._running -= 1
            self._note(Happening(unit, None, self.now, self.now, "dead", "dead", action))
            return True
        sleep = meddler.delay(self.units[unit], action)
        if sleep > 0.0:
            self.state[unit], self.sleep[unit] = State.ASLEEP, sleep
            self._note(Happening(unit, None, self.now, self.now + sleep, "ok", "fault", f"delay of {sleep:g} us"))
            return True
        return False

    def _write(self, unit: int, action: Write) -> tuple[int, ...]:
        meddler, buffer, memory = self.interference, self.buffers[unit], self.memory
        words = action.words if meddler is None else meddler.written(self.units[unit], action)
        numbers = []
        for span, values in words:
            whole = memory.whole_lines(span)
            if whole != span:  # the rest of the line drains with it, as the unit sees it now
                line = memory.load(whole)
                buffer.over(whole, line)
                line[span.start - whole.start : span.stop - whole.start] = values
                values = line
            self._words += 1
            numbers.append(self._words)
            buffer.entries.append(Entry(self._words, whole, values, span))
        return tuple(numbers)

    def _read(self, unit: int, action: Read) -> list[NDArray[Any]]:
        meddler, buffer, arrays = self.interference, self.buffers[unit], self.memory.arrays
        values = [arrays[region][start:stop].copy() for region, start, stop in action.spans]
        if buffer.entries and (meddler is None or meddler.forwards(self.units[unit], action)):
            for span, part in zip(action.spans, values, strict=True):
                buffer.over(span, part)
        return values if meddler is None else meddler.read(self.units[unit], action, values)

    def _add(self, unit: int, action: Add) -> None:
        meddler, (span, values) = self.interference, action.word
        times = 1 if meddler is None else meddler.additions(self.units[unit], action.place, action.word)
        for _ in range(times):
            self._store(span, self.memory.arrays[span.region][span.start : span.stop] + values)

    def _store(self, span: Span, values: NDArray[Any]) -> None:
        if self.interference is not None:
            self.interference.stored(span, self.memory.load(span))
        self.memory.store(span, values)

    def _signal(self, flag: Flag, value: int) -> None:
        if value <= self.flags.get(flag, 0):
            return
        self.flags[flag] = value
        self._signals[flag] = len(self.log) - 1
        self._seen = None
        flags: tuple[Flag, ...] = ()
        first, limit, position = -1, 0, 0
        for waiter in self._waiting.pop(flag, ()):
            action = self.pending[waiter]
            assert isinstance(action, Await | Barrier)
            # Units at one barrier wait for the same flags: the first of them looks for the next one, the others follow.
            if _awaited(action) is not flags or self._watched[waiter] != first or action.value != limit:
                flags, first, limit = _awaited(action), self._watched[waiter], action.value
                position = self._next_missing(flags, limit, first)
            if position < len(flags):
                self._watch(waiter, flags, position)
            else:
                self._watched[waiter] = 0
                self.state[waiter] = State.READY
                self.woken.append(waiter)

    def _next_missing(self, flags: tuple[Flag, ...], value: int, first: int) -> int:
        """Position of the first flag, from this one on, that isn't there; their number: all are."""
        get = self.flags.get
        for position in range(first, len(flags)):
            if get(flags[position], 0) < value:
                return position
        return len(flags)

    def _watch(self, unit: int, flags: tuple[Flag, ...], position: int) -> None:
        """Makes a unit wait for this one of its action's flags."""
        self._watched[unit] = position
        self._waiting.setdefault(flags[position], []).append(unit)

    def _wipe(self, unit: int, action: Signal | Barrier) -> None:
        """A fault may reset flags right after a signal."""
        if self.interference is not None:
            for flag in self.interference.signalled(self.units[unit], action, self.memory):
                self.flags.pop(flag, None)
                self._seen = None

    def _wait_for(self, unit: int, action: Await | Barrier) -> tuple[tuple[Flag, ...], str, float, Any] | None:
        """How a wait ends at once: what is missing, its outcome, its begin, the signals. None: the unit is blocked."""
        if self.state[unit] is State.READY and self._arrived[unit]:  # woken
            return (), "ok", self._began[unit], self._signals_of(action)
        self._began[unit] = self.now
        if type(action) is Barrier:
            self._note(Happening(unit, action, self.now, self.now, "ok", "arrive"))
            self._signal(action.own, action.value)
            self._wipe(unit, action)
        flags = _awaited(action)
        position = self._next_missing(flags, action.value, 0)
        if position == len(flags):
            return (), "ok", self.now, self._signals_of(action)
        self._watch(unit, flags, position)
        if self.interference is not None:
            ending = self.interference.passes(self.units[unit], action)
            if ending is not None:
                self._stop_waiting(unit, action)
                missing = () if ending == "ok" else self._missing(action)
                return missing, ending, self.now, self._signals_of(action)
        self._arrived[unit] = True
        self.state[unit] = State.BLOCKED
        return None

    def _missing(self, action: Await | Barrier) -> tuple[Flag, ...]:
        return tuple(flag for flag in _awaited(action) if self.flags.get(flag, 0) < action.value)

    def _signals_of(self, action: Await | Barrier) -> tuple[int, ...]:
        """The signals that an awaiting unit has seen; of one that gave up, those that had come."""
        if not self._keeps_log:
            return ()
        flags, value, get = _awaited(action), action.value, self.flags.get
        # All units that a barrier lets go see the same signals: the first of them looks, the others take its answer.
        if self._seen is not None and self._seen[0] is flags and self._seen[1] == value:
            return self._seen[2]
        signals = tuple(self._signals.get(flag, -1) for flag in flags if get(flag, 0) >= value)
        self._seen = (flags, value, signals)
        return signals

    def _stop_waiting(self, unit: int, action: Await | Barrier) -> None:
        self._waiting[_awaited(action)[self._watched[unit]]].remove(unit)
        self._watched[unit] = 0

    def _note(self, happening: Happening) -> None:
        if self._keeps_log:
            self.log.append(happening)


_NO_VALUES = np.empty(0)


def _without_values(action: Any) -> Any:
    """An action as the log keeps it: without the arrays that it carries, which would stay in memory."""
    kind = type(action)
    if kind is Compute:
        return Compute(action.place, _no_work, action.cost, action.label)
    if kind is Write:
        return Write(action.place, tuple(Word(span, _NO_VALUES) for span, _ in action.words))
    if kind is Add:
        return Add(action.place, Word(action.word.span, _NO_VALUES))
    return action


def _no_work() -> None:
    return None


def _awaited(action: Await | Barrier) -> tuple[Flag, ...]:
    return action.flags if type(action) is Await else action.members  # type: ignore[union-attr]


def _wait(unit: int, action: Await | Barrier) -> tuple[int, tuple[Flag, ...], int]:
    return unit, _awaited(action), action.value
