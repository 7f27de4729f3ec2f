"""Tests of steadysum.cores.spoiling: which bits and elements change, and that nothing else does."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadysum.cores.faults import Arm
from steadysum.cores.spoiling import flipped, hidden_part, scaled, without_elements
from steadysum.sync.actions import Word
from steadysum.sync.memory import Span

SEEDS = st.integers(0, 2**32)
# The fields of IEEE 754's binary32, and of binary64: (lowest, highest bit).
FIELDS = {
    np.float32: {"any": (0, 31), "sign": (31, 31), "exponent": (23, 30), "mantissa": (0, 22), "3-5": (3, 5)},
    np.float64: {"any": (0, 63), "sign": (63, 63), "exponent": (52, 62), "mantissa": (0, 51), "60-63": (60, 63)},
    np.int64: {"any": (0, 63), "exponent": (0, 63)},  # integers have no fields
    np.uint8: {"any": (0, 7), "6-40": (6, 7)},
}


def changed_bits(before: np.ndarray[Any, Any], after: np.ndarray[Any, Any]) -> list[set[int]]:
    """The bits that differ, by element."""
    kind = np.dtype(f"u{before.dtype.itemsize}")
    differing = (before.view(kind) ^ after.view(kind)).tolist()
    return [{bit for bit in range(64) if value >> bit & 1} for value in differing]


def test_bits_that_a_number_does_not_have_are_left_alone() -> None:
    before = np.arange(9, dtype=np.float32)
    after = flipped(Arm.parse("flip:site=max,bits=40-50"), before, random.Random(0))
    assert after.tobytes() == before.tobytes()


@pytest.mark.parametrize(("dtype", "bits"), [(dtype, bits) for dtype, fields in FIELDS.items() for bits in fields])
@given(seed=SEEDS, count=st.integers(1, 9), elements=st.integers(1, 9))
def test_so_many_bits_of_so_many_elements_flip_in_the_range(
    dtype: Any, bits: str, seed: int, count: int, elements: int
) -> None:
    low, high = FIELDS[dtype][bits]
    before = np.arange(6).astype(dtype)
    after = flipped(Arm("flip", bits=bits, count=count, elements=elements), before, random.Random(seed))
    found = [change for change in changed_bits(before, after) if change]
    assert len(found) == min(elements, 6)
    assert all(len(change) == min(count, high - low + 1) for change in found)
    assert all(low <= bit <= high for change in found for bit in change)
    assert before.tolist() == list(range(6))


@given(seed=SEEDS, factor=st.floats(-4, 4), elements=st.integers(0, 9))
def test_so_many_elements_are_multiplied(seed: int, factor: float, elements: int) -> None:
    before = np.full(6, 3.0)
    after = scaled(Arm("scale", factor=factor, elements=elements), before, random.Random(seed))
    chosen = 6 if elements == 0 else min(elements, 6)
    assert sorted(after.tolist()) == sorted([3.0 * factor] * chosen + [3.0] * (6 - chosen))


@given(seed=SEEDS, start=st.integers(0, 5), length=st.integers(1, 6))
def test_elements_outside_of_a_slice_stay(seed: int, start: int, length: int) -> None:
    before = np.ones(6, np.float32)
    within = slice(start, start + length)
    for spoil, arm in ((flipped, Arm("flip", elements=6)), (scaled, Arm("scale", elements=0))):
        differing = spoil(arm, before, random.Random(seed), within) != before
        assert np.flatnonzero(differing).tolist() == list(range(6))[within]


@given(seed=SEEDS, part=st.sampled_from(["rows", "tail", "all"]), count=st.integers(1, 12), length=st.integers(1, 9))
def test_the_pieces_of_a_write_are_all_that_is_not_hidden(seed: int, part: str, count: int, length: int) -> None:
    hidden = hidden_part(part, count, length, random.Random(seed))
    word = Word(Span("out_max", 100, 100 + length), np.arange(length))
    left = {
        span.start + offset: int(value)
        for span, values in without_elements(word, hidden)
        for offset, value in enumerate(values)
    }
    assert left == {100 + number: number for number in range(length) if number not in hidden}
    assert len(hidden) == (length if part == "all" else min(count, length))
