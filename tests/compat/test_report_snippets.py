"""The field report's snippets as it writes them, with `import torch_npu`, and what each gives on a CPU.

Only what moves tensors to the chip is left out of them, and where a snippet is about the chip's cores, an emulated
device is made active around it. Not here: each tool in full (the other files of this folder).
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import steadysum.compat.torch_npu as stand_in
from steadysum import align, linear_softmax
from steadysum.compat import emulated, saying
from steadysum.cores.device import Device
from steadysum.cores.load import Load
from steadysum.errors import AccuracyError
from steadysum.guard import protect
from steadysum.guard.checks import Redundant
from steadysum.settings import PROFILES, Settings
from steadysum.trace.latency import latency_of, sync_events, waits_of


@pytest.fixture(autouse=True)
def _torch_npu_is_ours(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(saying, "_said", set())
    monkeypatch.setitem(sys.modules, "torch_npu", stand_in)
    own = {name: getattr(stand_in, name) for name in ("npu", "utils", "contrib")}
    yield
    for name in [each for each in sys.modules if each.startswith("torch_npu.")]:
        del sys.modules[name]
    for name, module in own.items():  # `import torch_npu.utils` has put a module of that name in its place
        setattr(stand_in, name, module)


def report_shape(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1024, 256, generator=generator), torch.randn(256, 512, generator=generator)


def chip(policy: int = 0, level: float = 0.0, **how: Any) -> Device:
    return Device(settings=Settings(allreduce_policy=policy), load=Load(level), **how)


# ---- R5: the reproduction ----------------------------------------------------------------------------------------


def r5() -> list[str]:
    from torch_npu import fused_linear_online_max_sum

    printed = []
    x, weight = report_shape()
    baseline = None
    for i in range(100):
        current = fused_linear_online_max_sum(x, weight).mean().item()
        if baseline is None:
            baseline = current
        elif abs(current - baseline) > 1e-3:
            printed.append(f"Iter {i}: diff={abs(current - baseline):.6f}")
            break
    return printed


def test_r5_finds_nothing_on_this_machine_and_a_deviation_on_the_chip_that_it_was_written_for() -> None:
    assert r5() == []
    with emulated.active(chip(policy=0, level=1.0, keeps_log=False)) as device:
        [found] = r5()
    assert device.calls < 100
    assert found.startswith(f"Iter {device.calls - 1}: diff=")


def test_r5_finds_nothing_on_a_chip_whose_policy_proves_what_it_reads() -> None:
    with emulated.active(chip(policy=1, level=1.0, keeps_log=False)) as device:
        assert r5() == []
    assert device.calls == 100


# ---- R6, R8: sync events, and their latency ----------------------------------------------------------------------


def test_r6_and_r8_list_the_sync_events_of_a_call_and_their_latency() -> None:
    from torch_npu import fused_linear_online_max_sum

    with emulated.active(chip(level=1.0)) as device:
        fused_linear_online_max_sum(*report_shape())
        events = sync_events(device.trace().events)
        latency = latency_of(device.trace())
    assert all(event.end >= event.begin for event in events)
    assert {event.unit.core for event in events} == set(range(16))  # 16 tiles: as many cores have work
    assert {core.core for core in latency.cores} == set(range(16))
    assert waits_of(events).p99 > 0.0


# ---- R7: comparison ----------------------------------------------------------------------------------------------


def test_r7_compares_the_cpus_result_with_the_devices() -> None:
    from torch_npu import fused_linear_online_max_sum
    from torch_npu.utils.accuracy_tools import compare_accuracy

    x, weight = report_shape()
    cpu_result = linear_softmax(x.double(), weight.double().T)
    with emulated.active(chip()):
        npu_result = fused_linear_online_max_sum(x, weight)
    # A logit has 256 terms, and exp magnifies its rounding: (256 + 2) units of the sum of their sizes, at most 230.
    rtol = 258 * 230 * 2.0**-24
    assert compare_accuracy(npu_result, cpu_result, rtol=rtol).ok
    npu_result[7] *= 1.01
    found = compare_accuracy(npu_result, cpu_result, rtol=rtol)
    assert not found.ok
    assert found.tensors[0].rows == (7,)


# ---- R11: the expert's tools -------------------------------------------------------------------------------------


def r11() -> tuple[Any, Any, Any]:
    import torch_npu

    torch_npu.npu.debug.enable_comm_injection(True)
    x, weight = report_shape()
    for _ in range(20):
        torch_npu.fused_linear_online_max_sum(x, weight)
    clock = torch_npu.npu.synchronize(force=True)
    memory = torch_npu.npu.memory.check_integrity()
    return clock, memory, torch_npu.npu.debug.enable_comm_injection(False)


def test_r11_acts_on_the_active_chip() -> None:
    with emulated.active(chip(keeps_digests=True)), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # synchronize: nothing to wait for
        clock, memory, counts = r11()
    assert clock.offset == 0.0
    assert memory.ok  # a late core and a lost partial damage no memory
    assert sum(counts.values()) > 0


def test_r11_says_what_has_no_effect_where_no_chip_is_active() -> None:
    with pytest.warns(UserWarning, match="has no effect on this device") as said:
        _, memory, counts = r11()
    assert [str(each.message).split(" has ")[0] for each in said] == [
        "enable_comm_injection",
        "synchronize",
        "memory.check_integrity",
    ]
    assert not memory
    assert counts == {}


# ---- R12: stop-gaps ----------------------------------------------------------------------------------------------


def r12(x: Tensor, weight: Tensor) -> Tensor:
    import torch_npu

    torch_npu.npu.set_compile_mode(jit_compile=False)
    torch_npu.npu.config.allow_internal_format = False
    try:
        return torch_npu.safe_fused_linear(x, weight, max_retry=3)
    finally:
        torch_npu.npu.config.allow_internal_format = True


@pytest.mark.filterwarnings("ignore:.*has no effect on this device")
def test_r12_computes_a_wrong_softmax_again() -> None:
    x, weight = report_shape()
    assert torch.equal(r12(x, weight), linear_softmax(x, weight.T))
    with emulated.active(chip()) as device:
        right = r12(x, weight)
        stand_in.npu.debug.enable_comm_injection(True, ["dropped:core=3,phase=P2,site=sum,calls=2-3"])
        assert torch.equal(r12(x, weight), right)
        assert device.calls == 4  # one, and three for the second result
        stand_in.npu.debug.enable_comm_injection(True, ["dropped:core=3,phase=P2,site=sum"])
        with pytest.raises(AccuracyError, match=r"rows with a (sum|probability).*after 4 calls"):
            r12(x, weight)


# ---- R15, R16: settings ------------------------------------------------------------------------------------------


def test_r15_settings_in_an_ini_file_are_the_chips(tmp_path: Path) -> None:
    from torch_npu import fused_linear_online_max_sum

    file = tmp_path / "ge.ini"
    file.write_text("[GE]\nsync_wait_timeout = 2000\nallreduce_policy = 1\n")
    with emulated.active(Device(settings=Settings.from_ini(file))) as device:
        fused_linear_online_max_sum(*report_shape())
    assert device.policy == "enhanced"
    assert device.settings.sync_wait_timeout == 2000.0


@pytest.mark.parametrize("scenario", PROFILES)
def test_r16_each_profile_gets_a_late_core_and_a_lost_partial_right(scenario: str) -> None:
    from torch_npu import fused_linear_online_max_sum

    x, weight = report_shape()
    with emulated.active(Device(settings=Settings.profile(scenario), keeps_log=False)):
        right = fused_linear_online_max_sum(x, weight)
        stand_in.npu.debug.enable_comm_injection(True)
        assert all(torch.equal(fused_linear_online_max_sum(x, weight), right) for _ in range(25))
        counts = stand_in.npu.debug.enable_comm_injection(False)
    assert sum(counts.values()) > 0


# ---- R19: mixed precision ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("opt_level", ["O1", "O2"])
def test_r19_trains_in_mixed_precision(opt_level: str) -> None:
    from torch_npu.contrib import amp

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = amp.initialize(model, optimizer, opt_level=opt_level)
    x, y = torch.randn(64, 8), torch.randint(0, 4, (64,))
    losses = []
    for _ in range(50):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert model[0].weight.dtype == (torch.float32 if opt_level == "O1" else torch.bfloat16)
    assert optimizer.param_groups[0]["params"][0].dtype == torch.float32


# ---- R20: alignment ----------------------------------------------------------------------------------------------


def test_r20_aligns_each_row_to_64_bytes_and_changes_no_bit() -> None:
    from torch_npu import fused_linear_online_max_sum

    x, weight = torch.randn(10, 37), torch.randn(37, 50)
    aligned = align(x, 64)
    assert all(row.data_ptr() % 64 == 0 for row in aligned)
    assert torch.equal(fused_linear_online_max_sum(aligned, weight), fused_linear_online_max_sum(x, weight))


# ---- R22, R24: a module that does it all -------------------------------------------------------------------------


def softmax_layer(max_retries: int = 3) -> tuple[nn.Module, list[int]]:
    from torch_npu import SafeNPUModule, fused_linear_online_max_sum

    runs = []

    class SafeLinear(SafeNPUModule):
        def __init__(self) -> None:
            super().__init__(warm_up=10, max_retries=max_retries, bundles=None)
            self.weight = nn.Parameter(report_shape()[1], requires_grad=False)

        def _real_forward(self, x: Tensor) -> Tensor:
            runs.append(len(runs))
            return fused_linear_online_max_sum(x, self.weight)

        def _check_output(self, output: Tensor) -> bool:
            return bool(((output.sum(dim=-1) - 1).abs() < 1e-3).all())

    return SafeLinear(), runs


def test_r22_and_r24_warm_up_once_and_let_a_right_result_through() -> None:
    layer, runs = softmax_layer()
    x, weight = report_shape()
    assert torch.equal(layer(x), linear_softmax(x, weight.T))
    assert len(runs) == 10 + 1
    layer(x)
    assert len(runs) == 10 + 2


@pytest.mark.filterwarnings("ignore:SafeLinear")
def test_r24_retries_what_fails_its_check_and_raises_in_the_end() -> None:
    layer, runs = softmax_layer()
    x, _ = report_shape()
    with emulated.active(chip(keeps_log=False)):
        right = layer(x)
        done = len(runs)
        stand_in.npu.debug.enable_comm_injection(True, [f"dropped:core=3,phase=P2,site=sum,calls={done + 1}"])
        assert torch.equal(layer(x), right)
        assert len(runs) == done + 3  # the check names no rows: a rerun that passes is confirmed by another
        stand_in.npu.debug.enable_comm_injection(True, ["dropped:core=3,phase=P2,site=sum"])
        with pytest.raises(RuntimeError, match="accuracy check failed"):
            layer(x)
        assert len(runs) == done + 3 + 4


# ---- R23: redundant checks ---------------------------------------------------------------------------------------


def test_r23_a_result_that_isnt_the_same_twice_is_found_and_healed() -> None:
    from torch_npu import fused_linear_online_max_sum

    checked = protect(fused_linear_online_max_sum, checks=[Redundant()], bundles=None)
    x, weight = report_shape()
    with emulated.active(chip(keeps_log=False)):
        right = checked(x, weight)
        stand_in.npu.debug.enable_comm_injection(True, ["dropped:core=3,phase=P2,site=sum,calls=3"])
        assert torch.equal(checked(x, weight), right)
    [healing] = checked.guard.healings
    assert healing.outcome == "healed"
    assert healing.verdict.attribution == "transient"
