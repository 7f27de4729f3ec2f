"""Two peers reduce through staged inputs. Wrong: no barrier at the exit, so a peer stages its next input too early.

After ROCm/aiter#3515: only long inputs are wrong, those that take more than one round.
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

RATE = 0.1  # of calls
LATE = 0.01  # s: that this peer is behind the other
STAGE = _drawn.choice((512, 768, 1024))  # elements of a round

shapes = ((STAGE + 1,), (2 * STAGE,), (3 * STAGE + _drawn.randrange(1, 200),))
clean_shapes = ((STAGE // 2,), (STAGE,))


def make_inputs(seed: int = 0, shape: tuple[int, ...] | None = None) -> tuple[Tensor]:
    """The elements, [n]."""
    shape = shape or random.Random(seed).choice(shapes)
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)),)


def reference(x: Tensor) -> Tensor:
    """The right result, in float64."""
    return x.double() * 1.5


def operator(x: Tensor) -> Tensor:
    """x and its half, which the other peer holds, added up."""
    staged = x.new_zeros(STAGE)
    entered, left = threading.Semaphore(0), threading.Semaphore(0)
    starts = range(0, x.numel(), STAGE)
    early = luck.randrange(1, len(starts)) if len(starts) > 1 and luck.random() < RATE else None

    def peer() -> None:
        for round_, start in enumerate(starts):
            if round_ and round_ != early:
                left.acquire()
            piece = x[start : start + STAGE]
            staged[: piece.numel()] = piece * 0.5
            entered.release()
            if round_ == early:
                left.acquire()

    other = threading.Thread(target=peer)
    other.start()
    output = torch.empty_like(x)
    for round_, start in enumerate(starts):
        piece = x[start : start + STAGE]
        entered.acquire()
        if early == round_ + 1:
            time.sleep(LATE)
        torch.add(piece, staged[: piece.numel()], out=output[start : start + STAGE])
        left.release()
    other.join()
    return output
