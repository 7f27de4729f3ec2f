"""Sums as many blocks as a peer's signal word says. Wrong: the word is written in two halves, and read in between.

After vllm-project/vllm#2760: without a system fence a signal word is torn.
"""

from __future__ import annotations

import os
import random
import threading
import time

import numpy as np
import torch
from torch import Tensor

_drawn = random.Random(os.environ.get("ZOO_SEED", "0"))  # shapes and constants
luck = random.Random(os.environ.get("ZOO_LUCK"))  # unset: another one for each process

RATE = 0.04  # of calls
LATE = 0.01  # s: from the word's first half to its second
BLOCK = _drawn.choice((4, 8))  # rows
WIDTH = _drawn.choice((24, 40, 64))

shapes = tuple((rows, WIDTH) for rows in (BLOCK + 1, _drawn.randrange(3, 9) * BLOCK, 100))
clean_shapes = ((1, WIDTH), (BLOCK, WIDTH))


def make_inputs(seed: int = 0, shape: tuple[int, int] | None = None) -> tuple[Tensor]:
    """The rows, [N, H]."""
    shape = shape or random.Random(seed).choice(shapes)
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)),)


def reference(x: Tensor) -> Tensor:
    """The right result, in float64."""
    return x.double().sum(0)


def operator(x: Tensor) -> Tensor:
    """The sum of all rows, [H]."""
    blocks = -(-x.shape[0] // BLOCK)
    word = np.array([0, 1], dtype=np.uint32)  # epoch, blocks: that of the single block which each call begins with
    posted = threading.Event()
    torn = luck.random() < RATE

    def post() -> None:
        if torn:
            word[0] = 1
            posted.set()
            time.sleep(LATE)
            word[1] = blocks
        else:
            word[1] = blocks
            word[0] = 1
            posted.set()

    poster = threading.Thread(target=post)
    poster.start()
    posted.wait()
    total = x.new_zeros(x.shape[1:])
    epoch, count = word.tolist()
    for block in range(count if epoch else 0):
        total += x[block * BLOCK : (block + 1) * BLOCK].sum(0)
    poster.join()
    return total
