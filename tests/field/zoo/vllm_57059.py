"""Hands bf16 values from thread to thread. Wrong: some are read when one of their two bytes is new and the other old.

After vllm-project/vllm#57059: torn bf16 values without a system fence.
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

RATE = 0.05  # of calls
LATE = 0.01  # s: from the values' high bytes to their low ones
WIDTH = _drawn.choice((64, 72, 96))
FACTOR = _drawn.choice((1.0, 2.0, 0.25))  # exact in bf16

shapes = tuple((rows, WIDTH) for rows in (1, _drawn.randrange(4, 40), 128))
clean_shapes = ()


def make_inputs(seed: int = 0, shape: tuple[int, int] | None = None) -> tuple[Tensor]:
    """The rows in bf16, [N, H]."""
    shape = shape or random.Random(seed).choice(shapes)
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16(),)


def reference(x: Tensor) -> Tensor:
    """The right result, in float64."""
    return x.bfloat16().double() * FACTOR


def operator(x: Tensor) -> Tensor:
    """x times a power of two, in bf16."""
    values = (x * FACTOR).bfloat16().contiguous().view(torch.uint8).view(-1)
    shared = torch.zeros_like(values)
    flag = threading.Event()
    torn = luck.random() < RATE
    here = luck.randrange(values.numel() // 2) * 2 if torn else values.numel()

    def send() -> None:
        shared[:here] = values[:here]
        shared[here + 1 :: 2] = values[here + 1 :: 2]  # little endian: the high bytes
        flag.set()
        if torn:
            time.sleep(LATE)
            shared[here::2] = values[here::2]

    sender = threading.Thread(target=send)
    sender.start()
    flag.wait()
    received = shared.clone()
    sender.join()
    return received.view(torch.bfloat16).view(x.shape)
