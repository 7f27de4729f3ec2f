"""Tests of `steadysum bench` as a user sees it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from steadysum.cli import bench


def test_the_table_has_torchs_product_and_every_kernel(steadysum: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "speed.json"
    result = steadysum("bench", "--shape", "4,16,600", "--rounds", "3", "--json", str(path))
    assert result.code == 0, result.err
    for word in ("torch product", "torch linear+logsumexp", "steadysum eager", "GFLOP/s", "GB/s of W"):
        assert word in result.out
    document = json.loads(path.read_text())
    assert document["schema"] == "steadysum.bench/1"
    assert document["problems"][0]["rounds"] == 3


def test_threads_hold_for_all_contenders_and_are_restored(steadysum: Callable[..., Any]) -> None:
    before = torch.get_num_threads()
    result = steadysum("bench", "--shape", "4,16,600", "--rounds", "3", "--threads", "3", "--kernel", "eager")
    assert "3 threads" in result.out
    assert torch.get_num_threads() == before


def test_a_file_that_cannot_be_written_is_known_before_anything_is_timed(
    steadysum: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def timed(*_arguments: object) -> None:
        raise AssertionError("it was timed")

    monkeypatch.setattr(bench, "run_bench", timed)
    result = steadysum("bench", "--shape", "4,16,600", "--json", f"{tmp_path}/no/x.json")
    assert result.code == 2
    assert f"error: {tmp_path}/no/x.json: No such file or directory" in result.err


def test_a_killed_bench_leaves_the_problems_so_far(
    steadysum: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "speed.json"
    seen: list[tuple[bool, int]] = []
    measure = bench.run_bench

    def watched(*arguments: Any) -> Any:
        for report in measure(*arguments):
            document = json.loads(path.read_text())
            seen.append((document["complete"], len(document["problems"])))
            yield report

    monkeypatch.setattr(bench, "run_bench", watched)
    steadysum("bench", "--shape", "4,16,600", "--shape", "2,8,600", "--rounds", "3", "--json", str(path))
    assert seen == [(False, 0), (False, 1)]
    assert json.loads(path.read_text())["complete"]
