"""npu.synchronize(force=True): every device is waited for, and the processes' clocks are laid over each other."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import multiprocessing

import steadysum.compat.torch_npu as torch_npu
from steadysum.compat import emulated, forced_sync, saying
from steadysum.cores.device import Device
from steadysum.errors import OperandTypeError, OptionError
from steadysum.kernels import ascend
from steadysum.trace.alignment import REFERENCE, Alignment

SKEW = 5e6  # microseconds by which the second process's clock is ahead
FAST = 1.001  # and how much faster it runs


@pytest.fixture(autouse=True)
def _nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saying, "_said", set())
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)


def worker(rank: int, folder: str) -> None:
    """Synchronises before some work and after it; the second process's clock is another one."""
    torch.distributed.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=2)
    if rank == 1:
        forced_sync.perf_clock = lambda: SKEW + FAST * time.perf_counter() * 1e6
    first = torch_npu.npu.synchronize(force=True)
    time.sleep(0.3)
    begin = time.perf_counter() * 1e6
    second = torch_npu.npu.synchronize(force=True)
    torch.save((first, second, begin), Path(folder) / f"{rank}.pt")
    torch.distributed.destroy_process_group()


def test_clocks_of_two_processes_are_laid_over_each_other_within_the_stated_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[2])  # the processes import `worker` from tests
    multiprocessing.spawn(worker, (str(tmp_path),), nprocs=2)
    found: list[tuple[Alignment, Alignment, float]] = [
        torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(2)
    ]
    assert found[0][:2] == (REFERENCE, REFERENCE)
    # Both processes read the same clock of the machine: what the second one's shows at a time is known.
    _, both, time_between = found[1]
    shown = SKEW + FAST * time_between
    error = abs(both.to_reference(shown) - time_between)
    assert error <= both.error_at(shown)
    assert both.error_at(shown) < 0.1e6  # under a tenth of a second, on a busy machine, of a skew of 5 s
    assert abs(both.drift - (FAST - 1)) <= both.drift_error


def test_one_process_alone_has_the_reference_clock_and_is_told_that_nothing_was_waited_for() -> None:
    with pytest.warns(UserWarning, match=r"^synchronize has no effect.*operators on the CPU have done.*no other proc"):
        assert torch_npu.npu.synchronize(force=True) is REFERENCE
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch_npu.synchronize(force=True) is REFERENCE


def test_an_emulated_device_has_nothing_to_wait_for() -> None:
    with (
        emulated.active(Device(2)),
        pytest.warns(UserWarning, match="calls of an emulated device have ended when they return"),
    ):
        assert torch_npu.npu.synchronize() is None


def test_every_device_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    class Chip:
        device_count = staticmethod(lambda: 3)
        synchronize = staticmethod(calls.append)

    monkeypatch.setattr(ascend, "devices", Chip)
    assert torch_npu.npu.synchronize(force=True) is REFERENCE
    assert calls == [0, 1, 2]
    monkeypatch.setattr(ascend, "devices", lambda: "no NPU")
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch.accelerator, "synchronize", calls.append)
    assert torch_npu.npu.synchronize(force=True) is REFERENCE
    assert calls == [0, 1, 2, 0, 1]


def test_mistakes_are_told() -> None:
    with pytest.raises(OperandTypeError, match="type of force: got int; allowed: bool"):
        torch_npu.npu.synchronize(force=1)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"device: got 'npu:0'; allowed: None, with force=True\. A forced"):
        torch_npu.npu.synchronize("npu:0", force=True)
