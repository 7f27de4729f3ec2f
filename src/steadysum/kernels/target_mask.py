"""The vendor's bit-packed mask of targets: which rows' targets are not among the columns at hand.

Not here: who is masked (ops/online_max_sum.py).
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

__all__ = ["mask_bytes", "pack_mask", "unpack_mask"]

BITS: Final = 8  # of a byte of the mask


def mask_bytes(rows: int) -> int:
    """The bytes that a mask of so many rows takes."""
    return (rows + BITS - 1) // BITS


def pack_mask(
    outside: Tensor,  # [BT], bool
    pad: int,
) -> Tensor:  # [(BT + 7) // 8], uint8
    """Bit i of byte k is row 8 k + i; the bits beyond the last row are `pad`.

    >>> pack_mask(torch.tensor([True, False, True]), 0), pack_mask(torch.tensor([True, False, True]), 1)
    (tensor([5], dtype=torch.uint8), tensor([253], dtype=torch.uint8))
    """
    rows = outside.shape[0]
    bits = outside.new_full((mask_bytes(rows) * BITS,), pad, dtype=torch.int32)
    bits[:rows] = outside
    places = torch.arange(BITS, dtype=torch.int32, device=outside.device)
    return (bits.view(-1, BITS) << places).sum(dim=1, dtype=torch.int32).to(torch.uint8)


def unpack_mask(
    mask: Tensor,  # [>= (BT + 7) // 8], uint8
    rows: int,  # BT
) -> Tensor:  # [BT], bool
    """What pack_mask packed.

    >>> unpack_mask(torch.tensor([5], dtype=torch.uint8), 3)
    tensor([ True, False,  True])
    """
    places = torch.arange(BITS, dtype=torch.int32, device=mask.device)
    bits = (mask[: mask_bytes(rows), None].to(torch.int32) >> places) & 1
    return bits.reshape(-1)[:rows].bool()
