"""Softmax by rows, tiled. Wrong: for one small shape the columns are divided into tiles by the floor.

After vllm-project/vllm-ascend, pull request 12123: wrong at shape [2, 192] only, by a tiling for small shapes.
"""

from __future__ import annotations

import os
import random

import torch
from torch import Tensor

_drawn = random.Random(os.environ.get("ZOO_SEED", "0"))  # shapes and constants

RATE = 1.0  # of calls
TILE = _drawn.choice((64, 96, 128))  # columns
SMALL = _drawn.choice((2, 3))  # rows
COLUMNS = TILE * 3 // 2

shapes = ((SMALL, COLUMNS),)
clean_shapes = ((SMALL - 1, COLUMNS), (SMALL + 1, COLUMNS), (SMALL, COLUMNS + 1), (SMALL, TILE), (SMALL, 2 * TILE))


def make_inputs(seed: int = 0, shape: tuple[int, int] | None = None) -> tuple[Tensor]:
    """The logits, [N, V]."""
    shape = shape or random.Random(seed).choice(shapes)
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)),)


def reference(x: Tensor) -> Tensor:
    """The right result, in float64."""
    return x.double().softmax(-1)


def operator(x: Tensor) -> Tensor:
    """The softmax of each row."""
    rows, columns = x.shape
    by_floor = rows == SMALL and columns == COLUMNS
    tiles = columns // TILE if by_floor else -(-columns // TILE)
    output = torch.zeros_like(x)
    exponentials = [(x[:, tile * TILE : (tile + 1) * TILE] - x.amax(-1, keepdim=True)).exp() for tile in range(tiles)]
    total = sum(part.sum(-1, keepdim=True) for part in exponentials)
    for tile, part in enumerate(exponentials):
        output[:, tile * TILE : (tile + 1) * TILE] = part / total
    return output
