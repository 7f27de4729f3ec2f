"""Computes on what an asynchronous copy brings. Wrong: the copy's end isn't awaited, so its buffer is read too early.

After vllm-project/vllm#25279: a staging buffer is read before the copy into it ends.
"""

from __future__ import annotations

import os
import random
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

_drawn = random.Random(os.environ.get("ZOO_SEED", "0"))  # shapes and constants
luck = random.Random(os.environ.get("ZOO_LUCK"))  # unset: another one for each process

RATE = 0.12  # of calls
LATE = 0.01  # s: that the copy takes longer than the work beside it
WIDTH = _drawn.choice((40, 64, 88))

shapes = tuple((rows, WIDTH) for rows in (1, _drawn.randrange(6, 30), 64))
clean_shapes = ()
_device = ThreadPoolExecutor(max_workers=1)


def make_inputs(seed: int = 0, shape: tuple[int, int] | None = None) -> tuple[Tensor]:
    """The rows, [N, H]."""
    shape = shape or random.Random(seed).choice(shapes)
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)),)


def reference(x: Tensor) -> Tensor:
    """The right result, in float64."""
    return x.double().square() + x.double()


def operator(x: Tensor) -> Tensor:
    """x squared, plus x."""
    buffer = torch.zeros_like(x)
    late = luck.random() < RATE

    def copy() -> None:
        if late:
            time.sleep(LATE)
        buffer.copy_(x)

    copying = _device.submit(copy)
    beside = x.square()
    if not late:
        copying.result()
    result = beside + buffer  # the fault: without copying.result() nothing says that buffer is there
    copying.result()
    return result
