"""Two command buffers take turns. Wrong: one of them frees its input while that is still being read.

After tenstorrent/tt-metal#46190: every even iteration is wrong.
"""

from __future__ import annotations

import os
import random
import threading

import torch
from torch import Tensor

_drawn = random.Random(os.environ.get("ZOO_SEED", "0"))  # shapes and constants

RATE = 0.5  # of calls: each second one
WIDTH = _drawn.choice((16, 48, 80))
FACTOR = _drawn.choice((0.5, 2.0, 4.0))

shapes = tuple((rows, WIDTH) for rows in (1, _drawn.randrange(5, 30), 64))
clean_shapes = ()
_calls = 0


def make_inputs(seed: int = 0, shape: tuple[int, int] | None = None) -> tuple[Tensor]:
    """The rows, [N, H]."""
    shape = shape or random.Random(seed).choice(shapes)
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)),)


def reference(x: Tensor) -> Tensor:
    """The right result, in float64."""
    return x.double() * FACTOR + x.double().square()


def operator(x: Tensor) -> Tensor:
    """x times a constant, plus the square of x."""
    global _calls
    _calls += 1
    free = [torch.empty_like(x), torch.empty_like(x)]  # the memory pool
    staged = free.pop(0).copy_(x)
    if _calls % 2:
        free.append(staged)  # freed, but the next to be handed out is the other one
    else:
        free.insert(0, staged)
    result = torch.empty_like(x)
    written = threading.Event()

    def run() -> None:
        written.wait()
        torch.mul(staged, FACTOR, out=result)

    device = threading.Thread(target=run)
    device.start()
    squares = torch.square(x, out=free.pop(0))  # in memory that was handed out
    written.set()
    device.join()
    return result.add_(squares)
