"""The vendor's settings: passed on to torch_npu where there is an NPU; elsewhere accepted, and said to have no effect.

A stand-in takes the place of torch_npu: it has never been run on hardware here.
"""

from __future__ import annotations

import sys
import warnings
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import steadysum.compat.torch_npu as torch_npu
from steadysum.compat import saying, stopgaps
from steadysum.errors import OperandTypeError
from steadysum.kernels import ascend


@pytest.fixture(autouse=True)
def _nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saying, "_said", set())
    monkeypatch.setitem(sys.modules, "torch_npu", None)  # not installed
    monkeypatch.delattr(torch, "npu", raising=False)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)


class StandIn(ModuleType):
    """torch_npu with one NPU; it puts its part `npu` at torch.npu."""

    def __init__(self) -> None:
        super().__init__("torch_npu")
        self.calls: list[Any] = []
        self.npu = SimpleNamespace(
            is_available=lambda: True,
            set_compile_mode=lambda jit_compile: self.calls.append(("set_compile_mode", jit_compile)),
            synchronize=lambda device: self.calls.append(("synchronize", device)),
            config=SimpleNamespace(allow_internal_format=True),
        )


@pytest.fixture
def vendor(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn()
    monkeypatch.setitem(sys.modules, "torch_npu", stand_in)
    monkeypatch.setattr(torch, "npu", stand_in.npu, raising=False)
    return stand_in


@pytest.mark.parametrize("name", ["set_compile_mode", "npu.set_compile_mode"])
def test_compile_mode_is_accepted_and_said_once_to_have_no_effect(name: str) -> None:
    function = torch_npu.npu.set_compile_mode if name.startswith("npu") else torch_npu.set_compile_mode
    with pytest.warns(UserWarning, match=r"^set_compile_mode has no effect on this device: torch_npu isn't installed"):
        function(jit_compile=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        function(jit_compile=True)
        function()


@pytest.mark.parametrize("config", [torch_npu.config, torch_npu.npu.config])
def test_the_internal_format_is_accepted_and_said_once_to_have_no_effect(config: stopgaps.Config) -> None:
    try:
        with pytest.warns(UserWarning, match=r"^config\.allow_internal_format has no effect on this device") as caught:
            config.allow_internal_format = False
        assert caught[0].filename == __file__  # the warning names the line that set it
        assert config.allow_internal_format is False
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            config.allow_internal_format = True
        assert config.allow_internal_format is True
    finally:
        config.allow_internal_format = True


def test_synchronize_says_that_there_is_nothing_to_wait_for() -> None:
    with pytest.warns(UserWarning, match=r"^synchronize has no effect on this device: operators on the CPU have done"):
        torch_npu.npu.synchronize()


def test_synchronize_waits_for_another_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "synchronize", calls.append)
    torch_npu.synchronize()
    torch_npu.npu.synchronize("cuda:1")
    assert calls == [None, "cuda:1"]


def test_on_an_npu_settings_are_passed_on(vendor: StandIn) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch_npu.npu.set_compile_mode(jit_compile=False)
        torch_npu.npu.synchronize()
        torch_npu.npu.config.allow_internal_format = False
    assert vendor.calls == [("set_compile_mode", False), ("synchronize", None)]
    assert vendor.npu.config.allow_internal_format is False
    assert torch_npu.config.allow_internal_format is False
    vendor.npu.config.allow_internal_format = True  # set by someone else
    assert torch_npu.config.allow_internal_format is True


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            ModuleNotFoundError("No module named 'acl'", name="acl"),
            r"torch_npu can't be imported \(ModuleNotFoundError: No module named 'acl'\)",
        ),
        (OSError("libascendcl.so: no such file"), r"torch_npu can't be imported \(OSError: libascendcl.so: no such"),
    ],
)
def test_a_torch_npu_that_cannot_be_imported_is_no_npu(
    monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    def fail(_: str) -> ModuleType:
        raise error

    monkeypatch.setattr(ascend.importlib, "import_module", fail)
    with pytest.warns(UserWarning, match=reason):
        torch_npu.set_compile_mode(jit_compile=False)


def no_driver() -> bool:
    raise RuntimeError("no driver")


@pytest.mark.parametrize(
    ("npu", "reason"),
    [
        (None, r"torch_npu finds no NPU"),
        (SimpleNamespace(is_available=lambda: False), r"torch_npu finds no NPU"),
        (SimpleNamespace(is_available=no_driver), r"torch_npu finds no NPU \(RuntimeError: no driver\)"),
        (SimpleNamespace(), r"torch_npu finds no NPU \(AttributeError: .* 'is_available'\)"),
    ],
    ids=["no torch.npu", "none found", "an error", "no is_available"],
)
def test_a_torch_npu_without_npu_has_no_effect(
    npu: SimpleNamespace | None, reason: str, vendor: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "npu", npu)
    with pytest.warns(UserWarning, match=rf"has no effect on this device: {reason}\. This is said once\."):
        torch_npu.set_compile_mode(jit_compile=False)
    assert vendor.calls == []


def test_our_own_module_in_the_place_of_torch_npu_is_no_npu(vendor: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """sys.modules["torch_npu"] = steadysum.compat.torch_npu, so that a script's import line needn't be edited."""
    monkeypatch.setitem(sys.modules, "torch_npu", torch_npu)
    with pytest.warns(UserWarning, match=r"has no effect on this device: steadysum\.compat\.torch_npu stands in for"):
        torch_npu.npu.set_compile_mode(jit_compile=False)
    with pytest.warns(UserWarning, match=r"^config\.allow_internal_format has no effect on this device: steadysum"):
        torch_npu.npu.config.allow_internal_format = True
    assert vendor.calls == []


@pytest.mark.parametrize("value", [0, None, "enable"])
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(OperandTypeError, match=r"type of jit_compile: got .*; allowed: bool\. Pass True or False\."):
        torch_npu.set_compile_mode(jit_compile=value)
    with pytest.raises(OperandTypeError, match=r"type of config\.allow_internal_format: got .*; allowed: bool"):
        torch_npu.npu.config.allow_internal_format = value


def test_other_settings_are_refused_by_name() -> None:
    with pytest.raises(AttributeError, match=r"torch_npu\.config has no 'allow_x'; it offers allow_internal_format"):
        torch_npu.npu.config.allow_x = True
    with pytest.raises(AttributeError, match=r"torch_npu\.config has no 'allow_x'; it offers allow_internal_format"):
        torch_npu.config.allow_x  # noqa: B018
    with pytest.raises(AttributeError, match=r"torch_npu\.npu has no 'Stream'; it offers config, debug, memory, set"):
        torch_npu.npu.Stream  # noqa: B018
    with pytest.raises(AttributeError, match=r"torch_npu\.npu has no 'conifg'; it offers config, debug, memory, set"):
        torch_npu.npu.conifg = 1
    with pytest.raises(AttributeError, match=r"torch_npu\.npu\.config can't be replaced"):
        torch_npu.npu.config = 1
    assert torch_npu.npu.config is torch_npu.config
