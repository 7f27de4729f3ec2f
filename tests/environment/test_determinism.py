"""Tests of steadysum.environment.determinism: how switches are read, and that each has its meaning."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace

import pytest
import torch

from steadysum.environment import determinism
from steadysum.environment.determinism import Reading, devices_here, read_switches, switches
from steadysum.environment.vendor import Found

CPU, NPU, NVIDIA = frozenset({"cpu"}), frozenset({"cpu", "npu"}), frozenset({"cpu", "nvidia"})


@pytest.fixture
def torchs_mode() -> Iterator[None]:
    """Puts torch's mode back."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    yield
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def _read(name: str, devices: frozenset[str] = CPU) -> Reading:
    return next(reading for reading in read_switches(devices) if reading.name == name)


def test_every_switch_of_torch_is_read_and_no_other() -> None:
    named = {switch.name for switch in switches() if switch.name.startswith("torch.")}
    assert named == set(determinism._TORCH)


def test_every_switch_has_a_meaning_for_each_value_and_for_none() -> None:
    for switch in switches():
        assert switch.devices <= {"cpu", "nvidia", "amd", "npu"}
        assert switch.source
        assert all(value == value.lower() for value in switch.values), switch.name
        assert set(switch.reproducible) <= switch.values.keys()
        if not switch.name.startswith("torch."):
            assert switch.other, switch.name
            assert "" in switch.values, switch.name


def test_no_switch_is_read_without_a_meaning() -> None:
    assert [reading.name for reading in read_switches(NPU | NVIDIA) if not reading.meaning] == []


@pytest.mark.usefixtures("torchs_mode")
def test_torchs_mode_is_read_as_it_is_set() -> None:
    name = "torch.use_deterministic_algorithms"
    torch.use_deterministic_algorithms(False)
    assert (_read(name).value, _read(name).reproducible) == ("off", False)
    torch.use_deterministic_algorithms(True)
    assert (_read(name).value, _read(name).reproducible) == ("on", True)
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert (_read(name).value, _read(name).reproducible) == ("on, warn only", False)


@pytest.mark.parametrize(
    ("value", "reproducible", "meaning"),
    [
        (None, False, "may add in any order"),
        ("false", False, "may add in any order"),
        ("True", True, "the same bits from run to run"),
        ("strict", True, "added in the same order"),
        ("1", False, "isn't among the vendor's values"),
    ],
)
def test_the_vendors_variable_means_what_his_document_says(
    monkeypatch: pytest.MonkeyPatch, value: str | None, reproducible: bool, meaning: str
) -> None:
    if value is None:
        monkeypatch.delenv("HCCL_DETERMINISTIC", raising=False)
    else:
        monkeypatch.setenv("HCCL_DETERMINISTIC", value)
    reading = _read("HCCL_DETERMINISTIC", NPU)
    assert (reading.value, reading.reproducible, reading.matters) == (value, reproducible, True)
    assert meaning in reading.meaning


def test_a_switch_of_another_device_does_not_matter_here() -> None:
    assert not _read("HCCL_DETERMINISTIC", NVIDIA).matters
    assert not _read("CUBLAS_WORKSPACE_CONFIG", NPU).matters
    assert _read("CUBLAS_WORKSPACE_CONFIG", NVIDIA).matters


def test_a_switch_that_contradicts_itself_is_said_to_be_unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    def contradicts() -> str:
        raise RuntimeError("mix of the legacy and new APIs to set the TF32 flags\nat Context.cpp")

    name = "torch.backends.cudnn.allow_tf32"
    monkeypatch.setattr(determinism, "_TORCH", {**determinism._TORCH, name: contradicts})
    assert _read(name).value is None
    assert _read(name).meaning == "it can't be read: mix of the legacy and new APIs to set the TF32 flags"


def test_torch_npu_is_asked_where_it_is_loaded_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _read("torch.npu.matmul.allow_hf32", NPU) == Reading(
        "torch.npu.matmul.allow_hf32", None, "torch_npu isn't loaded", True, None, ""
    )
    npu = SimpleNamespace(matmul=SimpleNamespace(allow_hf32=False), conv=SimpleNamespace(allow_hf32=True))
    monkeypatch.setitem(sys.modules, "torch_npu", ModuleType("torch_npu"))
    monkeypatch.setattr(torch, "npu", npu, raising=False)
    assert _read("torch.npu.matmul.allow_hf32", NPU).value == "off"
    assert _read("torch.npu.conv.allow_hf32", NPU).value == "on"


def test_an_npu_is_here_where_its_driver_or_chip_was_found() -> None:
    assert "npu" in devices_here({"npu-driver": Found("25.5.0", "")})
    assert "npu" not in devices_here({"npu-driver": Found(None, "no version")})
    assert ("nvidia" in devices_here({}) or "amd" in devices_here({})) == torch.cuda.is_available()
