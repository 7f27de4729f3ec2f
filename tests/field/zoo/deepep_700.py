"""Scales rows that pass through a ring of slots. Wrong: a slot is handed back before its row was read.

After deepseek-ai/DeepEP#700: one row of 256 is wrong in 1.5 to 3.3 % of calls; batches that fit the ring are clean.
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

RATE = 0.033  # of calls; the upper end of the report's
LATE = 0.01  # s: that the reader is behind the one who fills the ring
SLOTS = _drawn.choice((96, 128, 160))
WIDTH = _drawn.choice((48, 56, 112))  # 7168 in the report

shapes = tuple((rows, WIDTH) for rows in (SLOTS + 1, SLOTS + 32, 2 * SLOTS))
clean_shapes = ((SLOTS // 2, WIDTH), (SLOTS, WIDTH))


def make_inputs(seed: int = 0, shape: tuple[int, int] | None = None) -> tuple[Tensor]:
    """The rows, [N, H]."""
    shape = shape or random.Random(seed).choice(shapes)
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)),)


def reference(x: Tensor) -> Tensor:
    """The right result, in float64."""
    return x.double() * 3.0 + 1.0


def operator(x: Tensor) -> Tensor:
    """Three times x, plus one."""
    rows = x.shape[0]
    ring = x.new_empty((SLOTS, *x.shape[1:]))
    output = torch.empty_like(x)
    filled, read = threading.Semaphore(0), threading.Semaphore(0)

    def fill() -> None:
        for start in range(0, rows, SLOTS):
            if start:
                read.acquire()
            chunk = x[start : start + SLOTS]
            ring[: len(chunk)] = chunk
            filled.release()

    filler = threading.Thread(target=fill)
    filler.start()
    behind = luck.random() < RATE
    for start in range(0, rows, SLOTS):
        stop = min(start + SLOTS, rows)
        filled.acquire()
        torch.mul(ring[: stop - start], 3.0, out=output[start:stop])
        following = min(rows - stop, SLOTS)
        if behind and following > 0:
            behind = False
            read.release()  # the fault: one row of the slots is still to be read
            time.sleep(LATE)
            row = luck.randrange(following)
            output[start + row] = ring[row] * 3.0
        else:
            read.release()
    filler.join()
    return output.add_(1.0)
