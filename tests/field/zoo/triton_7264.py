"""Two threads write the same sums into the same place. No fault: they differ by their rounding only.

After triton-lang/triton#7264: a race of two writes that is benign.
"""

from __future__ import annotations

import os
import random
import threading

import torch
from torch import Tensor

_drawn = random.Random(os.environ.get("ZOO_SEED", "0"))  # shapes and constants
luck = random.Random(os.environ.get("ZOO_LUCK"))  # unset: another one for each process

SWAPPED = 0.5  # of calls: the thread that usually writes first writes last
WIDTH = _drawn.choice((64, 96, 160))

shapes = tuple((rows, WIDTH) for rows in (8, _drawn.randrange(20, 60), 100))
clean_shapes = ((1, WIDTH), (2, WIDTH))


def make_inputs(seed: int = 0, shape: tuple[int, int] | None = None) -> tuple[Tensor]:
    """The rows, [N, H]."""
    shape = shape or random.Random(seed).choice(shapes)
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)),)


def reference(x: Tensor) -> Tensor:
    """The right result, in float64."""
    return x.double().sum(0)


def magnitude(x: Tensor) -> Tensor:
    """The sum of the absolute values that are added up, in float64."""
    return x.double().abs().sum(0)


def operator(x: Tensor) -> Tensor:
    """The sum of all rows, [H]."""
    output = x.new_empty(x.shape[1:])
    first_wrote = threading.Event()
    upwards, downwards = x, x.flip(0)
    first, last = (downwards, upwards) if luck.random() < SWAPPED else (upwards, downwards)

    def write(rows: Tensor) -> None:
        total = torch.zeros_like(rows[0])
        for row in rows:
            total += row
        if rows is last:
            first_wrote.wait()
        output.copy_(total)
        first_wrote.set()

    threads = [threading.Thread(target=write, args=(rows,)) for rows in (first, last)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return output
