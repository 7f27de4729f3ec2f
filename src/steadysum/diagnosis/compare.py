"""How two outputs of one operator differ: bits, units in the last place, absolute deviation, and where first.

Rows are the first dimension. Never by norm or mean: one wrong row of 256 leaves a norm equal to four digits
(DeepEP issue 700). Says nothing about which of the two is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# A NaN against a number, counted as one more than the largest distance of two fp32 values (-inf to +inf).
NAN_ULPS = 2 * 0x7F800000 + 1

_BITS = {
    torch.float32: torch.int32,
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
    torch.float64: torch.int64,
}


@dataclass(frozen=True)
class Deviation:
    """The difference of two outputs, at its largest. All counts are 0 where the bits are equal."""

    rows: int  # rows with any unequal bit, over all outputs
    first_row: int | None  # the first of them
    ulps: int  # largest distance in units in the last place
    absolute: float  # largest absolute difference; inf where one is NaN or infinite and the other isn't the same
    output: str | None  # the output with the largest absolute difference

    @property
    def bits_equal(self) -> bool:
        """Whether all bits of all outputs are equal."""
        return self.rows == 0


SAME = Deviation(rows=0, first_row=None, ulps=0, absolute=0.0, output=None)


def bits_equal(left: Tensor, right: Tensor) -> bool:
    """Whether shape, dtype and every bit agree: -0 isn't +0, and a NaN equals a NaN of the same bits.

    >>> bits_equal(torch.tensor([0.0]), torch.tensor([-0.0]))
    False
    """
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    return torch.equal(_raw(left), _raw(right))


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


def compare(
    expected: Sequence[Tensor],  # each [N, ...]
    seen: Sequence[Tensor],  # as expected
    names: Sequence[str],  # of the outputs
) -> Deviation:
    """The deviation of `seen` from `expected`, over all outputs.

    Raises:
        ValueError: the outputs differ in number, shape or dtype, so that no element can be compared.
    """
    _check_comparable(expected, seen)
    wrong_rows: Tensor | None = None
    ulps, absolute, output = 0, 0.0, None
    for name, left, right in zip(names, expected, seen, strict=True):
        if bits_equal(left, right):
            continue
        rows = (_raw(left) != _raw(right)).reshape(left.shape[0], -1).any(1)
        wrong_rows = rows if wrong_rows is None else wrong_rows | rows
        ulps = max(ulps, int(ulp_distance(left, right).max()))
        largest = float(absolute_deviation(left, right).max())
        if output is None or largest > absolute:
            absolute, output = largest, name
    if wrong_rows is None:
        return SAME
    first = int(wrong_rows.nonzero()[0])
    return Deviation(rows=int(wrong_rows.sum()), first_row=first, ulps=ulps, absolute=absolute, output=output)


def larger(left: Deviation, right: Deviation) -> Deviation:
    """The deviation that is larger by absolute difference, then by ulps, then by rows."""
    return max(left, right, key=lambda deviation: (deviation.absolute, deviation.ulps, deviation.rows))


def _check_comparable(expected: Sequence[Tensor], seen: Sequence[Tensor]) -> None:
    shapes = [[(tuple(tensor.shape), tensor.dtype) for tensor in outputs] for outputs in (expected, seen)]
    if shapes[0] != shapes[1]:
        raise ValueError(f"outputs can't be compared: expected shapes and dtypes {shapes[0]}, saw {shapes[1]}")


def _raw(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(_BITS[tensor.dtype]) if tensor.dtype in _BITS else tensor.contiguous()


def _ordered(tensor: Tensor) -> Tensor:
    """int64 keys that are ordered as the floats, one apart for neighbours; +0 and -0 share a key."""
    raw = _raw(tensor)
    magnitude = raw.to(torch.int64) & torch.iinfo(raw.dtype).max
    return torch.where(raw < 0, -magnitude, magnitude)
