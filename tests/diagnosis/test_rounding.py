"""Tests of steadysum.diagnosis.rounding: families are what they say, and the bar is what it says."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from steadysum.diagnosis.rounding import SHIFT, RoundingError, _half_a_unit, make_problem, rounding_errors


def error_of(own: float, by_torch: float, family: str = "random", one_rounding: float = 0.0) -> RoundingError:
    rows = torch.ones(10, dtype=torch.float64)
    return RoundingError(family, 256, "max", rows * own**2, rows * by_torch**2, one_rounding)


def sorted_logits(family: str) -> Tensor:
    return make_problem(family, 300, rows=50).exact_logits().sort(dim=1, descending=True).values


def test_families_are_hard_in_the_way_they_say() -> None:
    assert 0.9 < float(sorted_logits("random").std()) < 1.1
    peaked = sorted_logits("peaked")
    assert bool(((peaked[:, 0] - peaked[:, 1]) > 70).all())
    assert abs(float(sorted_logits("shifted").mean()) - SHIFT) < 1
    assert bool((sorted_logits("equal").diff(dim=1) == 0).all())
    with pytest.raises(ValueError, match="family: got 'steep'; allowed: random, peaked, shifted, equal"):
        make_problem("steep", 300)


def test_half_a_unit_is_half_of_the_spacing_of_fp32_numbers() -> None:
    values = torch.tensor([1.0, 1.5, 2.0, -3.7, 80.0, 2.0**24, 1e-30], dtype=torch.float64)
    spacing = np.abs(np.spacing(values.numpy().astype(np.float32)))
    assert _half_a_unit(values).tolist() == (spacing.astype(np.float64) / 2).tolist()


def test_one_rounding_is_allowed_only_where_all_logits_are_equal() -> None:
    assert error_of(1e-7, 0.0, one_rounding=2e-7).allowed == 0.0
    assert error_of(1e-7, 0.0, "equal", one_rounding=2e-7).allowed == 2e-7
    assert error_of(1e-7, 2e-7, "equal", one_rounding=2e-7).allowed == pytest.approx(3e-7)


def test_a_ratio_of_proportional_errors_has_no_spread() -> None:
    assert error_of(3e-7, 2e-7).interval() == pytest.approx((1.5, 1.5, 1.5))
    assert error_of(0.0, 0.0).interval() == (0.0, 0.0, 0.0)


def test_the_reference_errs_by_storing_its_result_and_no_more() -> None:
    for error in rounding_errors("reference", make_problem("random", 300, rows=50)):
        if error.quantity == "logits":  # written as fp32; the reference's statistics are float64
            assert 0.0 < error.own <= error.one_rounding
