"""Evenly spaced values, by cores that write whole lines. Wrong: the tail core's line overlaps its neighbour's.

After torch.linspace on NPUs: intermittent for 41, 69 and 70 elements; multiples of 8 are clean.
"""

from __future__ import annotations

import os
import random
import threading

import torch
from torch import Tensor

_drawn = random.Random(os.environ.get("ZOO_SEED", "0"))  # shapes and constants
luck = random.Random(os.environ.get("ZOO_LUCK"))  # unset: another one for each process

RATE = 0.2  # of calls: the tail core is the last to write
LINE = 8  # elements that a core writes at once
START, STEP = _drawn.choice((1.0, 3.0)), _drawn.choice((0.25, 0.5, 2.0))

shapes = tuple((count,) for count in (LINE + 1, 41, 69, 70, _drawn.randrange(12, 60) * LINE + 3))
clean_shapes = ((1,), (5,), (LINE,), (5 * LINE,), (72,))


def make_inputs(seed: int = 0, shape: tuple[int, ...] | None = None) -> tuple[Tensor]:
    """The offsets of the values, [n]."""
    shape = shape or random.Random(seed).choice(shapes)
    return (torch.rand(shape, generator=torch.Generator().manual_seed(seed)),)


def reference(x: Tensor) -> Tensor:
    """The right result, in float64."""
    return x.double() + START + STEP * torch.arange(x.shape[0], dtype=torch.float64)


def operator(x: Tensor) -> Tensor:
    """x plus START, START + STEP, START + 2 STEP, ..."""
    count = x.shape[0]
    output = torch.empty_like(x)
    whole = count // LINE * LINE if count >= LINE else count
    last = luck.random() < RATE
    body_done, tail_done = threading.Event(), threading.Event()

    def values(begin: int, end: int) -> Tensor:
        steps = torch.arange(begin, end).view(-1, *[1] * (x.dim() - 1))
        return x[begin:end] + START + STEP * steps

    def body() -> None:
        if whole < count and not last:
            tail_done.wait()
        output[:whole] = values(0, whole)
        body_done.set()

    def tail() -> None:
        if last:
            body_done.wait()
        # The tail's line ends where the output does, so it begins inside the body; its elements there hold START alone.
        line = torch.full_like(x[count - LINE :], START)
        line[whole - count :] = values(whole, count)
        output[count - LINE :] = line
        tail_done.set()

    cores = [threading.Thread(target=core) for core in ((body, tail) if whole < count else (body,))]
    for core in cores:
        core.start()
    for core in cores:
        core.join()
    return output
