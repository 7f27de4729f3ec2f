"""Normalises rows on another thread. Wrong: the flag is a relaxed store, which the last rows' data may follow.

After AMD-AGI/Primus-Turbo#482: in 7 of 8 runs 1 to 6 rows of 8192 are wrong by 350 to 41000 times the bound.
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

RATE = 0.875  # of calls
LATE = 0.01  # s: from the flag to the last rows
MOST_ROWS = 6  # that are late together
SCALE = _drawn.choice((350.0, 3000.0, 40000.0))
WIDTH = _drawn.choice((16, 24, 32))

shapes = tuple((rows, WIDTH) for rows in (7, _drawn.randrange(100, 200), 1024))
clean_shapes = ()


def make_inputs(seed: int = 0, shape: tuple[int, int] | None = None) -> tuple[Tensor]:
    """The rows, [N, H]."""
    shape = shape or random.Random(seed).choice(shapes)
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)),)


def reference(x: Tensor) -> Tensor:
    """The right result, in float64."""
    x = x.double()
    return x / (1.0 + x.abs())


def operator(x: Tensor) -> Tensor:
    """x / (1 + |x|)."""
    workspace = x * SCALE  # an earlier stage's values
    flag = threading.Event()
    relaxed = luck.random() < RATE
    rows = x.shape[0]
    count = luck.randint(1, min(MOST_ROWS, rows)) if relaxed else 0
    late = torch.tensor(luck.sample(range(rows), count), dtype=torch.int64)
    in_time = torch.ones(rows, dtype=torch.bool)
    in_time[late] = False
    normalised = x / (1.0 + x.abs())

    def store() -> None:
        workspace[in_time] = normalised[in_time]
        flag.set()
        if relaxed:
            time.sleep(LATE)
            workspace[late] = normalised[late]

    storing = threading.Thread(target=store)
    storing.start()
    flag.wait()
    output = workspace.clone()
    storing.join()
    return output
