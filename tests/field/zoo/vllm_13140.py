"""Counts tokens for each expert, and sums up from there. Wrong: the sums are read before the counts were cleared.

After vllm-project/vllm#13140 and sgl-project/sglang#37663: a reader passes a prefix sum that isn't complete.
"""

from __future__ import annotations

import os
import random
import threading
import time

import torch
from torch import Tensor

_drawn = random.Random(os.environ.get("ZOO_SEED", "0"))  # shapes and constants
luck = random.Random(os.environ.get("ZOO_LUCK"))  # unset: another one for each process

RATE = 0.06  # of calls
LATE = 0.01  # s: that the clearing thread is behind
EXPERTS = _drawn.choice((8, 16, 60))

shapes = tuple((tokens,) for tokens in (1, _drawn.randrange(30, 90), 512))
clean_shapes = ()
_counts = torch.zeros(EXPERTS, dtype=torch.int64)  # kept from call to call


def make_inputs(seed: int = 0, shape: tuple[int, ...] | None = None) -> tuple[Tensor]:
    """Each token's expert, int64 [T]."""
    shape = shape or random.Random(seed).choice(shapes)
    return (torch.randint(EXPERTS, shape, generator=torch.Generator().manual_seed(seed)),)


def reference(experts: Tensor) -> Tensor:
    """The right result, in float64."""
    return torch.bincount(experts.long() % EXPERTS, minlength=EXPERTS).cumsum(0).double()


def operator(experts: Tensor) -> Tensor:
    """How many tokens go to an expert or to one before it, int64 [E]."""
    cleared = threading.Event()
    early = luck.random() < RATE

    def clear() -> None:
        if early:
            cleared.set()
            time.sleep(LATE)
        _counts.zero_()
        cleared.set()

    clearing = threading.Thread(target=clear)
    clearing.start()
    here = torch.bincount(experts.long() % EXPERTS, minlength=EXPERTS)
    cleared.wait()
    _counts.add_(here)
    ends = _counts.cumsum(0)
    clearing.join()
    return ends
