"""ThreadRunner: races are real on real threads, and the proven protocol has none."""

from __future__ import annotations

import os
import signal as signals
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from steadysum.errors import SyncTimeout
from steadysum.sync.actions import Compute, Note, Program, Signal, Write
from steadysum.sync.exchange_model import Exchange, returned
from steadysum.sync.interference import Interference
from steadysum.sync.policies import ENHANCED, LEGACY, Parts
from steadysum.sync.threads import ThreadRunner
from steadysum.trace.events import Unit

from .litmus import PLACE, X, add, await_flag, launch, read, signal, write

CALLS = 10_000
TIMEOUT = 1_000.0  # microseconds of a wait
DELAY = 20_000.0  # much longer than the one wait of `legacy`
EVERY = 200  # calls, of which core 0 is late in one
BITS = 20  # of a sum for each core: the sum tells of which call each core's partial is
PATIENT = 60_000  # retries: a minute, much longer than any delay on a busy machine


class Late(Interference):
    """Core 0 sleeps before it writes, in some calls."""

    def __init__(self) -> None:
        super().__init__()
        self.acted_on: list[int] = []

    def delay(self, unit: Unit, action: object) -> float:
        if unit.core == 0 and isinstance(action, Write) and action.place.epoch % EVERY == 0:
            self.acted_on.append(action.place.epoch)
            return DELAY
        return 0.0


def epoch_in_a_field(core: int, epoch: int, cores: int) -> int:
    return epoch << (BITS * core)


def exchange(parts: Parts, calls: int, retries: int) -> Exchange:
    return Exchange(2, calls, parts, retries, epoch_in_a_field, timeout=TIMEOUT, heartbeat=TIMEOUT)


def stale(results: list[int]) -> list[int]:
    """The calls whose result holds a partial of core 0 that is older than the call."""
    return [epoch for epoch, result in enumerate(results, 1) if result % 2**BITS < epoch]


def test_legacy_reads_stale_partials_when_a_core_is_really_late() -> None:
    late = Late()
    run = ThreadRunner().run(exchange(LEGACY, CALLS // 10, 1).launch(late, log=False))
    assert late.acted_on == list(range(EVERY, CALLS // 10 + 1, EVERY))
    assert set(late.acted_on) & set(stale(run.results[Unit(1, "core")]))
    assert run.errors == ()


def test_enhanced_reads_none_in_ten_thousand_calls_of_the_same() -> None:
    late, made = Late(), exchange(ENHANCED, CALLS, PATIENT)
    run = ThreadRunner().run(made.launch(late, log=False))
    assert len(late.acted_on) == CALLS // EVERY
    assert run.errors == run.stuck == run.dead == ()
    assert set(run.results) == set(made.units)
    for results in run.results.values():
        assert results == [made.wanted(epoch) for epoch in range(1, CALLS + 1)]


def test_a_busy_machine_makes_calls_slower_and_none_wrong() -> None:
    spin = [sys.executable, "-c", "import time; end = time.time() + 60\nwhile time.time() < end: pass"]
    load = [subprocess.Popen(spin) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        made = exchange(ENHANCED, 300, PATIENT)
        run = ThreadRunner().run(made.launch(Late(), log=False))
    finally:
        for process in load:
            process.kill()
            process.wait()
    assert run.errors == ()
    assert all(results == [made.wanted(epoch) for epoch in range(1, 301)] for results in run.results.values())


def test_a_dead_core_is_named_in_real_time() -> None:
    class Dies(Interference):
        def dies(self, unit: Unit, place: object) -> bool:  # noqa: ARG002 - the hook's signature
            return unit.core == 1

    run = ThreadRunner().run(exchange(ENHANCED, 1, 3).launch(Dies()))
    assert run.dead == (Unit(1, "core"),)
    ((unit, error),) = run.errors
    assert unit == Unit(0, "core")
    assert isinstance(error, SyncTimeout)
    assert error.cores == (1,)
    assert run.time >= 4 * TIMEOUT  # 1 + 3 waits, in microseconds
    assert not any(isinstance(happening.action, Write) for happening in run.log)


def test_the_log_has_real_times_and_no_schedule() -> None:
    before = time.perf_counter() * 1e6
    run = ThreadRunner().run(Exchange(2, 3, ENHANCED, PATIENT).launch())
    after = time.perf_counter() * 1e6
    assert run.schedule.choices == ()
    assert sorted(returned(run.log)) == [(unit, epoch, 3 << 2 * (epoch - 1)) for unit in (0, 1) for epoch in (1, 2, 3)]
    assert all(before <= happening.begin <= happening.end <= after for happening in run.log)
    assert 0 < run.time <= after - before


def test_a_wait_is_told_by_the_number_of_the_signal_that_ended_it() -> None:
    def signals() -> Program:
        yield signal()

    def waits() -> Program:
        yield await_flag()

    log = ThreadRunner().run(launch(signals, waits)).log
    (number,) = (number for number, happening in enumerate(log) if isinstance(happening.action, Signal))
    (seen,) = (happening.detail for happening in log if happening.action == await_flag())
    assert seen == (number,)


def test_additions_by_many_threads_are_never_lost() -> None:
    def adds() -> Program:
        for _ in range(500):
            yield add(X, 1)

    began = launch(adds, adds, adds)
    ThreadRunner().run(began)
    assert began.memory.arrays["x"][0] == 1500


def test_units_that_nobody_can_wake_any_more_are_stuck_and_the_run_ends() -> None:
    def waits() -> Program:
        yield await_flag()

    def ends() -> Program:
        yield Note(PLACE, "check", "ok", "ends without a signal", 0)

    run = ThreadRunner().run(launch(waits, ends, waits))
    assert run.stuck == (Unit(0, "core"), Unit(2, "core"))
    assert list(run.results) == [Unit(1, "core")]


def test_a_signal_wakes_a_wait_without_a_timeout() -> None:
    def waits() -> Program:
        missing = yield await_flag()
        return missing, int((yield read(X))[0][0])

    def writes() -> Program:
        yield write((X, 5))
        yield signal()

    for _ in range(50):
        run = ThreadRunner().run(launch(waits, writes))
        assert run.results[Unit(0, "core")] == ((), 5)


def test_the_first_error_ends_all_units_where_the_launch_says_so() -> None:
    def raises() -> Program:
        yield Note(PLACE, "check", "ok", "", 0)
        raise SyncTimeout("test", "nothing", "something", "Do nothing.")

    def waits() -> Program:
        yield await_flag(timeout=60e6)

    began = time.perf_counter()
    run = ThreadRunner().run(launch(waits, raises)._replace(stops_at_error=True))
    assert [unit for unit, _ in run.errors] == [Unit(1, "core")]
    assert run.results == {}
    assert run.stuck == ()
    assert time.perf_counter() - began < 30


def test_an_error_that_is_not_ours_comes_through_and_no_thread_stays() -> None:
    def breaks() -> Program:
        yield Compute(PLACE, lambda: 1 // 0, 0.0, "division")

    def waits() -> Program:
        yield await_flag(timeout=60e6)

    before = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        ThreadRunner().run(launch(waits, breaks))
    assert threading.active_count() == before


def test_ctrl_c_ends_all_threads() -> None:
    def interrupts() -> Program:
        yield Compute(PLACE, interrupt_main, 0.0, "Ctrl-C")
        yield await_flag(timeout=60e6)

    def interrupt_main() -> None:
        time.sleep(0.05)  # until the main thread waits for this one
        signals.pthread_kill(threading.main_thread().ident or 0, signals.SIGINT)

    before, began = threading.active_count(), time.perf_counter()
    handler = signals.signal(signals.SIGINT, signals.default_int_handler)  # whatever other tests have left there
    try:
        with pytest.raises(KeyboardInterrupt):
            ThreadRunner().run(launch(interrupts))
    finally:
        signals.signal(signals.SIGINT, handler)
    assert threading.active_count() == before
    assert time.perf_counter() - began < 30


def test_a_write_reaches_real_memory_and_faults_reach_the_write() -> None:
    made = Exchange(1, 1, ENHANCED._replace(heartbeat=False))
    memory = made.launch()
    ThreadRunner().run(memory)
    assert memory.memory.arrays["value 0"][0] == 1
    dropping = made.launch(DropsAll())
    (error,) = (error for _, error in ThreadRunner().run(dropping).errors)
    assert error.cores == (0,)
    assert np.all(dropping.memory.arrays["value 0"] == 0)


class DropsAll(Interference):
    """No word reaches memory."""

    def written(self, unit: Unit, action: Write) -> tuple:  # noqa: ARG002 - the hook's signature
        return ()
