"""The package says why the native extension is missing, and works without it."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import types

import pytest

from steadysum import _extension, kernels

NAME = "steadysum._native"


def failing(error: Exception):
    def import_module(name: str) -> types.ModuleType:
        assert name == NAME
        raise error

    return import_module


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ModuleNotFoundError("No module", name=NAME), "the native extension wasn't built"),
        (ModuleNotFoundError("No module", name="other"), "needs the module 'other'"),
        (ImportError("libstdc++.so.6: not found"), "can't be loaded: libstdc++.so.6: not found"),
    ],
)
def test_a_failed_import_becomes_a_reason(error: Exception, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib, "import_module", failing(error))
    module, reason = _extension._load()
    assert module is None
    assert text in reason


def test_without_the_extension_calls_run_on_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_extension, "module", None)
    monkeypatch.setattr(_extension, "reason", "for this test")
    assert "native" not in kernels.available()
    assert {"eager", "reference"} <= set(kernels.available())
    choice = kernels.explain(kernels.Problem(rows=1, hidden=8, vocab=9))
    assert choice.kernel == "eager"
    assert choice.reasons["native"] == "for this test"


def loaded_with(isa: str) -> list[str]:
    program = (
        "from steadysum import _extension, kernels; print(kernels.get('native').missing());"
        "print(_extension.module and _extension.module.isa())"
    )
    environment = {**os.environ, "STEADYSUM_ISA": isa, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_no_kernel_stands_in_for_instructions_that_cannot_be_had() -> None:
    program = (
        "import torch; from steadysum import kernels, linear_max_sum as f; x = torch.ones(2, 4);"
        "print(f(x, x, kernel='eager').max.tolist(), kernels.explain(kernels.Problem(1, 8, 9)).kernel); f(x, x)"
    )
    environment = {**os.environ, "STEADYSUM_ISA": "mmx", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split("] ") == ["[4.0, 4.0", "None\n"]
    assert "KernelUnavailableError: kernel='auto': got STEADYSUM_ISA=mmx" in done.stderr


def test_instructions_that_the_cpu_has_not_are_a_reason_not_a_crash(needs_native: types.ModuleType) -> None:
    reason, isa = loaded_with("sse")
    assert isa == "None"
    assert reason.startswith("STEADYSUM_ISA=sse: ")
    assert all(runnable in reason for runnable in needs_native.runnable_isas())


def test_the_environment_forces_instructions(needs_native: types.ModuleType) -> None:
    assert loaded_with("portable") == ["None", "portable"]
