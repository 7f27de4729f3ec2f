"""Adds up blocks of rows in the order in which threads come. No fault: only the order differs, as with float atomics.

After flashinfer-ai/flashinfer#5034: 99 of 99 calls differ in the last bits, until ranks take different branches of it.
"""

from __future__ import annotations

import os
import random
import threading

import torch
from torch import Tensor

_drawn = random.Random(os.environ.get("ZOO_SEED", "0"))  # shapes and constants
luck = random.Random(os.environ.get("ZOO_LUCK"))  # unset: another one for each process

BLOCKS = _drawn.choice((6, 8, 12))
WIDTH = _drawn.choice((48, 64, 128))

shapes = tuple((rows, WIDTH) for rows in (BLOCKS, _drawn.randrange(20, 60), 128))
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
    total = x.new_zeros(x.shape[1:])
    one_at_a_time = threading.Lock()
    blocks = list(x.tensor_split(min(BLOCKS, x.shape[0])))
    luck.shuffle(blocks)  # which thread the scheduler runs first

    def add(block: Tensor) -> None:
        partial = block.sum(0)
        with one_at_a_time:
            total.add_(partial)

    threads = [threading.Thread(target=add, args=(block,)) for block in blocks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return total
