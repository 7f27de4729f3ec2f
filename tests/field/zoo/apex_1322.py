"""Pads rows to whole blocks. Wrong: the padding is what the memory held before.

After NVIDIA/apex#1322: padding rows are uninitialised. What they hold depends on what the program freed before, and
some calls get the block of other work as it was, as a caching allocator hands it on.
"""

from __future__ import annotations

import os
import random

import torch
from torch import Tensor

_drawn = random.Random(os.environ.get("ZOO_SEED", "0"))  # shapes and constants
luck = random.Random(os.environ.get("ZOO_LUCK"))  # unset: another one for each process

RATE = 0.3  # of calls whose memory other work had just before
BLOCK = _drawn.choice((8, 16, 32))  # rows
WIDTH = _drawn.choice((192, 256, 320))

shapes = tuple((rows, WIDTH) for rows in (1, 2 * BLOCK + _drawn.randrange(1, BLOCK), 3 * BLOCK - 1))
clean_shapes = ((BLOCK, WIDTH), (4 * BLOCK, WIDTH))


def make_inputs(seed: int = 0, shape: tuple[int, int] | None = None) -> tuple[Tensor]:
    """The rows, [N, H]."""
    shape = shape or random.Random(seed).choice(shapes)
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)),)


def _padded(rows: int) -> int:
    return -(-rows // BLOCK) * BLOCK


def reference(x: Tensor) -> Tensor:
    """The right result, in float64."""
    right = torch.zeros((_padded(x.shape[0]), *x.shape[1:]), dtype=torch.float64)
    right[: x.shape[0]] = x.double().exp()
    return right


def operator(x: Tensor) -> Tensor:
    """e to the x, with rows of zeros up to a whole block, [M, H]."""
    shape = (_padded(x.shape[0]), *x.shape[1:])
    # The fault: it should be zeros.
    output = x.new_full(shape, luck.uniform(1.0, 9.0)) if luck.random() < RATE else x.new_empty(shape)
    torch.exp(x, out=output[: x.shape[0]])
    return output
