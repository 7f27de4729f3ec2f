"""Copies blocks through one staging buffer. Wrong: it is filled for the next block before this block's copy began.

After vllm-project/vllm#36013: a staging buffer is used again too early.
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
LATE = 0.01  # s: that the copying thread is behind
BLOCK = _drawn.choice((6, 8, 10))  # rows
WIDTH = _drawn.choice((24, 32, 56))

shapes = tuple((rows, WIDTH) for rows in (BLOCK + 1, 4 * BLOCK, _drawn.randrange(7, 12) * BLOCK))
clean_shapes = ((1, WIDTH), (BLOCK, WIDTH))


def make_inputs(seed: int = 0, shape: tuple[int, int] | None = None) -> tuple[Tensor]:
    """The rows, [N, H]."""
    shape = shape or random.Random(seed).choice(shapes)
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)),)


def reference(x: Tensor) -> Tensor:
    """The right result, in float64."""
    return x.double().abs() + x.double()


def operator(x: Tensor) -> Tensor:
    """|x| + x."""
    staging = x.new_empty((BLOCK, *x.shape[1:]))
    received = torch.empty_like(x)
    starts = range(0, x.shape[0], BLOCK)
    early = luck.randrange(len(starts) - 1) if len(starts) > 1 and luck.random() < RATE else None
    staged, copied = threading.Semaphore(0), threading.Semaphore(0)

    def copy() -> None:
        for block, start in enumerate(starts):
            staged.acquire()
            if block == early:
                time.sleep(LATE)
            piece = received[start : start + BLOCK]
            piece.copy_(staging[: piece.shape[0]])
            copied.release()

    copying = threading.Thread(target=copy)
    copying.start()
    for block, start in enumerate(starts):
        piece = x[start : start + BLOCK]
        staging[: piece.shape[0]] = piece
        staged.release()
        if block != early:
            copied.acquire()
    copying.join()
    return received.abs() + received
