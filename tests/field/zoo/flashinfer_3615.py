"""Sums by blocks; the last one to arrive at a counter closes the sum. Wrong: a launch of one block leaves it counted.

After flashinfer-ai/flashinfer#3615: a counter is left over from the launch before. Some calls launch one block ahead,
for a layer of their own.
"""

from __future__ import annotations

import os
import random

import torch
from torch import Tensor

_drawn = random.Random(os.environ.get("ZOO_SEED", "0"))  # shapes and constants
luck = random.Random(os.environ.get("ZOO_LUCK"))  # unset: another one for each process

RATE = 0.1  # of calls: those that launch one block ahead; all calls that follow one with a single block
BLOCK = _drawn.choice((8, 12, 16))  # rows
WIDTH = _drawn.choice((20, 32, 48))

shapes = tuple((rows, WIDTH) for rows in (BLOCK + 1, _drawn.randrange(3, 6) * BLOCK, 8 * BLOCK))
clean_shapes = ((1, WIDTH), (BLOCK, WIDTH))
_workspace = torch.zeros(1, dtype=torch.int64)  # the counter; kept from launch to launch


def make_inputs(seed: int = 0, shape: tuple[int, int] | None = None) -> tuple[Tensor]:
    """The rows, [N, H]."""
    shape = shape or random.Random(seed).choice(shapes)
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)),)


def reference(x: Tensor) -> Tensor:
    """The right result, in float64."""
    return x.double().sum(0)


def _launch(x: Tensor) -> Tensor:
    blocks = max(1, -(-x.shape[0] // BLOCK))
    partials = x.new_zeros((blocks, *x.shape[1:]))
    if blocks == 1:
        _workspace[0] = 1  # the fault: nobody closes a sum of one block, so nobody clears the counter
        return x.sum(0)
    total = None
    for block in range(blocks):
        partials[block] = x[block * BLOCK : (block + 1) * BLOCK].sum(0)
        _workspace[0] += 1
        if int(_workspace[0]) == blocks:
            total = partials.sum(0)
    _workspace[0] = 0
    assert total is not None
    return total


def operator(x: Tensor) -> Tensor:
    """The sum of all rows, [H]."""
    if luck.random() < RATE:
        _launch(x[:1])
    return _launch(x)
