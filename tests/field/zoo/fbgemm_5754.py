"""Pools rows of an embedding by bags. Wrong: the results of empty bags are never written.

After pytorch/FBGEMM#5754: padding rows are uninitialised. What they hold depends on the program's other work, of which
some is done here ahead of the call.
"""

from __future__ import annotations

import os
import random

import torch
from torch import Tensor

_drawn = random.Random(os.environ.get("ZOO_SEED", "0"))  # shapes and constants

WIDTH = _drawn.choice((224, 256, 384))
EMPTY = _drawn.choice((3, 5, 7))  # of so many bags the last one is empty

shapes = tuple((bags, WIDTH) for bags in (2 * EMPTY, _drawn.randrange(20, 50), 96))
clean_shapes = ((1, WIDTH), (EMPTY - 1, WIDTH))


def make_inputs(seed: int = 0, shape: tuple[int, int] | None = None) -> tuple[Tensor]:
    """The bags' sums, of which each EMPTY-th is zeros, for an empty bag, [B, H]."""
    shape = shape or random.Random(seed).choice(shapes)
    bags = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    bags[EMPTY - 1 :: EMPTY] = 0.0
    return (bags,)


def reference(x: Tensor) -> Tensor:
    """The right result, in float64."""
    return x.double() * 0.5


def operator(x: Tensor) -> Tensor:
    """Half of each bag's sum."""
    output = torch.empty_like(x)  # the fault: empty bags are passed over
    for bag in x.any(-1).nonzero().flatten().tolist():
        torch.mul(x[bag], 0.5, out=output[bag])
    return output
