"""Broadcasts the first rank's row. Wrong: at the first iteration the sender's data isn't flushed when the others read.

After ROCm/aorta#205: at iteration 0 all receivers get byte-identical zeros.
"""

from __future__ import annotations

import os
import random
import threading

import torch
from torch import Tensor

_drawn = random.Random(os.environ.get("ZOO_SEED", "0"))  # shapes and constants

RATE = 1.0  # of first calls; later ones are clean
WIDTH = _drawn.choice((20, 64, 90))

shapes = tuple((ranks, WIDTH) for ranks in (2, 4, _drawn.choice((8, 12, 16))))
clean_shapes = ((1, WIDTH),)
_mapped = False  # the sender's memory is mapped for the others when its first transfer ends


def make_inputs(seed: int = 0, shape: tuple[int, int] | None = None) -> tuple[Tensor]:
    """Each rank's row, [R, H]."""
    shape = shape or random.Random(seed).choice(shapes)
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)),)


def reference(x: Tensor) -> Tensor:
    """The right result, in float64."""
    return x.double()[:1].expand_as(x).clone()


def operator(x: Tensor) -> Tensor:
    """The first rank's row, in every rank."""
    global _mapped
    window = torch.zeros_like(x[0])
    announced, received = threading.Event(), threading.Event()
    flushed = _mapped

    def send() -> None:
        if flushed:
            window.copy_(x[0])
        announced.set()
        received.wait()
        window.copy_(x[0])

    sender = threading.Thread(target=send)
    sender.start()
    announced.wait()
    output = torch.cat((x[:1], window.expand(x.shape[0] - 1, *x.shape[1:])))
    received.set()
    sender.join()
    _mapped = True
    return output
