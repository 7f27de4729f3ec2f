"""RowsSumToOne: probabilities pass in every dtype and at every width; lost partials, NaN and negative numbers don't."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steadysum import linear_softmax
from steadysum.guard.checks.protocol import Made
from steadysum.guard.checks.rows_sum_to_one import RowsSumToOne

from .operator_calls import calls

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def softmax_of(logits: torch.Tensor, dim: int = -1, **kwargs: Any) -> Made:
    """A call of torch's."""
    return Made(torch.softmax, (logits, dim), kwargs, torch.softmax(logits, dim, **kwargs))


@given(
    st.sampled_from(DTYPES),
    st.integers(1, 3000),
    st.sampled_from([0.0, 1e-3, 1.0, 30.0, 1e4]),
    st.sampled_from([0.0, -300.0, 3e4]),
    st.integers(0, 2**31),
)
def test_a_softmax_passes(dtype: torch.dtype, columns: int, spread: float, offset: float, seed: int) -> None:
    logits = spread * torch.randn(3, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    finding = RowsSumToOne().judge(softmax_of((logits + offset).clamp(-6e4, 6e4).to(dtype)))
    assert finding.passed, finding


@pytest.mark.parametrize("step", [-0.1, -0.7, -1.3])
def test_equal_roundings_add_up_and_pass(step: float) -> None:
    logits = torch.full((2, 100_000), step)
    logits[:, 0] = 0
    added_one_by_one = torch.softmax(logits.T.contiguous(), 0).T  # off by 2e-3
    assert RowsSumToOne().judge(Made(torch.softmax, (logits.T, 0), {}, added_one_by_one)).passed


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_softmax_of_a_linear_layer_passes(dtype: torch.dtype) -> None:
    for scale in (1e-3, 1.0, 30.0):
        found = calls(dtype, scale)
        for name in ("softmax", "softmax in bf16", "softmax of the report"):
            if name in found:
                assert RowsSumToOne().fits(found[name]) is None
                assert RowsSumToOne().judge(found[name]).passed


def test_a_lost_partial_shows() -> None:
    call = calls()["softmax"]
    call.output[5, :512] *= 1.0005  # as if a part of the sum had been missing there
    finding = RowsSumToOne().judge(call)
    assert finding.rows == (5,)
    assert finding.measured == pytest.approx(0.0005 * float(call.output[5, :512].sum()), rel=1e-2)
    assert finding.summary.startswith("1 of 12 rows differ from 1 by more than ")


def test_a_tolerance_of_ones_own_is_taken() -> None:
    call = calls()["softmax"]
    call.output[5] *= 1.0005
    assert RowsSumToOne(tolerance=1e-3).judge(call).passed
    assert not RowsSumToOne(tolerance=1e-4).judge(call).passed


def test_a_negative_number_is_no_probability() -> None:
    finding = RowsSumToOne().judge(Made(torch.sin, (), {}, torch.tensor([[0.5, 0.5], [1.25, -0.25]])))
    assert finding.rows == (1,)
    assert "hold a number below 0" in finding.summary


def test_nan_is_a_fault_where_operands_hold_none() -> None:
    logits = torch.zeros(3, 4)
    call = softmax_of(logits)
    call.output[1, 2] = math.nan
    assert RowsSumToOne().judge(call).rows == (1,)
    logits[1] = -math.inf
    assert RowsSumToOne().judge(softmax_of(logits)).passed


def test_rows_that_may_overflow_are_excused() -> None:
    x, w = torch.full((2, 4), 1e19), torch.full((3, 4), 1e20)
    x[1] = 1.0
    output = linear_softmax(x, w)
    assert output[0].isnan().all()
    assert RowsSumToOne().judge(Made(linear_softmax, (x, w), {}, output)).passed
    output[1] = math.nan
    assert RowsSumToOne().judge(Made(linear_softmax, (x, w), {}, output)).rows == (1,)


def test_vectors_and_empty_outputs_pass() -> None:
    assert RowsSumToOne().judge(softmax_of(torch.zeros(5))).passed
    assert RowsSumToOne().judge(softmax_of(torch.zeros(0, 5))).passed


def test_other_outputs_do_not_fit() -> None:
    check = RowsSumToOne()
    assert check.fits(Made(torch.sin, (), {}, torch.tensor(1.0))) == "its output isn't one tensor with rows"
    assert check.fits(Made(torch.sin, (), {}, (torch.ones(2),))) == "its output isn't one tensor with rows"
    assert check.fits(Made(torch.sin, (), {}, torch.ones(2).int())) == "its output has the dtype torch.int32"
    assert check.fits(calls()["logprobs"]) == "it gives no probabilities"
