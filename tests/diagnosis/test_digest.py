"""Tests of steadysum.diagnosis.digest: equal bits give equal digests, anything else changes them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steadysum.diagnosis.digest import digest

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64)


@given(st.integers(0, 999), st.integers(0, 999), st.integers(0, 31))
def test_one_flipped_bit_changes_the_digest(seed: int, place: int, bit: int) -> None:
    bits = torch.randint(-(2**31), 2**31, (1000,), generator=torch.Generator().manual_seed(seed)).to(torch.int32)
    flipped = bits.clone()
    flipped[place] ^= torch.tensor(1 << bit if bit < 31 else -(2**31), dtype=torch.int32)
    assert digest([bits]) == digest([bits.clone()])
    assert digest([bits]) != digest([flipped])


@given(st.lists(st.integers(0, 99), min_size=2, max_size=2, unique=True))
def test_swapped_elements_change_the_digest(places: list[int]) -> None:
    values = torch.arange(100.0)
    swapped = values.clone()
    swapped[places] = swapped[places[::-1]]
    assert digest([values]) != digest([swapped])


@pytest.mark.parametrize("dtype", DTYPES)
def test_signs_of_all_elements_flipped_change_the_digest(dtype: torch.dtype) -> None:
    values = torch.arange(1, 65).to(dtype)
    assert digest([values]) != digest([-values])


def test_shape_dtype_and_place_of_an_output_belong_to_the_digest() -> None:
    values = torch.zeros(6)
    others = [[values.view(2, 3)], [values.to(torch.int32)], [values, values], [values[:3], values[3:]], []]
    assert len({digest(other) for other in ([values], *others)}) == 6


def test_strides_do_not_belong_to_the_digest() -> None:
    values = torch.arange(12.0).view(3, 4)
    assert digest([values.T.contiguous().T]) == digest([values])


def test_a_digest_has_128_bits_in_use() -> None:
    seen = [digest([torch.tensor([float(value)])]) for value in range(64)]
    assert all(
        any(value >> bit & 1 for value in seen) and not all(value >> bit & 1 for value in seen) for bit in range(128)
    )
