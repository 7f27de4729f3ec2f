"""Tests of steadysum.diagnosis.accuracy: what is within the bound, and what isn't."""

from __future__ import annotations

import pytest
import torch

from steadysum.diagnosis import accuracy
from steadysum.diagnosis.accuracy import (
    ALLOWED_RATIO,
    LEAST_ROWS,
    UNIT_ROUNDOFF,
    Accuracy,
    consult,
    extra_rows,
    measure_accuracy,
    sample_rows,
)
from steadysum.diagnosis.arguments import Shape
from steadysum.diagnosis.operands import random_operands
from steadysum.diagnosis.subject import Operands
from steadysum.diagnosis.subjects import kernel_subject, reference_statistics

SHAPE = Shape(64, 128, 1000)


def measured(operands: Operands, *outputs: torch.Tensor) -> Accuracy:
    return measure_accuracy(outputs, consult(operands, torch.arange(operands.shape[0]), reference_statistics))


@pytest.fixture
def operands_at_random() -> Operands:
    return random_operands(SHAPE, torch.float32, seed=3)


def exact_outputs(operands: Operands) -> tuple[torch.Tensor, torch.Tensor]:
    logits = operands.input.double() @ operands.weight.double().T
    return logits.amax(1), (logits - logits.amax(1, keepdim=True)).exp().sum(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shift", [0.0, 1e4])
def test_the_plain_kernel_is_within_its_own_bound(dtype: torch.dtype, shift: float) -> None:
    operands = random_operands(SHAPE, dtype, seed=3)
    shifted = Operands((operands.input + shift).to(dtype), operands.weight)
    assert measured(shifted, *kernel_subject("eager")(shifted)).within


def test_the_rounded_exact_result_is_within_the_bound(operands_at_random: Operands) -> None:
    largest, sums = exact_outputs(operands_at_random)
    assert measured(operands_at_random, largest.float(), sums.float()).within


def test_the_rounded_exact_result_is_within_the_bound_where_plain_fp32_is_exact(operands: Operands) -> None:
    largest, sums = exact_outputs(operands)
    assert measured(operands, largest.float(), sums.float()).within


@pytest.mark.parametrize("statistic", ["max", "sum_exp"])
def test_one_row_without_one_tile_is_outside_the_bound(operands_at_random: Operands, statistic: str) -> None:
    largest, sums = (values.float() for values in exact_outputs(operands_at_random))
    stale = exact_outputs(Operands(operands_at_random.input[9:10], operands_at_random.weight[:488]))
    if statistic == "max":
        largest[9] -= 1e-3
    else:
        sums[9] = stale[1].float() * torch.exp(stale[0] - exact_outputs(operands_at_random)[0][9]).float()
    result = measured(operands_at_random, largest, sums)
    assert not result.within
    assert result.worst.largest_row == 9


def test_a_nan_in_a_row_is_outside_the_bound(operands_at_random: Operands) -> None:
    largest, sums = (values.float() for values in exact_outputs(operands_at_random))
    sums[0] = torch.nan
    assert not measured(operands_at_random, largest, sums).within


def test_rows_that_are_rightly_not_finite_are_no_error(operands_at_random: Operands) -> None:
    input = operands_at_random.input.clone()
    input[4, 0] = torch.nan
    operands = Operands(input, operands_at_random.weight)
    assert measured(operands, *kernel_subject("eager")(operands)).within


def test_slices_of_the_vocabulary_give_the_whole_float64_statistics(
    operands_at_random: Operands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accuracy, "MOST_LOGITS", 1 << 13)  # 64 columns a slice
    oracle = consult(operands_at_random, torch.arange(64), reference_statistics)
    largest, sums = exact_outputs(operands_at_random)
    torch.testing.assert_close(oracle.exact["max"], largest, rtol=1e-14, atol=0.0)
    torch.testing.assert_close(oracle.exact["sum_exp"], sums, rtol=1e-13, atol=0.0)


def test_a_large_problem_is_measured_on_a_sample_of_rows() -> None:
    meta = Operands(torch.empty(4096, 4096, device="meta"), torch.empty(128256, 4096, device="meta"))
    rows = sample_rows(meta, seed=0)
    assert rows.numel() == LEAST_ROWS  # 2e10 multiply-adds at 4096 x 128256 each would be 38
    assert rows.tolist() == sorted(set(rows.tolist()))
    assert torch.equal(rows, sample_rows(meta, seed=0))


def test_the_bound_is_that_of_the_documentation_and_no_more(operands_at_random: Operands) -> None:
    result = measured(operands_at_random, *kernel_subject("eager")(operands_at_random))
    exact = exact_outputs(operands_at_random)[0]
    largest = result.statistics[0]
    rounding = UNIT_ROUNDOFF * float(exact.square().mean().sqrt())
    assert largest.bound == pytest.approx(max(1.5 * largest.plain, rounding), rel=1e-9)
    assert ALLOWED_RATIO == 1.5


def test_one_row_is_measured_beside_rows_of_its_own_kind() -> None:
    one = random_operands(Shape(1, 256, 2000), torch.float32, seed=1)
    rows = sample_rows(one, seed=0)
    extra = extra_rows(one, rows, seed=0)
    assert extra.shape == (LEAST_ROWS - 1, 256)
    assert torch.equal(extra.abs(), one.input.abs().expand(LEAST_ROWS - 1, -1))
    oracle = consult(one, rows, reference_statistics, extra)
    kernel = kernel_subject("eager")
    beside = kernel.call(extra, one.weight)
    right = measure_accuracy(kernel(one), oracle, beside)
    assert right.within
    assert (right.rows, right.extra_rows, right.finite_rows) == (1, LEAST_ROWS - 1, LEAST_ROWS)
    largest, sums = kernel(one)
    wrong = measure_accuracy((largest + 1e-3, sums), oracle, beside)
    assert not wrong.within
    assert wrong.worst.largest_row == 0


def test_a_large_batch_and_one_without_a_finite_row_get_no_rows_beside_it() -> None:
    large = random_operands(Shape(LEAST_ROWS, 4, 5), torch.float32, seed=0)
    assert extra_rows(large, torch.arange(LEAST_ROWS), seed=0).shape == (0, 4)
    nothing = Operands(torch.full((3, 4), torch.nan), large.weight)
    assert extra_rows(nothing, torch.arange(3), seed=0).shape == (0, 4)
    outputs = torch.full((3,), torch.nan), torch.full((3,), torch.nan)
    assert measured(nothing, *outputs).finite_rows == 0


@pytest.mark.parametrize("hidden", [1, 2, 8])
def test_rows_beside_a_short_one_are_not_a_few_rows_again_and_again(hidden: int) -> None:
    one = random_operands(Shape(1, hidden, 513), torch.float32, seed=0)
    extra = extra_rows(one, torch.arange(1), seed=0)
    assert extra.unique(dim=0).shape[0] == LEAST_ROWS - 1
    assert ((extra.abs() - one.input.abs()).abs() <= 0.26 * one.input.abs()).all()
