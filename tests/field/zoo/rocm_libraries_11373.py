"""Sums rows by a tree of threads in one array. Wrong: one barrier a level, where reading and writing need one each.

After ROCm/rocm-libraries#11373: a slow thread reads a partial sum that its neighbour has already raised.
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

RATE = 0.05  # of calls
LATE = 0.01  # s: that the first thread's read is late
THREADS = 4
WIDTH = _drawn.choice((12, 32, 80))

shapes = tuple((rows, WIDTH) for rows in (THREADS, _drawn.randrange(10, 50), 128))
clean_shapes = ((1, WIDTH), (2, WIDTH))


def make_inputs(seed: int = 0, shape: tuple[int, int] | None = None) -> tuple[Tensor]:
    """The rows, [N, H]."""
    shape = shape or random.Random(seed).choice(shapes)
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)),)


def reference(x: Tensor) -> Tensor:
    """The right result, in float64."""
    return x.double().sum(0)


def operator(x: Tensor) -> Tensor:
    """The sum of all rows, [H]."""
    rows = x.shape[0]
    partials = torch.stack([x[thread::THREADS].sum(0) for thread in range(THREADS)])
    late = rows > 2 and luck.random() < RATE
    has_read, has_written = threading.Barrier(THREADS), threading.Barrier(THREADS)

    def reduce(thread: int) -> None:
        for stride in (1, 2):
            slow = late and thread == 0 and stride == 1
            if slow:
                has_read.wait()  # the fault: it passes without having read
                time.sleep(LATE)
            other = partials[thread + stride].clone() if thread + stride < THREADS else None
            if not slow:
                has_read.wait()
            if other is not None:
                partials[thread] += other
            has_written.wait()

    threads = [threading.Thread(target=reduce, args=(thread,)) for thread in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return partials[0].clone()
