"""Tests of the process that an operator has for itself: however it ends, the results of the runs before are there."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from steadysum.diagnosis.isolation.arranged import Condition
from steadysum.diagnosis.isolation.inputs import MadeInputs, OwnInputs
from steadysum.diagnosis.isolation.kept import read_outputs
from steadysum.diagnosis.isolation.supervisor import Limits, Supervisor
from steadysum.errors import DiagnosisTargetError, DiagnosisTargetNotFoundError, RangeError

Supervise = Callable[..., Supervisor]


def test_a_right_operator_gives_one_digest_and_its_first_output_and_leaves_nothing(operators: Path) -> None:
    with Supervisor(f"{operators}:prints", OwnInputs()) as supervisor:
        batch = supervisor.run(20)
        pid = supervisor.pid
        assert batch.ending == ("complete", None, "")
        assert (len(batch.results), batch.deviating) == (20, 0)
        generator = torch.Generator().manual_seed(0)
        expected = torch.randint(-3, 4, (8, 16), generator=generator).float().sum(1)  # small integers: exact
        assert torch.equal(read_outputs(batch.kept[str(batch.first)]).tensors["value"], expected)
    assert not any(path.exists() for path in batch.kept.values())
    assert not Path(f"/proc/{pid}").exists()


def test_a_condition_that_never_acts_makes_runs_void(supervise: Supervise) -> None:
    supervisor = supervise("draws")
    assert (supervisor.run(5).draws, supervisor.run(5).deviating) == (True, 4)
    same = supervisor.run(5, [Condition("same_random_state")])
    assert (same.ending.kind, same.deviating, same.acted) == ("complete", 0, {"same_random_state": 5})
    void = supervisor.run(5, [Condition("filled_empties")])  # the operator makes no empty tensor
    assert void.ending == ("void", None, "never acted: filled_empties")
    unknown = supervisor.run(5, [Condition("full_moon")])
    assert (unknown.ending.kind, unknown.results) == ("void", ())
    assert "no condition is called full_moon; there are exact_inputs" in unknown.ending.detail


def test_an_exception_ends_the_runs_with_its_traceback_and_the_next_ones_go_on(supervise: Supervise) -> None:
    supervisor = supervise("seventh")
    batch = supervisor.run(20)
    assert (batch.ending.kind, batch.ending.run, len(batch.results)) == ("exception", 7, 6)
    assert "ValueError: seven is too many" in batch.ending.detail
    assert (supervisor.run(3).ending.kind, supervisor.starts) == ("complete", 1)


def test_a_segmentation_fault_is_named_with_the_run_and_the_line(supervise: Supervise) -> None:
    supervisor = supervise("segfault")
    batch = supervisor.run(20)
    assert (batch.ending.kind, batch.ending.run, len(batch.results)) == ("signal", 5, 4)
    assert "SIGSEGV (Segmentation fault)" in batch.ending.detail
    assert "in segfault" in batch.ending.detail
    assert list(batch.kept) == [batch.first]
    assert (supervisor.run(3).ending.kind, supervisor.starts) == ("complete", 2)


def test_a_process_that_leaves_is_told_from_one_that_crashes(supervise: Supervise) -> None:
    batch = supervise("leaves").run(5)
    assert (batch.ending.kind, batch.ending.run) == ("exit", 2)
    assert "exit status 3" in batch.ending.detail


def test_a_hang_is_ended_and_says_where_it_was(supervise: Supervise) -> None:
    batch = supervise("hangs", Limits(hang_s=4.0)).run(20)
    assert (batch.ending.kind, batch.ending.run, len(batch.results)) == ("hang", 4, 3)
    assert "no run ended for 4 s" in batch.ending.detail
    assert "in wait_for_a_peer" in batch.ending.detail


def test_ctrl_c_or_a_wish_to_stop_ends_the_runs_with_what_is_known(supervise: Supervise) -> None:
    supervisor = supervise("slow")
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    batch = supervisor.run(1000)
    assert batch.ending.kind == "interrupted"
    assert 0 < len(batch.results) < 1000
    ended: list[int] = []
    asked = supervisor.run(1000, stopped=lambda: bool(ended), progressed=ended.append)
    assert (asked.ending.kind, supervisor.starts) == ("stopped", 1)
    assert 0 < len(asked.results) < 1000


def test_mistakes_are_raised_before_any_run(operators: Path, tmp_path: Path) -> None:
    with pytest.raises(DiagnosisTargetNotFoundError, match="--inputs"):
        Supervisor(f"{operators}:right", MadeInputs("no_such_module:f"))
    with pytest.raises(RangeError, match="times > 0 s"):
        Supervisor(f"{operators}:right", OwnInputs(), Limits(hang_s=0.0))
    crashing = tmp_path / "crashing.py"
    crashing.write_text("import ctypes\nctypes.string_at(0)\n")
    with pytest.raises(DiagnosisTargetError, match=r"SIGSEGV .* while it loads"):
        Supervisor(f"{crashing}:f", OwnInputs())
    endless = tmp_path / "endless.py"
    endless.write_text("import time\ntime.sleep(1000)\n")
    with pytest.raises(DiagnosisTargetError, match="takes longer while it loads"):
        Supervisor(f"{endless}:f", OwnInputs(), Limits(load_s=4.0))


def test_memory_does_not_grow_with_the_number_of_runs(supervise: Supervise) -> None:
    supervisor = supervise("always_another")
    supervisor.run(500)
    before = _resident(supervisor.pid)
    supervisor.run(5000)
    assert _resident(supervisor.pid) - before < 2 << 20  # the journal has 24 bytes a run: 120 kB


def _resident(pid: int | None) -> int:
    """Bytes, from the second field of proc(5)'s statm."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
