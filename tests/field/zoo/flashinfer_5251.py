"""Top k of each row from candidates of blocks. Wrong: one thread reports its block as done before it is.

After flashinfer-ai/flashinfer#5251: the set of the best k is wrong.
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
LATE = 0.01  # s: from the release to the candidates
THREADS = 2
K = _drawn.choice((4, 8, 16))

shapes = tuple((rows, columns) for rows in (1, 16) for columns in (4 * K, _drawn.randrange(70, 200)))
clean_shapes = ()


def make_inputs(seed: int = 0, shape: tuple[int, int] | None = None) -> tuple[Tensor]:
    """The scores, [N, V]; no two are equal."""
    shape = shape or random.Random(seed).choice(shapes)
    order = torch.randperm(shape[0] * shape[1], generator=torch.Generator().manual_seed(seed))
    return (order.view(shape).float() / 8.0 + 1.0,)


def reference(x: Tensor) -> Tensor:
    """The right result, in float64."""
    return x.double().topk(min(K, x.shape[-1]), -1).values


def operator(x: Tensor) -> Tensor:
    """The best K scores of each row, in descending order, [N, K]."""
    bounds = [x.shape[-1] * thread // THREADS for thread in range(THREADS + 1)]
    candidates = x.new_zeros((x.shape[0], THREADS, K))
    released = threading.Semaphore(0)
    early = luck.randrange(THREADS) if luck.random() < RATE else None

    def select(thread: int) -> None:
        block = x[:, bounds[thread] : bounds[thread + 1]]
        count = min(K, block.shape[-1])
        if thread == early:
            released.release()
            time.sleep(LATE)
        candidates[:, thread, :count] = block.topk(count, -1).values
        if thread != early:
            released.release()

    threads = [threading.Thread(target=select, args=(thread,)) for thread in range(THREADS)]
    for thread in threads:
        thread.start()
    for _ in threads:
        released.acquire()
    best = candidates.flatten(1).topk(min(K, x.shape[-1]), -1).values
    for thread in threads:
        thread.join()
    return best
