"""Combines two experts' copies of each token. Wrong: the poll sees the flag before the data behind it.

After deepseek-ai/DeepEP#621: the combine of the two best of 256 experts has to be exactly twice the token.
"""

from __future__ import annotations

import os
import random
import threading
import time

import torch
from torch import Tensor

_drawn = random.Random(os.environ.get("ZOO_SEED", "0"))  # shapes and constants
luck = random.Random(os.environ.get("ZOO_LUCK"))  # unset: another one for each process

RATE = 0.06  # of calls
LATE = 0.01  # s: from the flag to the rest of the data
WIDTH = _drawn.choice((32, 96, 128))

shapes = tuple((tokens, WIDTH) for tokens in (1, 3, _drawn.randrange(16, 64), 128))
clean_shapes = ()


def make_inputs(seed: int = 0, shape: tuple[int, int] | None = None) -> tuple[Tensor]:
    """The tokens, [T, H]."""
    shape = shape or random.Random(seed).choice(shapes)
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)),)


def reference(x: Tensor) -> Tensor:
    """The right result, in float64."""
    return x.double() * 2.0


def operator(x: Tensor) -> Tensor:
    """The sum of both experts' copies."""
    received = torch.zeros_like(x)
    flag = threading.Event()
    early = luck.random() < RATE
    here = luck.randrange(x.shape[0]) if early else x.shape[0]  # rows that are there when the flag is

    def send() -> None:
        received[:here] = x[:here]
        flag.set()
        if early:
            time.sleep(LATE)
            received[here:] = x[here:]

    sender = threading.Thread(target=send)
    sender.start()
    own = x.clone()
    flag.wait()
    combined = own + received
    sender.join()
    return combined
