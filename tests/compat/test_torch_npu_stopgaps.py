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
from steadysum.compat import stopgaps
from steadysum.errors import OperandTypeError


@pytest.fixture(autouse=True)
def _nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopgaps, "_said", set())
    monkeypatch.setitem(sys.modules, "torch_npu", None)  # not installed
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)


class StandIn(ModuleType):
    """torch_npu with one NPU, or none."""

    def __init__(self, *, available: bool) -> None:
        super().__init__("torch_npu")
        self.calls: list[Any] = []
        self.npu = SimpleNamespace(
            is_available=lambda: available,
            set_compile_mode=lambda jit_compile: self.calls.append(("set_compile_mode", jit_compile)),
            synchronize=lambda device: self.calls.append(("synchronize", device)),
            config=SimpleNamespace(allow_internal_format=True),
        )


@pytest.fixture
def vendor(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn(available=True)
    monkeypatch.setitem(sys.modules, "torch_npu", stand_in)
    return stand_in


@pytest.mark.parametrize("name", ["set_compile_mode", "npu.set_compile_mode"])
def test_compile_mode_is_accepted_and_said_once_to_have_no_effect(name: str) -> None:
    function = torch_npu.npu.set_compile_mode if name.startswith("npu") else torch_npu.set_compile_mode
    with pytest.warns(UserWarning, match=r"^set_compile_mode has no effect on this device: torch_npu is not installed"):
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
            "torch_npu can't be imported: No module named 'acl'",
        ),
        (OSError("libascendcl.so: cannot open"), "torch_npu can't be imported: libascendcl.so: cannot open"),
    ],
)
def test_a_torch_npu_that_cannot_be_imported_is_no_npu(
    monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    def fail(_: str) -> ModuleType:
        raise error

    monkeypatch.setattr(stopgaps.importlib, "import_module", fail)
    with pytest.warns(UserWarning, match=reason):
        torch_npu.set_compile_mode(jit_compile=False)


def test_a_torch_npu_without_npu_has_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_npu", StandIn(available=False))
    with pytest.warns(UserWarning, match=r"has no effect on this device: torch_npu finds no NPU\. This is said once\."):
        torch_npu.set_compile_mode(jit_compile=False)


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
    with pytest.raises(AttributeError, match=r"torch_npu\.npu has no 'Stream'; it offers config, set_compile_mode"):
        torch_npu.npu.Stream  # noqa: B018
