"""ThreadRunner: the same programs on real threads over real shared memory, where races are real.

One thread for each unit. There is no store buffer but the host's, so that what a fault does to one (a longer stay in
it, a fence that doesn't work) has no effect here; nor does a factor of slowness. All other hooks act, and a delay
really sleeps. Timeouts run in real time: on a busy machine a call takes longer, and under `legacy` more of them are
wrong.

This is for demonstrations at tiny shapes. Whether a protocol is right is the business of exhaustive.py and
virtual.py; what happened here can't be replayed, so the schedule of its runs is empty.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
    Note,
    Program,
    Read,
    Signal,
    Word,
    Write,
)
from steadysum.sync.machine import Happening
from steadysum.sync.memory import Entry
from steadysum.sync.schedule import Schedule
from steadysum.sync.virtual import Launch, Run
from steadysum.trace.events import Unit

__all__ = ["ThreadRunner"]


@dataclass(frozen=True)
class ThreadRunner:
    """Runs programs on threads, in real time. Ctrl-C ends all of them, and is raised again."""

    def run(self, launch: Launch, call: int | str = 0) -> Run:  # noqa: ARG002 - nothing is drawn by it
        """One run. Its schedule is empty, times are microseconds of time.perf_counter, and `retries` isn't asked.

        Raises:
            Exception: that a program raised, if it is no SteadySumError; those are in the run's errors.
        """
        return _Threads(launch).run()


class _StopError(Exception):
    """Ends a thread's program: the run is over."""


class _StuckError(Exception):
    """Ends a thread whose unit waits for ever."""


class _DeadError(Exception):
    """Ends a thread whose unit a fault has stopped."""


class _Threads:
    """One run. Flags and everything that is counted are guarded by `_changed`; memory isn't guarded at all."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._memory = launch.memory
        self._meddler = launch.interference
        self._changed = threading.Condition()
        self._hooks = threading.Lock()  # interference isn't made for threads
        self._adds = threading.Lock()
        self._over = threading.Event()
        self._flags: dict[Flag, int] = {}
        self._signals: dict[Flag, int] = {}  # number of the happening that set a flag last
        self._for_ever: dict[int, Await | Barrier] = {}  # the unit's waits without a timeout
        self._left = 0  # threads that haven't ended
        self._active = 0  # units that may still signal: neither ended nor waiting for ever
        self._words = 0
        self._log: list[Happening] = []
        self._results: dict[Unit, Any] = {}
        self._errors: list[tuple[Unit, SteadySumError]] = []
        self._stuck: list[Unit] = []
        self._dead: list[Unit] = []
        self._broken: list[BaseException] = []  # errors that aren't steadysum's

    def run(self) -> Run:
        launch, meddler = self._launch, self._meddler
        began = _now()
        if meddler is not None:
            meddler.begin_step(None)
        if launch.begin is not None:
            launch.begin()
        if meddler is not None:
            meddler.begin_run(self._memory)
        programs = launch.programs()
        self._active = len(programs)
        threads = [
            threading.Thread(target=self._unit, args=(number, unit, program), name=str(unit), daemon=True)
            for number, (unit, program) in enumerate(programs.items())
        ]
        try:
            for thread in threads:
                self._left += 1
                thread.start()
            self._wait_for_all()
        except BaseException:  # Ctrl-C: no thread outlives its run
            self._end_all()
            self._wait_for_all()
            raise
        if self._broken:
            raise self._broken[0]
        if meddler is not None:
            meddler.begin_step(None)
        if launch.end is not None:
            launch.end()
        return Run(
            self._results,
            tuple(self._errors),
            tuple(sorted(self._stuck)),
            tuple(sorted(self._dead)),
            Schedule(()),
            tuple(programs),
            tuple(self._log),
            _now() - began,
        )

    # ---- one unit's thread ------------------------------------------------------------------------------------------

    def _unit(self, number: int, unit: Unit, program: Program) -> None:
        try:
            result: Any = None
            while not self._over.is_set():
                action = program.send(result)
                self._before(number, unit, action)
                result = self._do(number, unit, action)
        except StopIteration as stop:
            self._results[unit] = stop.value
        except SteadySumError as error:
            with self._changed:
                self._errors.append((unit, error))
                self._note(Happening(number, None, _now(), _now(), "raised", "raised", error))
            if self._launch.stops_at_error:
                self._end_all()
        except _DeadError:
            self._dead.append(unit)
        except _StuckError:
            self._stuck.append(unit)
        except _StopError:
            pass
        except BaseException as error:
            self._broken.append(error)
            self._end_all()
        finally:
            program.close()
            with self._changed:
                self._active -= number not in self._for_ever
                self._left -= 1
                self._changed.notify_all()

    def _wait_for_all(self) -> None:
        # Not by Thread.join: Python 3.11 takes a thread for ended whose join was interrupted.
        with self._changed:
            while self._left:
                self._changed.wait()

    def _end_all(self) -> None:
        with self._changed:
            self._over.set()
            self._changed.notify_all()

    def _before(self, number: int, unit: Unit, action: Action) -> None:
        """What a fault does before an action: the unit dies, or sleeps."""
        if self._meddler is None:
            return
        with self._hooks:
            self._meddler.begin_step(None)
            dies = self._meddler.dies(unit, action.place)
            delay = 0.0 if dies else self._meddler.delay(unit, action)
        if dies:
            self._note(Happening(number, None, _now(), _now(), "dead", "dead", action))
            raise _DeadError
        if delay > 0.0:
            self._note(Happening(number, None, _now(), _now() + delay, "ok", "fault", f"delay of {delay:g} us"))
            if self._over.wait(delay * 1e-6):
                raise _StopError

    def _do(self, number: int, unit: Unit, action: Action) -> Any:
        begin = _now()
        result: Any = None
        if isinstance(action, Await | Barrier):
            return self._wait(number, unit, action, begin)
        if isinstance(action, Signal):
            with self._changed:
                self._note(Happening(number, action, begin, begin, "ok"))
                self._signal(action.flag, action.value)
                self._wipe(unit, action)
            return None
        if isinstance(action, Write):
            self._write(number, unit, action, begin)
            return None
        if isinstance(action, Compute):
            result = action.work()
            if self._meddler is not None:
                with self._hooks:
                    result = self._meddler.computed(unit, action, result)
        elif isinstance(action, Read):
            result = self._read(unit, action)
        elif isinstance(action, Add):
            self._add(unit, action)
        elif isinstance(action, Fence):
            with self._adds:  # a lock orders what was written before it on every host
                pass
        else:
            assert isinstance(action, Note)
        self._note(Happening(number, action, begin, _now(), "ok"))
        return result

    # ---- memory -----------------------------------------------------------------------------------------------------

    def _write(self, number: int, unit: Unit, action: Write, begin: float) -> None:
        words: Sequence[Word] = action.words
        if self._meddler is not None:
            with self._hooks:
                words = self._meddler.written(unit, action)
        with self._changed:
            numbers = tuple(range(self._words + 1, self._words + 1 + len(words)))
            self._words += len(words)
        self._note(Happening(number, action, begin, _now(), "ok", "", numbers))
        for name, (span, values) in zip(numbers, words, strict=True):
            self._store(Word(span, values))
            self._note(Happening(number, None, _now(), _now(), "ok", "drain", Entry(name, span, values, span)))

    def _store(self, word: Word) -> None:
        if self._meddler is not None:
            with self._hooks:
                self._meddler.stored(word.span, self._memory.load(word.span))
        self._memory.store(word.span, word.values)

    def _read(self, unit: Unit, action: Read) -> list[NDArray[Any]]:
        values = [self._memory.load(span) for span in action.spans]
        if self._meddler is not None:
            with self._hooks:
                values = self._meddler.read(unit, action, values)
        return values

    def _add(self, unit: Unit, action: Add) -> None:
        times = 1
        if self._meddler is not None:
            with self._hooks:
                times = self._meddler.additions(unit, action.place, action.word)
        for _ in range(times):
            with self._adds:
                self._store(Word(action.word.span, self._memory.load(action.word.span) + action.word.values))

    # ---- flags ------------------------------------------------------------------------------------------------------

    def _signal(self, flag: Flag, value: int) -> None:
        if value <= self._flags.get(flag, 0):
            return
        self._flags[flag] = value
        self._signals[flag] = len(self._log) - 1
        for number, action in list(self._for_ever.items()):
            if not self._missing(action):
                del self._for_ever[number]
                self._active += 1
        self._changed.notify_all()

    def _wipe(self, unit: Unit, action: Signal | Barrier) -> None:
        if self._meddler is not None:
            with self._hooks:
                for flag in self._meddler.signalled(unit, action, self._memory):
                    self._flags.pop(flag, None)

    def _wait(self, number: int, unit: Unit, action: Await | Barrier, begin: float) -> tuple[Flag, ...]:
        """The flags that didn't come."""
        outcome = "ok"
        with self._changed:
            if isinstance(action, Barrier):
                self._note(Happening(number, action, begin, begin, "ok", "arrive"))
                self._signal(action.own, action.value)
                self._wipe(unit, action)
            missing = self._missing(action)
            if missing and self._meddler is not None:
                with self._hooks:
                    ending = self._meddler.passes(unit, action)
                if ending is not None:
                    outcome = ending
                    missing = () if ending == "ok" else missing
            if missing and outcome == "ok":
                if action.timeout is None:
                    self._wait_for_ever(number, action)
                    missing = ()
                else:
                    missing = self._wait_until(action, begin + action.timeout)
                outcome = "timeout" if missing else "ok"
            seen = tuple(
                self._signals.get(flag, -1) for flag in _awaited(action) if self._flags.get(flag, 0) >= action.value
            )
            self._note(Happening(number, action, begin, _now(), outcome, "", seen))
        return missing

    def _wait_until(self, action: Await | Barrier, end: float) -> tuple[Flag, ...]:
        while missing := self._missing(action):
            left = end - _now()
            if left <= 0.0:
                break
            self._changed.wait(left * 1e-6)
            if self._over.is_set():
                raise _StopError
        return missing

    def _wait_for_ever(self, number: int, action: Await | Barrier) -> None:
        self._for_ever[number] = action
        self._active -= 1
        self._changed.notify_all()
        while number in self._for_ever:
            if self._over.is_set():
                raise _StopError
            if self._active == 0:  # nobody is left who could signal
                raise _StuckError
            self._changed.wait()

    def _missing(self, action: Await | Barrier) -> tuple[Flag, ...]:
        get = self._flags.get
        return tuple(flag for flag in _awaited(action) if get(flag, 0) < action.value)

    def _note(self, happening: Happening) -> None:
        if self._launch.log:
            self._log.append(happening)


def _awaited(action: Await | Barrier) -> tuple[Flag, ...]:
    return action.flags if isinstance(action, Await) else action.members


def _now() -> float:
    return time.perf_counter() * 1e6
