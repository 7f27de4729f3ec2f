"""Tests of the one place where errors become messages: a red line, a hint, exit code 2, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import steadysum as package
from steadysum.cli import doctor

MISTAKES = [
    (("check", "--shape", "1,2"), "--shape: got '1,2'", "three integers > 0"),
    (("check", "--shape", "6,8,x"), "--shape: got '6,8,x'", "For example --shape 1024,256,512."),
    (("check", "--dtype", "fp8"), "--dtype: got 'fp8'", "Allowed: fp32, bf16, fp16."),
    (("check", "--threads", "0,1"), "--threads: got '0,1'", "integers from 1 to"),
    (("check", "--kernel", "cuda"), "kernel: got 'cuda'", "'native', 'triton', 'ascend', 'eager', 'reference'"),
    (("check", "--weights", "{folder}/gone.safetensors"), "gone.safetensors: got no file", "Check the path."),
    (("check", "--weights", "{folder}/text.safetensors"), "can't be read as safetensors", "a .safetensors file"),
    (("check", "--weights", "{folder}/head.safetensors:tail"), "got no tensor 'tail' in it", "head [20, 4]"),
    (("check", "--weights", "{folder}/many.safetensors"), "2 tensors and no name", "a [20, 4], b [4]"),
    (("check", "--weights", "{folder}/many.safetensors:b"), "got shape [4]", "[V, H]"),
    (
        ("check", "--weights", "{folder}/head.safetensors", "--inputs", "{folder}/wide.safetensors"),
        "got 5 (shape [2, 5])",
        "Allowed: 4, as of --weights",
    ),
    (("check", "--inputs", "{folder}/wide.safetensors"), "--inputs", "only together with --weights"),
    (("check", "--shape", "1073741824,1048576,1"), "whose operands take", "Choose a smaller shape."),
    (
        ("check", "--shape", "1000000000000,1000000000000,1000"),
        "1000000000000,1000000000000,1000, whose operands take 3,637,978,810,729.7 TiB",
        "available). Choose a smaller shape.",
    ),
    (("bench", "--shape", "1000000000,1,1000000000"), "torch's logits take", "Choose a smaller shape."),
    (
        ("check", "--weights", "{folder}/head.safetensors", "--shape", "1000000000000,4,20"),
        "1000000000000 random hidden states, which take 29.1 TiB",
        "Choose a smaller shape.",
    ),
    (("check", "--weights", "{folder}"), "got a path that is a folder", "a .safetensors file"),
    (("check", "--weights", ""), "--weights: got '', which has no file name", "FILE or FILE:TENSOR"),
    (("check", "--weights", ":w"), "--weights: got ':w', which has no file name", "FILE or FILE:TENSOR"),
    (("doctor", "--json", "{folder}/no/r.json"), "{folder}/no/r.json: No such file", "Check the path"),
    (
        ("check", "--shape", "2,2,2", "--runs", "2", "--json", "{folder}/no/r.json"),
        "no/r.json: No such",
        "Check the path",
    ),
    (("check", "--runs", "1"), "Invalid value for '--runs'", "steadysum check -h"),
    (("check", "--seed", "-1"), "Invalid value for '--seed'", "steadysum check -h"),
    (("check", "--frequency", "3"), "No such option", "steadysum check -h"),
    (("bench", "--shape", "0,1,1"), "--shape: got '0,1,1'", "three integers > 0"),
    (("bench", "--threads", "1,2"), "--threads: got '1,2'", "Run the command once for each thread count."),
    (("bench", "--threads", "many"), "--threads: got 'many'", "integers from 1 to"),
    (("chekc",), "No such command", "steadysum -h"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files that the mistakes name."""
    head = torch.ones(20, 4)
    save_file({"head": head}, tmp_path / "head.safetensors")
    save_file({"a": head, "b": torch.ones(4)}, tmp_path / "many.safetensors")
    save_file({"states": torch.ones(2, 5)}, tmp_path / "wide.safetensors")
    (tmp_path / "text.safetensors").write_text("not a tensor in sight")
    return tmp_path


@pytest.mark.parametrize(("arguments", "message", "hint"), MISTAKES, ids=[" ".join(m[0])[:60] for m in MISTAKES])
def test_a_users_mistake_ends_in_a_message_and_a_hint(
    arguments: tuple[str, ...], message: str, hint: str, folder: Path, steadysum: Callable[..., Any]
) -> None:
    result = steadysum(*(argument.format(folder=folder) for argument in arguments))
    assert result.code == 2
    assert "Traceback" not in result.out + result.err
    assert message.format(folder=folder) in result.err
    assert hint in result.err


def test_an_error_of_ours_is_one_line_and_one_hint(steadysum: Callable[..., Any]) -> None:
    assert steadysum("check", "--dtype", "fp8").err == (
        "error: --dtype: got 'fp8'\nAllowed: fp32, bf16, fp16. The other dtypes have no kernel with fixed bits.\n"
    )


def test_a_bug_is_no_verdict(steadysum: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(*_: object) -> None:
        raise AssertionError("planted")

    monkeypatch.setattr(doctor, "examine", bug)
    result = steadysum("doctor")
    assert result.code == 2  # Python's own 1 would say that a kernel deviates
    assert "AssertionError: planted" in result.err
    assert "this is a bug in steadysum" in result.err


def test_without_a_command_the_help_is_shown(steadysum: Callable[..., Any]) -> None:
    result = steadysum()
    assert all(command in result.out + result.err for command in ("check", "bench", "doctor"))


def test_the_module_runs_as_the_command_does() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "steadysum", "--version"], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, package.__version__ + "\n", "")


def test_a_reader_that_goes_away_is_no_verdict() -> None:
    command = f"{sys.executable} -m steadysum doctor | head -c 1 >/dev/null; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (0, 2)  # 0: the pipe took all of it before head ended
    assert done.stderr == ""


@pytest.mark.parametrize("arguments", [("check", "--runs", "2", "--threads", "1"), ("bench", "--rounds", "3")])
def test_instructions_that_cannot_be_forced_are_refused_unless_other_kernels_are_named(
    arguments: tuple[str, ...],
) -> None:
    command = [sys.executable, "-m", "steadysum", *arguments, "--shape", "4,4,4"]
    done = run_with_isa("foo", *command)
    assert done.returncode == 2
    assert "error: STEADYSUM_ISA=foo: got no native kernel that could honour it" in done.stderr
    assert "Unset STEADYSUM_ISA" in done.stderr
    assert done.stdout == ""
    assert run_with_isa("foo", *command, "--kernel", "native").returncode == 2
    assert run_with_isa("foo", *command, "--kernel", "eager").returncode == 0


def run_with_isa(isa: str, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "STEADYSUM_ISA": isa}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
