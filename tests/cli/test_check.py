"""Tests of `steadysum check` as a user sees it: table, JSON, exit code, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from steadysum import kernels
from steadysum.cli import check
from steadysum.diagnosis.checking import INTERPRETED_RUNS, INTERPRETED_SHAPES, CheckReport
from steadysum.diagnosis.environment import NEEDS
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


# ---- kernel triton ---------------------------------------------------------------------------------------------------


@pytest.fixture
def needs_interpreted_triton() -> None:
    """Kernel triton, interpreted."""
    if not kernels.triton.interpreted():
        pytest.skip(f"triton isn't interpreted here: {kernels.triton.missing() or 'it runs on the GPU'}")


@pytest.mark.usefixtures("needs_interpreted_triton")
def test_triton_is_checked_in_its_interpreter_and_that_is_said(steadysum: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    result = steadysum("check", "--kernel", "triton", "--shape", "3,8,600", "--threads", "1", "--json", str(path))
    assert result.code == 0, result.out + result.err
    text = " ".join(result.out.split())
    assert "N=3 H=8 V=600 fp32, random normal; triton is interpreted" in text
    assert "triton was interpreted (TRITON_INTERPRET=1)" in text
    assert f"so {INTERPRETED_RUNS} calls a probe in place of 60" in text
    assert f"0 of {INTERPRETED_RUNS}" in text
    assert "No promised bit differed." in text
    document = json.loads(path.read_text())
    assert document["interpreted"] == {"triton": "TRITON_INTERPRET=1"}
    assert {finding["kernel"] for finding in document["problems"][0]["findings"]} == {"triton"}
    assert all(finding["verdict"] != "could not run" for finding in document["problems"][0]["findings"])


@pytest.mark.usefixtures("needs_interpreted_triton")
def test_an_interpreted_triton_that_is_not_named_is_left_out_openly(steadysum: Callable[..., Any]) -> None:
    result = steadysum("check", *QUICK)
    assert result.code == 0
    text = " ".join(result.out.split())
    assert "triton was not checked: TRITON_INTERPRET=1 makes it run interpreted and slowly; name it" in text


@pytest.mark.usefixtures("needs_interpreted_triton")
@pytest.mark.parametrize(("asked", "runs"), [((), INTERPRETED_RUNS), (("--runs", "9"), None)])
def test_defaults_shrink_for_an_interpreted_kernel_and_what_is_asked_for_holds(
    asked: tuple[str, ...], runs: int | None, steadysum: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def run_check(source: Any, subjects: Any, plan: Any, missing: Any, watcher: Any) -> CheckReport:
        seen.extend((source.shapes, plan.interpreted_runs))
        return CheckReport(plan, missing)

    monkeypatch.setattr(check, "run_check", run_check)
    steadysum("check", "--kernel", "triton", *asked)
    assert seen == [INTERPRETED_SHAPES, runs]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU for kernel triton")
def test_triton_without_a_gpu_or_the_interpreter_ends_with_the_reason_and_the_remedy() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    program = (
        "import sys; sys.argv = ['steadysum', 'check', '--kernel', 'triton']; import steadysum.cli.main as m; m.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**environment, "NO_COLOR": "1"},
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: --kernel triton: got a kernel that can't run here (")
    assert NEEDS["triton"] in done.stderr
    assert "Traceback" not in done.stderr
