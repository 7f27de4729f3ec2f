"""Tests of `steadysum doctor` as a user sees it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import steadysum as package
from steadysum import kernels


def test_the_doctor_prints_every_section(steadysum: Callable[..., Any]) -> None:
    result = steadysum("doctor")
    assert result.code == 0
    for section in ("versions", "processor", "torch", "kernels", "environment variables"):
        assert section in result.out
    assert all(name in result.out for name in kernels.names())
    assert package.__version__ in result.out


def test_the_doctor_writes_json(steadysum: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "doctor.json"
    assert steadysum("doctor", "--json", str(path)).code == 0
    assert json.loads(path.read_text())["sections"]["kernels"][0]["name"] == "native"


def test_the_doctor_explains_kernels_for_hardware_that_is_not_here(steadysum: Callable[..., Any]) -> None:
    if kernels.ascend.missing() is None:
        pytest.skip("there is an NPU with torch_npu")
    text = " ".join(steadysum("doctor").out.split())
    assert f"ascend not available {kernels.ascend.missing()}. It needs the package torch-npu" in text
    assert "TRITON_INTERPRET" in text
    assert "torch-npu" in text
