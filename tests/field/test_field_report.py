"""The field report's reproduction loop with its import line changed and its device calls dropped finds no deviation."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch
from torch import Tensor

import steadysum.compat.torch_npu as torch_npu

EXAMPLE = Path(__file__).parents[2] / "examples" / "field_report.py"


def loop(results: list[Tensor]) -> list[str]:
    """The report's loop; what it prints, and each call's result beside."""
    x, weight = torch.randn(1024, 256), torch.randn(256, 512)
    printed = []
    baseline = None
    for i in range(100):
        results.append(torch_npu.fused_linear_online_max_sum(x, weight))
        current = results[-1].mean().item()
        if baseline is None:
            baseline = current
        elif abs(current - baseline) > 1e-3:
            printed.append(f"Iter {i}: diff={abs(current - baseline):.6f}")
            break
    return printed


def test_the_reports_loop_finds_no_deviation_and_no_element_deviates() -> None:
    torch.manual_seed(0)
    results: list[Tensor] = []
    assert loop(results) == []
    assert len(results) == 100
    assert all(torch.equal(each, results[0]) for each in results)


def test_the_loop_can_find_one(monkeypatch: pytest.MonkeyPatch) -> None:
    right = torch_npu.fused_linear_online_max_sum
    calls = []

    def wrong_once(x: Tensor, weight: Tensor) -> Tensor:
        calls.append(None)
        return right(x, weight) * (2.0 if len(calls) == 8 else 1.0)  # all sums half of what they should be

    monkeypatch.setattr(torch_npu, "fused_linear_online_max_sum", wrong_once)
    assert loop([]) == ["Iter 7: diff=0.001953"]  # the mean of a softmax over 512 columns is 1/512


def test_the_example_runs_and_finds_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out == (
        "The report's loop finds no deviation; calls with any element unlike the first call's: 0 of 100.\n"
    )
