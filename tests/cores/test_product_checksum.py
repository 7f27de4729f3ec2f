"""The checksum of a tile's product, under policies that verify: no alarm without a fault, and none missed for it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given as drawn
from hypothesis import strategies as st
from torch import Tensor

from steadysum.cores.arithmetic import checksum, product, product_is_right, rounded
from steadysum.cores.faults import Arm

from .operators import Given, call, device, given, same_bits

VERIFYING = ("verified", "duplicated")


def normal(rows: int, hidden: int, columns: int, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """An input and a weight of this size."""
    draw = torch.Generator().manual_seed(7)
    return torch.randn(rows, hidden, generator=draw) * scale, torch.randn(columns, hidden, generator=draw) * scale


def with_values(weight: Tensor, *values: float) -> Tensor:
    """The weight, of which the first rows are all of one of these values each."""
    changed = weight.clone()
    for row, value in enumerate(values):
        changed[row] = value
    return changed


UNUSUAL = {
    "equal": (torch.full((32, 256), 0.3), torch.full((64, 256), 1.0)),
    "equal, inexact": (torch.full((32, 1000), 0.1), torch.full((64, 1000), 0.1)),
    "positive": tuple(one.abs() for one in normal(32, 300, 64)),
    "overflowing": normal(32, 16, 64, 1e25),
    "underflowing": normal(32, 16, 64, 1e-25),
    "subnormal": normal(32, 16, 64, 3e-22),
    "infinite weight": (normal(32, 16, 64)[0].abs(), with_values(normal(32, 16, 64)[1], -torch.inf, torch.nan)),
    "infinite input": (with_values(normal(32, 16, 64)[0], torch.inf, torch.nan), normal(32, 16, 64)[1]),
    "one huge row": (normal(32, 16, 64)[0], with_values(normal(32, 16, 64)[1], 1e20)),
}


@pytest.mark.parametrize("stored", [None, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", UNUSUAL)
def test_what_torch_multiplies_is_right_however_unusual_the_operands(name: str, stored: torch.dtype | None) -> None:
    x, w = UNUSUAL[name]
    logits = product(x, w) if stored is None else rounded(product(x, w), stored)
    assert product_is_right(x, logits, checksum(w), stored)


@drawn(st.integers(1, 40), st.integers(1, 300), st.integers(1, 64), st.floats(-30, 30), st.integers(0, 999))
def test_a_right_product_never_alarms(rows: int, hidden: int, columns: int, exponent: float, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, hidden, generator=draw) * 10.0**exponent
    w = torch.randn(columns, hidden, generator=draw)
    assert product_is_right(x, product(x, w), checksum(w))


# Not where logits are beyond fp32, or one huge column's rounding hides what happens in all others.
@pytest.mark.parametrize("name", ["equal", "equal, inexact", "positive", "infinite weight", "infinite input"])
def test_a_flipped_exponent_is_seen_in_rows_and_columns_that_are_finite_and_in_others(name: str) -> None:
    x, w = UNUSUAL[name]
    for row, column in ((0, 0), (5, 1), (31, 63)):
        logits = product(x, w).copy()
        words = logits.view(np.uint32)
        words[row, column] ^= np.uint32(1 << 29)
        is_same = np.isnan(logits[row, column]) and np.isnan(product(x, w)[row, column])  # another NaN is one, too
        assert is_same or not product_is_right(x, logits, checksum(w)), (row, column)


@pytest.mark.parametrize("policy", VERIFYING)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_logits_of_16_bits_raise_nothing_without_a_fault(policy: str, dtype: torch.dtype) -> None:
    operands = given(40, 16, 200, seed=4)
    on, plain = (device(each, 3, logits_dtype=dtype) for each in (policy, "enhanced"))
    assert same_bits(call(on, operands), call(plain, operands))


@pytest.mark.parametrize("policy", VERIFYING)
@pytest.mark.parametrize("name", UNUSUAL)
def test_a_device_raises_nothing_without_a_fault_however_unusual_the_operands(policy: str, name: str) -> None:
    x, w = UNUSUAL[name]
    operands = Given(x, w, torch.zeros(x.shape[0], dtype=torch.int64))
    assert same_bits(call(device(policy, 2), operands), call(device("enhanced", 2), operands))


def test_a_flip_in_a_tile_whose_weight_holds_infinities_is_healed() -> None:
    operands = given(40, 5, 100, seed=3)
    spoilt = operands._replace(input=operands.input.abs(), weight=with_values(operands.weight, -torch.inf))
    fault = Arm.parse("flip:site=product,core=0,bits=30-30,most=1")
    on = device("verified", 3, faults=(fault,))
    assert same_bits(call(on, spoilt), call(device("verified", 3), spoilt))
    assert sum(on.fault_counts().values()) == 1
