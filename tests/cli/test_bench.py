"""Tests of `steadysum bench` as a user sees it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


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
