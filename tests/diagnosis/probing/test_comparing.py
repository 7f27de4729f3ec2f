"""A rounded result is told from a wrong one, whatever the operator computes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from steadysum.diagnosis.isolation.kept import Outputs, outputs_of
from steadysum.diagnosis.probing.comparing import bound, error, nearest, rounded_like

SHAPES = [("float32", [64, 300], "cpu"), ("float32", [50, 300], "cpu")]


def of(value: Tensor) -> Outputs:
    return outputs_of(value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_rounded_product_is_within_the_bound_and_a_lost_term_is_not(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(64, 300, generator=generator), torch.randn(50, 300, generator=generator)
    left, right = left.to(dtype), right.to(dtype)
    exact = left.double() @ right.double().T
    made = left @ right.T
    name = str(dtype).removeprefix("torch.")
    allowed = bound(of(made), [(name, list(one.shape), "cpu") for one in (left, right)])
    assert error(of(made), of(exact)) < allowed
    lost = (left[:, 30:].double() @ right[:, 30:].double().T).to(dtype)  # a tenth of the terms
    if dtype is torch.float32:
        assert error(of(lost), of(exact)) > 100 * allowed


def test_a_nan_is_an_infinite_error_and_the_same_nan_none() -> None:
    nan = torch.tensor([1.0, math.nan])
    assert error(of(nan), of(torch.ones(2))) == math.inf
    assert error(of(nan), of(nan)) == 0.0


def test_outputs_of_other_shapes_or_names_cannot_be_near() -> None:
    assert error(of(torch.ones(2)), of(torch.ones(3))) == math.inf
    assert error(outputs_of((torch.ones(2),)), of(torch.ones(2))) == math.inf


def test_the_nearest_of_several_outputs_is_found() -> None:
    candidates = [of(torch.tensor([value])) for value in (3.0, 1.5, -2.0)]
    assert nearest(candidates, of(torch.tensor([1.0]))) == (1, 0.5)


def test_integers_have_no_rounding() -> None:
    assert bound(of(torch.tensor([1])), [("int64", [8], "cpu")]) == 0.0


def test_a_reference_takes_the_dtype_of_what_it_is_compared_with() -> None:
    third = of(torch.tensor([1 / 3], dtype=torch.float64))
    assert torch.equal(rounded_like(third, of(torch.zeros(1))).tensors["value"], torch.tensor([1 / 3]))
