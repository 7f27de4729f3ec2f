"""Normalises rows with the sum that the fastest thread wrote. Wrong: it is read between the claim and the value.

After sgl-project/sglang#11183: the winner's sum is still 0 when the others divide by it, and the row NaN or infinite.
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

RATE = 0.04  # of calls
LATE = 0.01  # s: from the claim to the sum
WIDTH = _drawn.choice((32, 50, 128))
ZEROS = 0.5  # of the weights are 0, as after top-p: 0 / 0

shapes = tuple((rows, WIDTH) for rows in (1, _drawn.randrange(5, 30), 64))
clean_shapes = ()


def make_inputs(seed: int = 0, shape: tuple[int, int] | None = None) -> tuple[Tensor]:
    """Weights, none negative, [N, V]."""
    shape = shape or random.Random(seed).choice(shapes)
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(shape, generator=generator) + 0.1
    kept = torch.rand(shape, generator=generator) >= ZEROS
    kept[..., 0] = True
    return (weights * kept,)


def reference(x: Tensor) -> Tensor:
    """The right result, in float64."""
    return x.double() / x.double().sum(-1, keepdim=True)


def operator(x: Tensor) -> Tensor:
    """Each row divided by its sum."""
    sums = x.new_zeros((*x.shape[:-1], 1))
    claimed = threading.Event()
    early = luck.random() < RATE
    here = luck.randrange(x.shape[0]) if early else x.shape[0]

    def win() -> None:
        exact = x.sum(-1, keepdim=True)
        sums[:here] = exact[:here]
        claimed.set()
        if early:
            time.sleep(LATE)
            sums[here:] = exact[here:]

    winner = threading.Thread(target=win)
    winner.start()
    claimed.wait()
    normalised = x / sums
    winner.join()
    return normalised
