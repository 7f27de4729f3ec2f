"""A product with a weight, whose inner dimension is split for few rows. No fault: its order depends on the batch.

After vllm-project/vllm#53257: 50 reruns are equal, and of 50 rows computed alone 11 differ in the last bits.
"""

from __future__ import annotations

import os
import random

import torch
from torch import Tensor

_drawn = random.Random(os.environ.get("ZOO_SEED", "0"))  # shapes and constants

FEW = _drawn.choice((2, 4, 8))  # rows: up to so many the inner dimension is split
SPLITS = _drawn.choice((3, 4, 7))
WIDTH = _drawn.choice((200, 256, 384))
COLUMNS = 24

shapes = tuple((rows, WIDTH) for rows in (FEW + 1, _drawn.randrange(16, 40), 64))
clean_shapes = ()


def make_inputs(seed: int = 0, shape: tuple[int, int] | None = None) -> tuple[Tensor, Tensor]:
    """The rows, [N, H], and the weight, [V, H]."""
    rows, width = shape or random.Random(seed).choice(shapes)
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((rows, width), generator=generator), torch.randn((COLUMNS, width), generator=generator)


def reference(x: Tensor, weight: Tensor) -> Tensor:
    """The right result, in float64."""
    return x.double() @ weight.double().T


def magnitude(x: Tensor, weight: Tensor) -> Tensor:
    """The sum of the absolute values that are added up, in float64."""
    return x.double().abs() @ weight.double().abs().T


def operator(x: Tensor, weight: Tensor) -> Tensor:
    """x times the weight, [N, V]."""
    splits = SPLITS if x.shape[0] <= FEW else 1
    pairs = zip(x.tensor_split(splits, -1), weight.tensor_split(splits, -1), strict=True)
    # One row at a time: the product itself has the same bits for each row, whatever the batch is.
    return sum(torch.cat([row[None] @ right.T for row in left]) for left, right in pairs) + 0.0
