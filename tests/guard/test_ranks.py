"""Guards among ranks: DistributedDataParallel works, collectives are refused for a rerun unless all ranks make it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from steadysum.errors import AccuracyError
from steadysum.guard.checks.custom import Custom
from steadysum.guard.model_protection import protect_model
from steadysum.guard.protection import protect
from steadysum.guard.tensors import same_bits

SMALL = Custom(lambda made: bool(made.output.detach().abs().max() < 100), "small")


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 16))


def step(net: nn.Module) -> list[Tensor]:
    loss = net(torch.arange(12).reshape(3, 4)).square().sum()
    loss.backward()
    found = [loss.detach(), *(each.grad.clone() for each in net.parameters() if each.grad is not None)]
    net.zero_grad()
    return found


def test_a_guarded_model_in_data_parallel_heals_with_the_same_bits(alone: None) -> None:
    plain = step(DistributedDataParallel(model()))
    net = model()
    faults = [1]

    def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor | None:
        faults[0] -= 1
        return output * 1000 if faults[0] == 0 else None

    with protect_model(net, bundles=None) as guards:
        net[1].register_forward_hook(hook)
        assert same_bits(step(DistributedDataParallel(net)), plain)
    assert [healing.outcome for _, healing in guards.healings] == ["healed"]


def test_a_callable_that_calls_a_collective_is_not_run_again_by_one_rank_alone(alone: None) -> None:
    runs = [0]

    def total(x: Tensor) -> Tensor:
        runs[0] += 1
        y = x * (1000 if runs[0] == 1 else 1)
        dist.all_reduce(y)
        return y

    with pytest.raises(AccuracyError, match="it calls a collective"):
        protect(total, checks=[SMALL], bundles=None)(torch.ones(2))
    runs[0] = 0
    guarded = protect(total, checks=[SMALL], bundles=None, all_ranks_decide=lambda has_failed: has_failed)
    assert guarded(torch.ones(2)).tolist() == [1.0, 1.0]


PROGRAM = """
import json, sys
import torch, torch.distributed as dist
from steadysum.guard import protect
from steadysum.guard.checks import Custom

rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)

def any_rank(has_failed):
    told = torch.tensor(float(has_failed))
    dist.all_reduce(told, op=dist.ReduceOp.MAX)
    return bool(told)

def told_with(faults):
    runs = [0]
    def total(x):
        runs[0] += 1
        y = x.clone()
        dist.all_reduce(y)
        return y * 1000 if rank == 1 and runs[0] <= faults else y
    small = Custom(lambda made: bool(made.output.max() < 100), "small")
    guarded = protect(total, checks=[small], bundles=None, all_ranks_decide=any_rank, max_retries=2)
    try:
        return guarded(torch.full((2,), rank + 1.0)).tolist(), runs[0]
    except Exception as error:
        return str(error), runs[0]

print(json.dumps([told_with(1), told_with(99)]))
dist.destroy_process_group()
"""


def test_ranks_that_decide_together_run_again_together_and_fail_together(tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for rank in range(2)
    ]
    try:
        right, wrong = (json.loads(rank.communicate(timeout=100)[0].splitlines()[-1]) for rank in ranks)
    finally:
        for rank in ranks:
            rank.kill()
    assert right[0] == wrong[0]  # results, and numbers of runs, of a fault that passes
    assert right[0][0] == [3.0, 3.0]
    assert (right[1][1], wrong[1][1]) == (3, 3)
    assert "a failure on another rank (undecided: it was right here, and wrong on another rank)" in right[1][0]
    assert "small: the test says no" in wrong[1][0]
