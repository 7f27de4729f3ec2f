"""Adds up pieces around a ring of as many workers as torch has threads. No fault: another ring is another order.

After tenstorrent/tt-metal#47831: the order of a ring's sum depends on the number of workers; reruns are equal.
"""

from __future__ import annotations

import os
import random

import torch
from torch import Tensor

_drawn = random.Random(os.environ.get("ZOO_SEED", "0"))  # shapes and constants

PIECES = _drawn.choice((12, 24, 36))
WIDTH = _drawn.choice((48, 64, 112))

shapes = tuple((rows, WIDTH) for rows in (PIECES, _drawn.randrange(40, 80), 128))
clean_shapes = ((1, WIDTH), (2, WIDTH))


def make_inputs(seed: int = 0, shape: tuple[int, int] | None = None) -> tuple[Tensor]:
    """The rows, [N, H]."""
    shape = shape or random.Random(seed).choice(shapes)
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)),)


def reference(x: Tensor) -> Tensor:
    """The right result, in float64."""
    return x.double().sum(0)


def magnitude(x: Tensor) -> Tensor:
    """The sum of the absolute values that are added up, in float64."""
    return x.double().abs().sum(0)


def _in_order(rows: Tensor) -> Tensor:  # [N, H] -> [H]; by hand, since torch's sum depends on threads as well
    total = torch.zeros_like(rows[0])
    for row in rows:
        total += row
    return total


def operator(x: Tensor) -> Tensor:
    """The sum of all rows, [H]."""
    workers = min(torch.get_num_threads(), x.shape[0])
    return _in_order(torch.stack([_in_order(x[worker::workers]) for worker in range(workers)]))
