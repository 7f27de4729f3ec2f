"""Gathers each layer's parameters on a stream of its own. Wrong: the computation waits for another stream.

After deepspeedai/DeepSpeed#7898: random layers are NaN. The gathered buffers are filled with NaN when they are made.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

import torch
from torch import Tensor

_drawn = random.Random(os.environ.get("ZOO_SEED", "0"))  # shapes and constants
luck = random.Random(os.environ.get("ZOO_LUCK"))  # unset: another one for each process

RATE = 0.08  # of calls
LATE = 0.01  # s: that the stream with the gathers is behind
WIDTH = _drawn.choice((16, 72, 128))
FACTOR = _drawn.choice((0.5, 1.5))

shapes = tuple((layers, WIDTH) for layers in (1, _drawn.randrange(3, 9), 24))
clean_shapes = ()


class Stream:
    """Runs what it is given, in order, on a thread of its own."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Callable[[], object]] = SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            self._jobs.get()()

    def submit(self, job: Callable[[], object]) -> None:
        """Runs a job after those before it, later."""
        self._jobs.put(job)

    def wait(self) -> None:
        """Waits until all that was submitted is done."""
        done = threading.Event()
        self.submit(done.set)
        done.wait()


_streams: list[Stream] = []


def make_inputs(seed: int = 0, shape: tuple[int, int] | None = None) -> tuple[Tensor]:
    """Each layer's parameters, [L, H]."""
    shape = shape or random.Random(seed).choice(shapes)
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)),)


def reference(x: Tensor) -> Tensor:
    """The right result, in float64."""
    return x.double() * FACTOR


def operator(x: Tensor) -> Tensor:
    """Each layer's parameters, scaled."""
    if not _streams:
        _streams.extend((Stream(), Stream()))
    gathers, copies = _streams
    buffers = torch.full_like(x, torch.nan)
    behind = luck.randrange(x.shape[0]) if luck.random() < RATE else None
    output = torch.empty_like(x)
    for layer in range(x.shape[0]):
        if layer == behind:
            gathers.submit(lambda: time.sleep(LATE))
        gathers.submit(lambda layer=layer: buffers[layer].copy_(x[layer]))
        (copies if layer == behind else gathers).wait()  # the fault: a layer whose handle names the other stream
        torch.mul(buffers[layer], FACTOR, out=output[layer])
    gathers.wait()
    return output
