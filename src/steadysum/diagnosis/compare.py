"""How two outputs of one operator differ: bits, units in the last place, absolute deviation, and where first.

Rows are the first dimension. Never by norm or mean: one wrong row of 256 leaves a norm equal to four digits
(DeepEP issue 700). Says nothing about which of the two is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from steadysum.ulps import NAN_ULPS as NAN_ULPS
from steadysum.ulps import absolute_deviation as absolute_deviation
from steadysum.ulps import bits_equal as bits_equal
from steadysum.ulps import raw_bits
from steadysum.ulps import ulp_distance as ulp_distance


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
        rows = (raw_bits(left) != raw_bits(right)).reshape(left.shape[0], -1).any(1)
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
