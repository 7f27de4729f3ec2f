"""A product whose library is told its precision when it is first used. Not a race of data: the first call is coarse.

After pytorch/pytorch#188792: lower precision in the first call only, from a race of the library's initialisation.
"""

from __future__ import annotations

import os
import random
import threading

import torch
from torch import Tensor

_drawn = random.Random(os.environ.get("ZOO_SEED", "0"))  # shapes and constants

RATE = 1.0  # of first calls; later ones are clean
WIDTH = _drawn.choice((32, 64, 200))
COLUMNS = 24

shapes = tuple((rows, WIDTH) for rows in (1, _drawn.randrange(6, 30), 64))
clean_shapes = ()
_precise = threading.Event()


def make_inputs(seed: int = 0, shape: tuple[int, int] | None = None) -> tuple[Tensor, Tensor]:
    """The rows, [N, H], and the weight, [V, H]."""
    rows, width = shape or random.Random(seed).choice(shapes)
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((rows, width), generator=generator), torch.randn((COLUMNS, width), generator=generator)


def reference(x: Tensor, weight: Tensor) -> Tensor:
    """The right result, in float64."""
    return x.double() @ weight.double().T


def operator(x: Tensor, weight: Tensor) -> Tensor:
    """x times the weight, [N, V]."""
    precise = _precise.is_set()  # the fault: it doesn't wait for the library's initialisation, which it starts
    initialisation = threading.Thread(target=_precise.set)
    initialisation.start()
    if not precise:
        x, weight = (operand.bfloat16().to(operand.dtype) for operand in (x, weight))
    product = x @ weight.T
    initialisation.join()
    return product
