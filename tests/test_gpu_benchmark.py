"""The GPU benchmark's code, without a GPU: it runs through Triton's interpreter, and says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from steadysum.kernels import triton

ROOT = Path(__file__).parents[1]
PARTS = ("forward", "training", "memory", "bits")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "benchmarks.gpu", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The files that an interpreted run writes."""
    if triton.missing() is not None:
        pytest.skip(f"kernel triton is missing: {triton.missing()}")
    folder = tmp_path_factory.mktemp("gpu")
    done = run("--interpret", "--out", str(folder))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the times mean nothing" in done.stdout
    return {part: json.loads((folder / f"gpu-none-{part}.json").read_text()) for part in PARTS}


def measures(document: Any, contender: str) -> list[Any]:
    return [each for each in document["measures"] if each["contender"].startswith(contender)]


def test_every_part_says_that_there_was_no_card(documents: dict[str, Any]) -> None:
    for document in documents.values():
        assert document["environment"]["card"] == "none: Triton's interpreter on the CPU; the times mean nothing"


def test_ours_is_timed_beside_the_products(documents: dict[str, Any]) -> None:
    for part, contender, against in (
        ("forward", "steadysum.linear_max_sum, triton", "torch product"),
        ("forward", "steadysum.linear_cross_entropy, triton", "torch product"),
        ("training", "steadysum.linear_cross_entropy, triton", "three bare products"),
    ):
        (measure,) = measures(documents[part], contender)
        assert measure["against"] == against
        assert measure["value"]["low"] <= measure["value"]["median"] <= measure["value"]["high"]
        assert measure["rounds"] == 2
        assert measure["bar"] is None  # a time of the interpreter is held to nothing
        assert "differs" not in measure["note"]


def test_every_peer_has_a_line_with_a_figure_or_a_reason(documents: dict[str, Any]) -> None:
    for part in PARTS:
        for peer in ("F.cross_entropy", "F.linear_cross_entropy, chunked", "cut-cross-entropy", "liger-kernel"):
            found = measures(documents[part], peer)
            assert found, (part, peer)
            assert all(each["value"] is not None or each["note"] for each in found)


def test_our_bits_are_compared_from_run_to_run_and_across_pieces_of_the_batch(documents: dict[str, Any]) -> None:
    ours = measures(documents["bits"], "steadysum")
    assert [each["against"] for each in ours] == ["each other, run to run", "the batch in pieces"] * 2
    assert [(each["value"], each["verdict"]) for each in ours] == [(0.0, "pass")] * 4


def test_memory_without_a_gpu_is_not_made_up(documents: dict[str, Any]) -> None:
    for measure in measures(documents["memory"], "steadysum"):
        assert measure["value"] is None
        assert measure["note"] == "runs; memory is measured on a GPU"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_ends_with_2() -> None:
    done = run()
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"no GPU: torch {torch.__version__} sees no CUDA or ROCm device")
    assert "--interpret" in done.stderr
    assert "Traceback" not in done.stderr
