"""SampledRows: rows computed again in float64: nothing that rounding explains, everything beyond it, in rows drawn."""

from __future__ import annotations

import random
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from steadysum import linear_logprobs
from steadysum.errors import RangeError
from steadysum.guard.checks.protocol import Made
from steadysum.guard.checks.sampled_rows import SampledRows

from .operator_calls import ROWS, calls, made

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
ALL = SampledRows(rows=ROWS)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-3, 1.0, 100.0])
def test_every_operators_own_output_passes(dtype: torch.dtype, scale: float) -> None:
    for name, call in calls(dtype, scale).items():
        assert ALL.fits(call) is None
        assert ALL.judge(call).passed, name


@pytest.mark.parametrize("dtype", DTYPES)
def test_linear_products_pass_under_autocast_too(dtype: torch.dtype) -> None:
    layer = nn.Linear(16, 30)
    x = torch.randn(3, 4, 16, generator=torch.Generator().manual_seed(1))
    with torch.autocast("cpu", dtype, enabled=dtype.itemsize == 2):
        call = made(layer, x)
    assert ALL.judge(call).passed


@pytest.mark.parametrize(
    ("name", "part", "change"),
    [
        ("max_sum", 0, 1e-3),
        ("max_sum", 1, 1e-3),  # no checksum of logits sees a fault in exp or in the sum
        ("max_sum, options", 1, 1e-3),
        ("logprobs with entropy", 0, 1e-3),
        ("logprobs with entropy", 1, 1e-3),
    ],
)
def test_a_thousandth_is_seen_in_each_statistic(name: str, part: int, change: float) -> None:
    call = calls()[name]
    call.output[part].view(-1)[7] *= 1 + change
    finding = ALL.judge(call)
    assert finding.rows == (7,)
    assert f"rows that were computed again, of {ROWS}, are wrong" in finding.summary


@pytest.mark.parametrize("name", ["softmax", "losses"])
def test_a_wrong_element_of_a_tensor_is_seen(name: str) -> None:
    call = calls()[name]
    call.output[7] *= 1.001
    assert ALL.judge(call).rows == (7,)


def test_the_vendors_outputs_are_held_to_float64() -> None:
    for part in (0, 1, 2):
        call = calls(torch.bfloat16)["online"]
        call.output[part][7] -= 0.3
        assert ALL.judge(call).rows == (7,)


def test_one_wrong_element_of_a_product_is_named() -> None:
    x, w = torch.randn(8, 64), torch.randn(40, 64)
    call = made(F.linear, x, w)
    call.output[3, 17] += 0.01
    finding = SampledRows(rows=8).judge(call)
    assert finding.places == ((3, 17),)
    assert finding.rows == (3,)
    assert finding.measured == pytest.approx(0.01, rel=1e-2)
    assert finding.allowed is not None
    assert finding.allowed < 1e-3


def test_rows_are_drawn_from_all_and_leave_random_states_alone() -> None:
    call = made(F.linear, torch.randn(32, 4), torch.randn(3, 4))
    before = torch.get_rng_state(), random.getstate()
    call.output[31, 0] += 1
    check = SampledRows(rows=4)
    assert any(not check.judge(call).passed for _ in range(500))  # one of 8 sees it: never in 500 has 1e-29
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()


def test_a_row_found_wrong_is_looked_at_again_until_it_is_right() -> None:
    right = made(F.linear, torch.randn(1000, 4), torch.randn(3, 4))
    wrong = right._replace(output=right.output.clone())
    wrong.output[77] += 1
    check = SampledRows(rows=1)
    while check.judge(wrong).passed:
        pass
    assert all(not check.judge(wrong).passed for _ in range(10))
    elsewhere: list[bool] = []
    thread = threading.Thread(target=lambda: elsewhere.append(SampledRows(rows=1).judge(right).passed))
    thread.start()
    thread.join()
    assert elsewhere == [True]
    assert check.judge(right).passed


def test_rows_with_broken_operands_are_no_faults() -> None:
    x, w = torch.randn(4, 8), torch.randn(5, 8)
    x[1, 0], w[2, 3] = torch.nan, torch.inf
    assert SampledRows(rows=4).judge(made(F.linear, x, w)).passed


def test_empty_calls_pass() -> None:
    assert SampledRows().judge(made(F.linear, torch.randn(0, 8), torch.randn(5, 8))).passed


def test_calls_whose_rows_are_not_known_do_not_fit() -> None:
    reason = SampledRows().fits(Made(torch.sin, (), {}, torch.ones(2)))
    assert reason is not None
    assert reason.startswith("sin isn't a linear product that is known, and sin is none of linear_max_sum")
    call = calls()["losses"]
    summed = call._replace(output=call.output.sum(), kwargs={**call.kwargs, "reduction": "sum"})
    assert SampledRows().fits(summed) == "its loss is added up, or has other parts than the target's"


@pytest.mark.parametrize("rows", [0, -1, True, 1.5])
def test_a_number_of_rows_that_is_none_is_refused(rows: int) -> None:
    with pytest.raises(RangeError, match=r"rows: got .*; allowed: a whole number of at least 1\. The default is 4\."):
        SampledRows(rows=rows)


def test_an_entropy_whose_sum_has_no_bound_is_no_fault() -> None:
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1)) * 1e18
    w = torch.randn(16, 8, generator=torch.Generator().manual_seed(2))
    call = made(linear_logprobs, x, w, torch.zeros(4, dtype=torch.int64), return_entropy=True)
    assert SampledRows(rows=4).judge(call).passed
