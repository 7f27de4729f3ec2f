"""Sums rows by blocks of columns. Wrong: a masked load leaves beyond the end what the block's memory held.

After vllm-project/vllm-ascend, pull request 10276: NaN where the length is no multiple of the block.
"""

from __future__ import annotations

import os
import random

import torch
from torch import Tensor

_drawn = random.Random(os.environ.get("ZOO_SEED", "0"))  # shapes and constants

RATE = 1.0  # of calls
BLOCK = _drawn.choice((16, 32, 48))  # columns
ROWS = _drawn.choice((3, 10, 32))

shapes = tuple((ROWS, columns) for columns in (1, BLOCK + _drawn.randrange(1, BLOCK), 5 * BLOCK - 1))
clean_shapes = ((1, BLOCK), (ROWS, BLOCK), (ROWS, 4 * BLOCK))


def make_inputs(seed: int = 0, shape: tuple[int, int] | None = None) -> tuple[Tensor]:
    """The rows, [N, L]."""
    shape = shape or random.Random(seed).choice(shapes)
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)),)


def reference(x: Tensor) -> Tensor:
    """The right result, in float64."""
    return x.double().sum(-1)


def operator(x: Tensor) -> Tensor:
    """Each row's sum, [N]."""
    total = x.new_zeros(x.shape[:-1])
    registers = x.new_full((*x.shape[:-1], BLOCK), torch.nan)
    for start in range(0, x.shape[-1], BLOCK):
        piece = x[..., start : start + BLOCK]
        registers.fill_(torch.nan)
        registers[..., : piece.shape[-1]] = piece  # the fault: the load's `other=0` isn't honoured
        total += registers.sum(-1)
    return total
