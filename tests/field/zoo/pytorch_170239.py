"""Averages over two ranks of gloo, beside a layer's work. Wrong: nobody waits for the collective.

After pytorch/pytorch#170239 and OpenNMT/OpenNMT-py#2295: the result of an asynchronous collective is read as it is. The
other rank is a thread of this process; the collective is gloo's own.
"""

from __future__ import annotations

import os
import random
import threading
import time
from datetime import timedelta
from queue import SimpleQueue

import torch
import torch.distributed as dist
from torch import Tensor

_drawn = random.Random(os.environ.get("ZOO_SEED", "0"))  # shapes and constants
luck = random.Random(os.environ.get("ZOO_LUCK"))  # unset: another one for each process

RATE = 0.05  # of calls
LATE = 0.03  # s: that the other rank comes later than the work beside the collective ends
WIDTH = _drawn.choice((33, 64, 100))
FACTOR = _drawn.choice((3.0, 5.0, -1.0))  # the other rank's data are x times this

shapes = tuple((rows, WIDTH) for rows in (1, _drawn.randrange(10, 40), 128))
clean_shapes = ()
_pending: list[dist.Work] = []
_posts: SimpleQueue[tuple[Tensor, float]] = SimpleQueue()
_ranks: list[dist.ProcessGroupGloo] = []


def make_inputs(seed: int = 0, shape: tuple[int, int] | None = None) -> tuple[Tensor]:
    """This rank's gradient, [N, H]."""
    shape = shape or random.Random(seed).choice(shapes)
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)),)


def reference(x: Tensor) -> Tensor:
    """The right result, in float64."""
    return x.double() * (1.0 + FACTOR) / 2.0


def _connect() -> None:
    """Makes both ranks; the other one lives on a thread that takes part in one collective after another."""
    store, timeout = dist.HashStore(), timedelta(seconds=60)
    connected = threading.Event()

    def other_rank() -> None:
        rank = dist.ProcessGroupGloo(store, 1, 2, timeout)
        connected.set()
        while True:
            share, late = _posts.get()
            time.sleep(late)
            rank.allreduce([share]).wait()

    threading.Thread(target=other_rank, daemon=True).start()
    _ranks.append(dist.ProcessGroupGloo(store, 0, 2, timeout))
    connected.wait()


def operator(x: Tensor) -> Tensor:
    """The average of both ranks' data."""
    if not _ranks:
        _connect()
    while _pending:
        _pending.pop().wait()  # the step before this one
    gradient = x.clone()
    late = luck.random() < RATE
    _posts.put((x * FACTOR, LATE if late else 0.0))
    work = _ranks[0].allreduce([gradient])
    _pending.append(work)
    # The layer's work beside it: long enough for the collective to end, unless the other rank is late.
    while not late and not work.is_completed():
        time.sleep(0)
    return gradient / 2.0  # the fault: no work.wait()
