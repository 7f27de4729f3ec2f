"""How far apart two numbers are, element by element: in bits, in units in the last place, and absolutely.

Not here: what is made of it (diagnosis/compare.py for two runs of an operator, guard/comparison.py for two results).
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["NAN_ULPS", "absolute_deviation", "bits_equal", "raw_bits", "ulp_distance"]

# A NaN against a number, counted as one more than the largest distance of two fp32 values (-inf to +inf).
NAN_ULPS = 2 * 0x7F800000 + 1

_BITS = {
    torch.float32: torch.int32,
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
    torch.float64: torch.int64,
}


def bits_equal(left: Tensor, right: Tensor) -> bool:
    """Whether shape, dtype and every bit agree: -0 isn't +0, and a NaN equals a NaN of the same bits.

    >>> bits_equal(torch.tensor([0.0]), torch.tensor([-0.0]))
    False
    """
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    return torch.equal(raw_bits(left), raw_bits(right))


def ulp_distance(left: Tensor, right: Tensor) -> Tensor:
    """The number of representable values between the two, element by element, as int64.

    +0 and -0 are 0 apart; two NaN of any bits are 0 apart; a NaN and a number are NAN_ULPS apart. fp64 distances beyond
    int64 saturate.

    >>> ulp_distance(torch.tensor([1.0]), torch.tensor([1.0 + 2**-23])).item()
    1
    """
    first, second = _ordered(left), _ordered(right)
    apart = torch.where((first < 0) == (second < 0), (first - second).abs(), first.abs() + second.abs())
    apart = torch.where(apart < 0, torch.iinfo(torch.int64).max, apart)  # the sum of two fp64 keys can wrap around
    one_nan = left.isnan() != right.isnan()
    both_nan = left.isnan() & right.isnan()
    return torch.where(one_nan, NAN_ULPS, torch.where(both_nan, 0, apart))


def absolute_deviation(left: Tensor, right: Tensor) -> Tensor:
    """|left - right| in fp64; 0 where both are the same infinity or both are NaN, inf where only one is NaN.

    >>> absolute_deviation(torch.tensor([float("inf")]), torch.tensor([float("inf")])).item()
    0.0
    """
    wide_left, wide_right = left.double(), right.double()
    apart = (wide_left - wide_right).abs()
    same = (wide_left == wide_right) | (left.isnan() & right.isnan())
    return torch.where(same, 0.0, torch.where(apart.isnan(), torch.inf, apart))


def raw_bits(tensor: Tensor) -> Tensor:
    """The bits of floating-point elements as integers; other dtypes as they are."""
    return tensor.contiguous().view(_BITS[tensor.dtype]) if tensor.dtype in _BITS else tensor.contiguous()


def _ordered(tensor: Tensor) -> Tensor:
    """int64 keys that are ordered as the floats, one apart for neighbours; +0 and -0 share a key."""
    raw = raw_bits(tensor)
    magnitude = raw.to(torch.int64) & torch.iinfo(raw.dtype).max
    return torch.where(raw < 0, -magnitude, magnitude)
