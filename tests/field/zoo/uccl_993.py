"""Doubles batches that a peer prepares and signals. Wrong: the reset of a signal can wipe one that came early.

After uccl-project/uccl#993 and tenstorrent/tt-metal#50794: it hangs. Two signals alternate, so that only the third
batch resets one that was in use. A hang lasts for ever, or ZOO_PATIENCE seconds, and then raises TimeoutError.
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
_patience = float(os.environ["ZOO_PATIENCE"]) if "ZOO_PATIENCE" in os.environ else None

RATE = 0.07  # of calls
LATE = 0.01  # s: that the reset is behind the peer
BATCH = _drawn.choice((8, 12, 16))  # rows
WIDTH = _drawn.choice((16, 40, 64))
SIGNALS = 2

shapes = tuple((rows, WIDTH) for rows in (2 * BATCH + 1, 3 * BATCH, 6 * BATCH))
clean_shapes = ((BATCH, WIDTH), (2 * BATCH, WIDTH))


def make_inputs(seed: int = 0, shape: tuple[int, int] | None = None) -> tuple[Tensor]:
    """The rows, [N, H]."""
    shape = shape or random.Random(seed).choice(shapes)
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)),)


def reference(x: Tensor) -> Tensor:
    """The right result, in float64."""
    return x.double() * 2.0


def operator(x: Tensor) -> Tensor:
    """Twice x, a batch at a time."""
    starts = range(0, x.shape[0], BATCH)
    prepared = torch.empty_like(x)
    output = torch.empty_like(x)
    signals = [threading.Event() for _ in range(SIGNALS)]
    reset = [threading.Event() for _ in starts]
    early = luck.randrange(SIGNALS, len(starts)) if len(starts) > SIGNALS and luck.random() < RATE else None

    def prepare() -> None:
        for batch, start in enumerate(starts):
            prepared[start : start + BATCH] = x[start : start + BATCH]
            if batch != early:
                reset[batch].wait(_patience)
            signals[batch % SIGNALS].set()

    threading.Thread(target=prepare, daemon=True).start()
    for batch, start in enumerate(starts):
        signal = signals[batch % SIGNALS]
        if batch >= SIGNALS:
            if batch == early:
                time.sleep(LATE)
            signal.clear()
        reset[batch].set()
        if not signal.wait(_patience):
            raise TimeoutError(f"no signal for batch {batch}")
        torch.mul(prepared[start : start + BATCH], 2.0, out=output[start : start + BATCH])
    return output
