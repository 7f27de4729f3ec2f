"""Sums over rows: in fp64 and in row order, so that a scalar loss has the same bits for any number of threads.

Not here: the losses of the rows (token_loss.py).
"""

from __future__ import annotations

from torch import Tensor

__all__ = ["total"]


def total(values: Tensor) -> Tensor:  # [n] -> [], fp64
    """The sum, from the first value to the last.

    >>> import torch
    >>> total(torch.tensor([1.0, 2.0**60, -(2.0**60)]))
    tensor(0., dtype=torch.float64)
    """
    wide = values.double()
    if values.shape[0] == 0:
        return wide.sum()  # 0, and differentiable
    # torch.sum would cut a long column by the number of threads. On other devices cumsum may vary from run to run.
    return wide.cumsum(0)[-1] if values.device.type == "cpu" else wide.sum()
