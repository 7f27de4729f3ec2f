"""MaxSumInvariants: every operator's own output passes, and each invariant has an output that breaks it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from steadysum import linear_cross_entropy, linear_logprobs, linear_max_sum
from steadysum.guard.checks.max_sum_invariants import MaxSumInvariants
from steadysum.guard.checks.protocol import Finding, Made
from steadysum.maxsum import MaxSum
from steadysum.ops.online_max_sum import fused_linear_online_max_sum

from .operator_calls import VOCAB, calls, made, operands

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def broken(call: Made, place: int, row: int, value: float, field: int | None = None) -> Finding:
    """What is found when one number of one part of the output is another."""
    part: Any = call.output[place]
    tensor: Tensor = part if field is None else part[field]
    tensor.view(-1)[row] = value
    return MaxSumInvariants().judge(call)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-3, 1.0, 100.0])
def test_every_operators_own_output_passes(dtype: torch.dtype, scale: float) -> None:
    seen = 0
    for name, call in calls(dtype, scale).items():
        if MaxSumInvariants().fits(call) is None:
            seen += 1
            assert MaxSumInvariants().judge(call).passed, name
    assert seen == (10 if dtype.itemsize == 2 else 7)


@pytest.mark.parametrize("value", [0.0, 0.999, 700.1, -3.0, math.nan, math.inf])
def test_a_sum_outside_of_1_to_the_vocabulary_is_found(value: float) -> None:
    finding = broken(calls()["max_sum"], 1, 4, value)
    assert finding.rows == (4,)
    assert finding.summary == "1 of 12 rows (first: 4) have a sum_exp outside of 1 to 700"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_max_that_is_not_finite_is_found_where_operands_are(value: float) -> None:
    assert "max that isn't finite" in broken(calls()["max_sum"], 0, 4, value).summary


def test_rows_of_broken_operands_have_the_three_statistics_that_there_are() -> None:
    x, w, _ = operands()
    x[1], x[2, 0] = math.nan, math.inf
    call = made(linear_max_sum, x, w)
    assert MaxSumInvariants().judge(call).passed
    assert "isn't finite" in broken(call, 1, 1, 5.0).summary  # NaN beside a number
    everything_masked = made(linear_max_sum, x[3:], w, bias=torch.full((VOCAB,), -math.inf))
    assert everything_masked.output.max.isneginf().all()
    assert MaxSumInvariants().judge(everything_masked).passed
    assert broken(everything_masked, 1, 0, 1.0).rows == (0,)


def test_logits_that_may_overflow_are_excused() -> None:
    call = made(linear_max_sum, torch.full((2, 4), 1e20), torch.full((3, 4), 1e20))
    assert call.output.max.isposinf().all()
    assert MaxSumInvariants().judge(call).passed


@pytest.mark.parametrize(
    ("place", "row", "value", "summary"),
    [
        (2, 5, 0.5, "a predicted_logits above 0"),
        (2, 5, -50.0, "a max + predicted_logits that isn't their target's logit"),
        (3, 0, 0b00100000, "a target_mask that their targets don't have"),
        (4, 5, -1, "a masked_target that isn't target - vocab_start_index"),
        (0, 5, 3.0, "a max + predicted_logits that isn't their target's logit"),
    ],
)
def test_the_vendors_outputs_are_held_to_the_targets(place: int, row: int, value: float, summary: str) -> None:
    x, w, target = operands(torch.bfloat16)
    call = made(fused_linear_online_max_sum, x, w, target, 0, VOCAB)
    finding = broken(call, place, row, value)
    assert finding.rows == (5,)
    assert finding.summary == f"1 of 12 rows (first: 5) have {summary}"


def test_a_masked_target_predicts_0_and_pad_bits_are_free() -> None:
    x, w, target = operands(torch.bfloat16)
    target[5] = 50
    call = made(fused_linear_online_max_sum, x, w, target, 100, 100 + VOCAB)
    call.output[3][1] ^= 0b11110000  # rows 12 to 15 don't exist
    assert MaxSumInvariants().judge(call).passed
    assert "though masked" in broken(call, 2, 5, -1.0).summary


def test_a_loss_is_held_to_its_statistics() -> None:
    call = calls()["loss with stats"]
    stats = call.output[1]
    stats.token_loss[7] += 0.01
    finding = MaxSumInvariants().judge(call)
    assert finding.rows == (7,)
    assert finding.summary.endswith("have a loss that isn't log(sum_exp) + max - their target's logit")
    stats.token_loss[7] -= 0.01
    stats.correct.fill_(13)
    assert "a number of correct rows outside of 0 to 11" in MaxSumInvariants().judge(call).summary


def test_an_ignored_row_has_no_loss() -> None:
    call = calls()["loss with stats"]
    call.output[1].token_loss[3] = 0.25
    assert "a loss that isn't 0, though ignored" in MaxSumInvariants().judge(call).summary


def test_a_loss_alone_is_finite_and_not_negative() -> None:
    x, w, target = operands()
    call = made(linear_cross_entropy, x, w, target)
    assert MaxSumInvariants().judge(call).passed
    assert "a loss below 0" in MaxSumInvariants().judge(call._replace(output=-call.output)).summary
    nan = call._replace(output=call.output * math.nan)
    assert "a loss that isn't finite, where their operands are" in MaxSumInvariants().judge(nan).summary
    ignored = made(linear_cross_entropy, x, w, torch.full_like(target, -100))
    assert ignored.output.isnan()
    assert MaxSumInvariants().judge(ignored).passed
    smoothed = made(linear_cross_entropy, x, w, target, label_smoothing=0.1, z_loss=1e-3, reduction="none")
    assert MaxSumInvariants().judge(smoothed).passed


def test_log_probabilities_and_entropies_have_their_ranges() -> None:
    x, w, target = operands()
    assert (
        "a log-probability above 0"
        in broken(made(linear_logprobs, x, w, target, return_entropy=True), 0, 2, 0.1).summary
    )
    call = made(linear_logprobs, x, w, target, return_entropy=True)
    finding = broken(call, 1, 2, math.log(VOCAB) + 1e-3)
    assert finding.rows == (2,)
    assert "an entropy outside of 0 to 6.55" in finding.summary
    assert broken(made(linear_logprobs, x, w, target, return_entropy=True), 1, 2, -1e-3).rows == (2,)
    uniform = made(linear_logprobs, torch.zeros_like(x), w, target, return_entropy=True)
    assert MaxSumInvariants().judge(uniform).passed


def test_a_broken_partial_of_one_tile_is_found_by_a_sum_below_1() -> None:
    x, w, _ = operands()
    call = made(linear_max_sum, x, w)
    stale = MaxSum(call.output.max, call.output.sum_exp * torch.exp(call.output.max - call.output.max.max() - 8))
    assert not MaxSumInvariants().judge(call._replace(output=stale)).passed


def test_other_callables_do_not_fit() -> None:
    found = MaxSumInvariants().fits(Made(torch.sin, (), {}, torch.ones(2)))
    assert found is not None
    assert found.startswith("sin is none of linear_max_sum, ")
    assert MaxSumInvariants().fits(calls()["softmax"]) == "its output holds no statistics"


def test_nothing_of_the_call_is_changed() -> None:
    call = calls()["loss with stats"]
    before = [tensor.clone() for tensor in (*call.args, call.output[0], call.output[1].token_loss)]
    state = torch.get_rng_state()
    MaxSumInvariants().judge(call)
    after = (*call.args, call.output[0], call.output[1].token_loss)
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert torch.equal(state, torch.get_rng_state())
