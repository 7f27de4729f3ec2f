"""Tests of `steadysum check` as a user sees it: table, JSON, exit code, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from steadysum.cli import check
from steadysum.diagnosis.subject import Subject
from steadysum.maxsum import MaxSum

QUICK = ("--shape", "3,8,600", "--runs", "4", "--threads", "1,2")


def plugged(monkeypatch: pytest.MonkeyPatch, fault: Callable[[MaxSum], None]) -> None:
    """Lets the command check an operator with this fault in place of the kernels."""

    def call(input: Tensor, weight: Tensor) -> MaxSum:
        logits = (input.double()[:, None] * weight.double()).sum(2)
        result = MaxSum(logits.amax(1).float(), (logits - logits.amax(1, keepdim=True)).exp().sum(1).float())
        fault(result)
        return result

    subject = Subject("broken", call, frozenset({"run-to-run", "batch", "threads"}))
    monkeypatch.setattr(check, "kernel_subjects", lambda _named: ([subject], {}))


def test_available_kernels_pass_on_a_small_problem(steadysum: Callable[..., Any]) -> None:
    result = steadysum("check", *QUICK, "--dtype", "fp32", "--dtype", "bf16")
    assert result.code == 0, result.out + result.err
    assert "N=3 H=8 V=600 fp32, random normal" in result.out
    assert "N=3 H=8 V=600 bf16, random normal" in result.out
    assert "No promised bit differed." in result.out
    assert result.err == ""


def test_a_kernel_can_be_named(steadysum: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    assert steadysum("check", *QUICK, "--kernel", "eager", "--json", str(path)).code == 0
    document = json.loads(path.read_text())
    assert {finding["kernel"] for finding in document["problems"][0]["findings"]} == {"eager"}
    assert document["complete"]


def test_a_deviating_kernel_ends_with_1(
    steadysum: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = 0

    def fault(result: MaxSum) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            result.sum_exp[-1] = torch.nan

    plugged(monkeypatch, fault)
    path = tmp_path / "report.json"
    result = steadysum("check", *QUICK, "--json", str(path))
    assert result.code == 1
    assert "Deviates: broken (repeat)." in result.out
    assert json.loads(path.read_text())["exit_code"] == 1


def test_own_weights_and_inputs_are_checked(steadysum: Callable[..., Any], tmp_path: Path) -> None:
    head, states = torch.randn(50, 8).bfloat16(), torch.randn(2, 3, 8).bfloat16()
    save_file({"lm_head.weight": head, "norm": torch.ones(8)}, tmp_path / "model.safetensors")
    save_file({"states": states}, tmp_path / "states.safetensors")
    files = ("--weights", f"{tmp_path}/model.safetensors:lm_head.weight", "--inputs", f"{tmp_path}/states.safetensors")
    result = steadysum("check", *files, "--runs", "2")
    assert result.code == 0, result.out + result.err
    assert "N=6 H=8 V=50 bf16, model.safetensors:lm_head.weight, states.safetensors" in result.out


def test_ctrl_c_reports_what_there_is_and_could_not_finish(
    steadysum: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = 0

    def interrupt(result: MaxSum) -> None:
        nonlocal calls
        calls += 1
        if calls == 6:  # the second call of the threads probe
            os.kill(os.getpid(), signal.SIGINT)

    plugged(monkeypatch, interrupt)
    path = tmp_path / "report.json"
    before = signal.getsignal(signal.SIGINT)
    result = steadysum("check", *QUICK, "--json", str(path))
    assert result.code == 2
    assert "Stopped early" in result.out
    assert "0 of 4" in result.out  # repeat
    assert "0 of 2" in result.out  # threads
    document = json.loads(path.read_text())
    assert not document["complete"]
    assert [finding["probe"] for finding in document["problems"][0]["findings"]] == ["repeat", "threads", "field loop"]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_killed_check_leaves_its_findings_so_far(
    steadysum: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "report.json"
    found: list[int] = []

    def look(result: MaxSum) -> None:
        problems = json.loads(path.read_text())["problems"]
        found.append(len(problems[0]["findings"]) if problems else 0)

    plugged(monkeypatch, look)
    steadysum("check", *QUICK, "--json", str(path))
    assert found[0] == 0
    assert found[-1] == 5  # the last call is that of the rows beside the batch, after five probes


def test_help_names_the_exit_codes(steadysum: Callable[..., Any]) -> None:
    result = steadysum("check", "--help")
    assert result.code == 0
    assert "Exit code: 0 no deviation seen, 1 some kernel deviates, 2 could not run" in " ".join(result.out.split())


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_without_a_finite_row_are_no_success(
    value: float, steadysum: Callable[..., Any], tmp_path: Path
) -> None:
    save_file({"head": torch.full((50, 8), value)}, tmp_path / "head.safetensors")
    result = steadysum("check", "--weights", f"{tmp_path}/head.safetensors", "--runs", "2", "--kernel", "eager")
    assert result.code == 2
    text = " ".join(result.out.split())
    assert "within" not in text
    assert "no finite row to compare" in text
    assert "float64 gives NaN or an infinity for every row" in text
    assert "No promised bit differed" not in text
