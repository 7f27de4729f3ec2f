"""Finite: NaN and infinities are found, and told apart from those that come from operands."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steadysum.guard.checks.finite import Finite
from steadysum.guard.checks.protocol import Made

X = torch.ones(4, 3)
W = torch.ones(5, 3)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e5m2])
def test_each_bad_element_is_named(bad: float, dtype: torch.dtype) -> None:
    output = torch.ones(2, 3, 4)
    output[1, 0, 2] = bad
    finding = Finite().judge(Made(torch.sin, (), {}, output.to(dtype)))
    assert not finding.passed
    assert finding.rows == (3,)
    assert finding.places == ((3, 2),)
    assert finding.measured == 1.0
    assert "tensor 0 of the output holds 1 NaN or infinities, in 1 of 6 rows" in finding.summary


def test_finite_numbers_pass() -> None:
    for output in (torch.ones(2, 2), torch.tensor(3.0), torch.zeros(0, 2), torch.ones(2, dtype=torch.complex64)):
        assert Finite().judge(Made(torch.sin, (), {}, output)).passed


def test_every_tensor_of_a_nest_is_looked_at() -> None:
    output = {"a": torch.ones(2), "b": [torch.tensor([1, 2]), torch.tensor([1.0, math.nan])]}
    finding = Finite().judge(Made(torch.sin, (), {}, output))
    assert finding.rows == (1,)
    assert "tensor 2" in finding.summary


def test_a_row_of_a_product_is_excused_by_its_own_input_alone() -> None:
    x = X.clone()
    x[1, 0] = math.nan
    output = F.linear(x, W)
    assert Finite().judge(Made(F.linear, (x, W), {}, output)).passed
    output[2, 4] = math.inf
    finding = Finite().judge(Made(F.linear, (x, W), {}, output))
    assert finding.places == ((2, 4),)


def test_a_broken_weight_excuses_every_row() -> None:
    layer = nn.Linear(3, 5)
    with torch.no_grad():
        layer.weight[2, 0] = math.inf
    assert Finite().judge(Made(layer, (X,), {}, layer(X))).passed


def test_a_callable_that_mixes_rows_is_excused_by_any() -> None:
    x = X.clone()
    x[1, 0] = math.nan

    def total(rows: Tensor) -> Tensor:
        return rows.cumsum(0)

    assert Finite().judge(Made(total, (x,), {}, total(x))).passed
    assert not Finite().judge(Made(total, (X,), {}, total(x))).passed


def test_softmax_over_the_last_dimension_works_row_by_row() -> None:
    x = torch.zeros(3, 4)
    x[0] = -math.inf
    output = torch.softmax(x, -1)
    assert Finite().judge(Made(torch.softmax, (x, -1), {}, output)).passed
    output[1, 1] = math.nan
    assert Finite().judge(Made(torch.softmax, (x, -1), {}, output)).places == ((1, 1),)
    assert Finite().judge(Made(torch.softmax, (x, 0), {}, output)).passed


def test_outputs_without_floating_point_numbers_do_not_fit() -> None:
    assert Finite().fits(Made(torch.sin, (), {}, torch.tensor([1]))) == "its output holds no floating-point numbers"
    assert Finite().fits(Made(torch.sin, (), {}, torch.tensor([1.0]))) is None
