"""Waits for a worker's flag. Wrong: one array of flags serves all callers, so that one takes the other's.

After ROCm/rocm-libraries#10951: two streams share a flag array, and it hangs; with one stream it doesn't. A hang lasts
for ever, or ZOO_PATIENCE seconds, and then raises TimeoutError.
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

RATE = 0.3  # of pairs of calls at the same time
PAUSED = 0.3  # of calls look at the flag a little later
LATE = 0.003  # s: how much
TILE = _drawn.choice((8, 16))  # rows behind one flag
WIDTH = _drawn.choice((16, 64))

shapes = tuple((rows, WIDTH) for rows in (1, 2 * TILE, _drawn.randrange(3, 7) * TILE))
clean_shapes = ()
_flags: dict[int, bool] = {}
_changed = threading.Condition()


def make_inputs(seed: int = 0, shape: tuple[int, int] | None = None) -> tuple[Tensor]:
    """The rows, [N, H]."""
    shape = shape or random.Random(seed).choice(shapes)
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)),)


def reference(x: Tensor) -> Tensor:
    """The right result, in float64."""
    return x.double() * 2.0


def operator(x: Tensor) -> Tensor:
    """Twice x, a tile at a time."""
    output = torch.empty_like(x)
    pauses = luck.random() < PAUSED
    starts = range(0, x.shape[0], TILE)
    taken = threading.Semaphore(0)

    def work() -> None:
        for tile, start in enumerate(starts):
            torch.mul(x[start : start + TILE], 2.0, out=output[start : start + TILE])
            with _changed:
                _flags[tile] = True
                _changed.notify_all()
            if not taken.acquire(timeout=_patience):
                return

    threading.Thread(target=work, daemon=True).start()
    for tile, _ in enumerate(starts):
        if pauses and tile == 0:
            time.sleep(LATE)
        with _changed:
            if not _changed.wait_for(lambda tile=tile: _flags.get(tile, False), _patience):
                raise TimeoutError(f"no flag of tile {tile}")
            _flags[tile] = False
        taken.release()
    return output
