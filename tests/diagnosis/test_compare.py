"""Tests of steadysum.diagnosis.compare."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steadysum.diagnosis.compare import NAN_ULPS, SAME, absolute_deviation, bits_equal, compare, ulp_distance

floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(floats)
def test_neighbouring_numbers_are_one_ulp_apart(value: float) -> None:
    above = float(np.nextafter(np.float32(value), np.float32(np.inf)))
    if np.isinf(above):
        return
    apart = ulp_distance(torch.tensor([value]), torch.tensor([above]))
    assert apart.item() == 1


@given(floats, floats, floats)
def test_ulp_distance_is_additive_along_the_line(first: float, second: float, third: float) -> None:
    low, middle, high = (torch.tensor([value]) for value in sorted((first, second, third)))
    assert ulp_distance(low, high) == ulp_distance(low, middle) + ulp_distance(middle, high)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_zeros_of_both_signs_have_different_bits_and_no_ulp_between(dtype: torch.dtype) -> None:
    plus, minus = torch.tensor([0.0], dtype=dtype), torch.tensor([-0.0], dtype=dtype)
    assert not bits_equal(plus, minus)
    assert ulp_distance(plus, minus).item() == 0
    assert compare([plus], [minus], ["max"]).rows == 1


def test_distances_of_fp64_saturate() -> None:
    apart = ulp_distance(
        torch.tensor([-torch.inf], dtype=torch.float64), torch.tensor([torch.inf], dtype=torch.float64)
    )
    assert apart.item() == torch.iinfo(torch.int64).max


def test_a_nan_against_a_number_is_the_largest_deviation() -> None:
    nan, number = torch.tensor([torch.nan]), torch.tensor([1.0])
    assert ulp_distance(nan, number).item() == NAN_ULPS > ulp_distance(-number / 0, number / 0).item()
    assert absolute_deviation(nan, number).item() == torch.inf
    assert absolute_deviation(nan, nan).item() == 0.0


def test_infinities_deviate_only_from_others() -> None:
    infinity = torch.tensor([torch.inf])
    assert absolute_deviation(infinity, infinity).item() == 0.0
    assert absolute_deviation(infinity, -infinity).item() == torch.inf


def test_the_first_row_and_the_largest_deviation_are_named() -> None:
    expected = [torch.zeros(8), torch.ones(8)]
    seen = [expected[0].clone(), expected[1].clone()]
    seen[1][3] += 2.0**-23
    seen[0][5] = 0.5
    deviation = compare(expected, seen, ("max", "sum_exp"))
    assert (deviation.rows, deviation.first_row, deviation.output, deviation.absolute) == (2, 3, "max", 0.5)


def test_equal_outputs_do_not_deviate() -> None:
    values = torch.tensor([torch.nan, torch.inf, -0.0])
    assert compare([values], [values.clone()], ["max"]) == SAME
    assert SAME.bits_equal


def test_outputs_of_another_shape_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="outputs can't be compared"):
        compare([torch.zeros(2)], [torch.zeros(3)], ["max"])
