"""All-reduces two ranks' data, by one protocol for small and another for large messages. Wrong: a path in between.

After NVIDIA/nccl#2001: about 30 % of runs are wrong at exactly 1 048 576 bytes, and at no other size.
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

RATE = 0.3  # of calls at exactly BYTES
LATE = 0.01  # s: from the flag to the last chunk
BYTES = _drawn.choice((1 << 18, 1 << 19, 1 << 20))
CHUNK = 1 << 12  # elements
ELEMENTS = BYTES // 4

shapes = ((ELEMENTS,),)
clean_shapes = ((ELEMENTS - 1,), (ELEMENTS + 1,), (ELEMENTS // 2,), (CHUNK,))


def make_inputs(seed: int = 0, shape: tuple[int, ...] | None = None) -> tuple[Tensor]:
    """The message in fp32, [n]."""
    shape = shape or random.Random(seed).choice(shapes)
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)),)


def reference(x: Tensor) -> Tensor:
    """The right result, in float64."""
    return x.double() * 3.0


def operator(x: Tensor) -> Tensor:
    """The sum of this rank's data, x, and the other's, 2 x."""
    size = x.numel()
    fenced = size * x.element_size() != BYTES
    early = not fenced and luck.random() < RATE
    here = luck.randrange(size // CHUNK) * CHUNK if early else size
    arrived = torch.zeros_like(x)
    flag = threading.Event()

    def send() -> None:
        torch.mul(x[:here], 2.0, out=arrived[:here])
        if early:
            torch.mul(x[here + CHUNK :], 2.0, out=arrived[here + CHUNK :])
            flag.set()
            time.sleep(LATE)
            torch.mul(x[here : here + CHUNK], 2.0, out=arrived[here : here + CHUNK])
        flag.set()

    sender = threading.Thread(target=send)
    sender.start()
    flag.wait()
    total = x + arrived
    sender.join()
    return total
