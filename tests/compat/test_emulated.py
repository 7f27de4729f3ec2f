"""The vendor's vocabulary on the emulated device: its operators run there, faults can be injected, memory looked at."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import steadysum.compat.torch_npu as torch_npu
from steadysum import ops
from steadysum.compat import emulated, saying
from steadysum.cores.device import Device
from steadysum.cores.faults import Arm
from steadysum.cores.grid import Geometry
from steadysum.errors import GradientError, OperandTypeError, OptionError, RangeError, ShapeError
from steadysum.settings import Settings


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X, WEIGHT = draw(16, 12), draw(12, 40, seed=1)
TARGET = torch.arange(16) + 5


def chip(policy: int = 0, **how: object) -> Device:
    return Device(3, Settings(allreduce_policy=policy), geometry=Geometry(8, 8), **how)  # type: ignore[arg-type]


@pytest.fixture
def device() -> Iterator[Device]:
    with emulated.active(chip()) as found:
        yield found


@pytest.fixture(autouse=True)
def _nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saying, "_said", set())


# ---- which device is active --------------------------------------------------------------------------------------


def test_no_device_is_active_unless_that_is_said() -> None:
    made = chip()
    assert emulated.current() is None
    torch_npu.fused_linear_online_max_sum(X, WEIGHT)
    assert made.calls == 0


def test_the_innermost_device_is_the_active_one_also_after_an_error() -> None:
    with emulated.active(chip()) as outer:
        with contextlib.suppress(ZeroDivisionError), emulated.active(chip()) as inner:
            assert emulated.current() is inner
            raise ZeroDivisionError
        assert emulated.current() is outer
    assert emulated.current() is None


def test_a_device_is_active_in_its_own_thread_alone(device: Device) -> None:
    seen: list[object] = [device]
    thread = threading.Thread(target=lambda: seen.append(emulated.current()))
    thread.start()
    thread.join()
    assert seen == [device, None]


def test_only_an_emulated_device_can_be_active() -> None:
    with (
        pytest.raises(OperandTypeError, match=r"type of device: got str; allowed: steadysum\.cores\.device\.Device"),
        emulated.active("npu:0"),  # type: ignore[arg-type]
    ):
        pass


# ---- the operators -----------------------------------------------------------------------------------------------


def test_the_vendors_form_runs_on_the_active_device(device: Device) -> None:
    found = torch_npu.npu_fused_linear_online_max_sum(X, WEIGHT.T, TARGET, 0, 40, True)
    assert device.calls == 1
    expected = ops.fused_linear_online_max_sum(X, WEIGHT.T, TARGET, 0, 40, True)
    assert torch.equal(found.masked_target, expected.masked_target)
    torch.testing.assert_close(found.logits_max, expected.logits_max, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found.sum_exp_logits, expected.sum_exp_logits, rtol=1e-5, atol=0.0)
    by_short_name = torch_npu.fused_linear_online_max_sum(X, WEIGHT.T, TARGET, 0, 40)
    assert device.calls == 2
    assert torch.equal(by_short_name.logits_max, found.logits_max)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("lead", [(16,), (2, 8), (4, 2, 2)])
def test_the_reports_form_runs_on_the_active_device(device: Device, dtype: torch.dtype, lead: tuple[int, ...]) -> None:
    x, weight = X.to(dtype), WEIGHT.to(dtype)
    found = torch_npu.fused_linear_online_max_sum(x.reshape(*lead, 12), weight)
    assert device.calls == 1
    assert found.dtype == torch.float32
    exact = torch.softmax(x.double() @ weight.double(), dim=1)
    # A logit of 12 terms is off by less than 13 roundings of the sum of their sizes, at most 30 here; exp magnifies it.
    torch.testing.assert_close(found.double().reshape(16, 40), exact, rtol=13 * 30 * 2.0**-24, atol=0.0)


def test_compiled_code_runs_on_a_kernel_even_so(device: Device) -> None:
    torch.compiler.reset()
    compiled = torch.compile(torch_npu.npu_fused_linear_online_max_sum, fullgraph=True, backend="eager")
    compiled(X, WEIGHT.T, TARGET, 0, 40)
    assert device.calls == 0


def test_what_a_device_cannot_do_is_refused(device: Device) -> None:
    with pytest.raises(OptionError, match=r"on an emulated device: got kernel='native'; allowed: none: a device has"):
        torch_npu.fused_linear_online_max_sum(X, WEIGHT, kernel="native")
    with pytest.raises(OptionError, match=r"got round_logits=True, vocab_size=80; allowed"):
        torch_npu.npu_fused_linear_online_max_sum(X, WEIGHT.T, TARGET, 0, 40, round_logits=True, vocab_size=80)
    with pytest.raises(GradientError, match=r"got operands that require grad, on an emulated device; allowed"):
        torch_npu.fused_linear_online_max_sum(X, WEIGHT.clone().requires_grad_())
    with pytest.raises(ShapeError, match=r"got x \[16, 12\], weight \[40, 12\]"):
        torch_npu.fused_linear_online_max_sum(X, WEIGHT.T)
    assert device.calls == 0
    with torch.no_grad():
        torch_npu.fused_linear_online_max_sum(X, WEIGHT.clone().requires_grad_())
    assert device.calls == 1


# ---- injected faults ---------------------------------------------------------------------------------------------


def test_injected_faults_act_until_they_are_switched_off(device: Device) -> None:
    right = torch_npu.fused_linear_online_max_sum(X, WEIGHT)
    fault = "dropped:core=1,phase=P2,site=sum"
    assert torch_npu.npu.debug.enable_comm_injection(True, [fault]) == {fault: 0}
    wrong = torch_npu.fused_linear_online_max_sum(X, WEIGHT)
    assert not torch.equal(wrong, right)
    counts = torch_npu.npu.debug.enable_comm_injection(False)
    assert counts[fault] > 0
    assert device.armed is None
    assert torch.equal(torch_npu.fused_linear_online_max_sum(X, WEIGHT), right)
    assert torch_npu.npu.debug.enable_comm_injection(False) == {}


def test_the_default_faults_make_some_calls_wrong_under_legacy_and_none_under_enhanced() -> None:
    wrong = []
    for policy in (0, 1):
        with emulated.active(chip(policy, keeps_log=False)) as device:
            calls = [draw(32, 12, seed=number) for number in range(30)]
            right = [torch_npu.fused_linear_online_max_sum(x, WEIGHT) for x in calls]
            torch_npu.npu.debug.enable_comm_injection(True)
            found = [torch_npu.fused_linear_online_max_sum(x, WEIGHT) for x in calls]
            wrong.append(sum(not torch.equal(one, other) for one, other in zip(right, found, strict=True)))
            assert sum(device.fault_counts().values()) > 0
    assert wrong[0] > 0
    assert wrong[1] == 0


def test_a_devices_own_faults_stay_armed_beside_injected_ones() -> None:
    own = Arm("slow", core=2)
    with emulated.active(chip(faults=[own])) as device:
        before = device.armed
        for _ in range(2):  # switching on again replaces what was injected
            counts = torch_npu.npu.debug.enable_comm_injection(True, [Arm("delay", site="tiles")])
            assert counts == {"slow:core=2": 0, "delay:site=tiles": 0}
        torch_npu.npu.debug.enable_comm_injection(False)
        assert device.armed is before


def test_without_an_active_device_nothing_is_injected_and_that_is_said_once() -> None:
    with pytest.warns(
        UserWarning, match=r"^enable_comm_injection has no effect.*: no emulated device is active"
    ) as said:
        assert torch_npu.npu.debug.enable_comm_injection(True) == {}
    assert said[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch_npu.npu.debug.enable_comm_injection(False) == {}


def test_faults_that_there_are_not_are_refused_and_leave_the_device_as_it_was(device: Device) -> None:
    with pytest.raises(OperandTypeError, match="type of enable: got str; allowed: bool"):
        torch_npu.npu.debug.enable_comm_injection("on")  # type: ignore[arg-type]
    with pytest.raises(RangeError, match="kind of a fault: got 'tardy'"):
        torch_npu.npu.debug.enable_comm_injection(True, ["tardy:core=1"])
    assert device.armed is None


# ---- memory ------------------------------------------------------------------------------------------------------


def test_damaged_operands_and_lost_records_are_found() -> None:
    with emulated.active(chip(1, keeps_digests=True)):
        torch_npu.fused_linear_online_max_sum(X, WEIGHT)
        assert torch_npu.npu.memory.check_integrity()
        torch_npu.npu.debug.enable_comm_injection(True, ["flip:site=w"])
        torch_npu.fused_linear_online_max_sum(X, WEIGHT)
        found = torch_npu.npu.memory.check_integrity()
        assert not found.ok
        assert found.damages[0].region == "w"
        assert str(found).startswith("operand damaged at w, byte 0: its digest isn't that of the launch")


def test_what_was_not_looked_at_is_not_called_whole(device: Device) -> None:
    found = torch_npu.npu.memory.check_integrity()
    assert not found.ok
    assert str(found) == "not checked: the device has computed nothing yet"


def test_without_an_active_device_no_memory_is_called_whole_and_that_is_said_once() -> None:
    with pytest.warns(UserWarning, match=r"^memory\.check_integrity has no effect on this device: no emulated device"):
        found = torch_npu.npu.memory.check_integrity()
    assert not found
    assert str(found).startswith("not checked: no emulated device is active")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not torch_npu.npu.memory.check_integrity()
