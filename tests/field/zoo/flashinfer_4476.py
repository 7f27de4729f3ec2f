"""Scales in a staging buffer that is kept from call to call. Wrong: it is found by shape, not by caller.

After flashinfer-ai/flashinfer#4476: 2 and 41 of 100 calls are wrong with two callers at a time, none of 100 with one.
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

RATE = 0.4  # of pairs of calls at the same time
PAUSED = 0.3  # of calls pause with the buffer in use
LATE = 0.002  # s: how long
WIDTH = _drawn.choice((16, 48, 96))
FACTOR = _drawn.choice((1.5, 2.0, 3.0))

shapes = tuple((rows, WIDTH) for rows in (1, _drawn.randrange(8, 30), 64))
clean_shapes = ()
_staging: dict[tuple[int, ...], Tensor] = {}
_making = threading.Lock()


def make_inputs(seed: int = 0, shape: tuple[int, int] | None = None) -> tuple[Tensor]:
    """The rows, [N, H]."""
    shape = shape or random.Random(seed).choice(shapes)
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)),)


def reference(x: Tensor) -> Tensor:
    """The right result, in float64."""
    return x.double() * FACTOR + 1.0


def operator(x: Tensor) -> Tensor:
    """x times a constant, plus one."""
    with _making:
        staging = _staging.setdefault(tuple(x.shape), torch.empty_like(x))
        pauses = luck.random() < PAUSED
    staging.copy_(x)
    if pauses:
        time.sleep(LATE)
    staging.mul_(FACTOR)
    return staging + 1.0
