"""The vendor's semantics on drawn problems, against float64: a tenth of the vendor's tolerances, and no outliers.

Sums, losses and softmax are within that by themselves, where logits aren't far spread. What is a difference of fp32
numbers (predicted logits, gradients), or a logit, may be as far off as fp32 rounding errors take it.

Not here: the traps (test_torch_npu_traps.py), equal bits (test_torch_npu_bits.py).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import steadysum.compat.torch_npu as torch_npu
from steadysum import kernels

from .vendor_restatement import ATOL, RTOL, STRICTER, Problem, assert_close, backward, forward, problems


def drawn(examples: int) -> settings:
    """So many drawn problems, or as many as the profile wants (`make soak`), if that is more than its usual 100."""
    most = settings.default.max_examples if settings.default is not None else 0
    return settings(max_examples=max(examples, most if most > 100 else 0), suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(autouse=True)
def _no_warning_of_inclusive_ends() -> Iterator[None]:
    """Drawn ranges do end one before the weight does."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "vocab_end_index")
        yield


def check_forward_and_backward(problem: Problem, return_logits: bool, kernel: str) -> None:
    found = torch_npu.npu_fused_linear_online_max_sum(*problem.arguments, return_logits, kernel=kernel)
    exact = forward(problem)
    rows, vocab = problem.input.shape[0], problem.weight.shape[0]
    # Logits of a spread of 8 lose digits before they reach the sum. The others' sums have no need of a bound.
    is_wide = problem.spread > 1.0
    assert_close("logits_max", found.logits_max, exact.max, exact.max_bound)
    assert_close("sum_exp_logits", found.sum_exp_logits, exact.sum_exp, exact.sum_bound if is_wide else None)
    assert_close("predicted_logits", found.predicted_logits, exact.predicted, exact.predicted_bound)
    assert found.target_mask.tolist() == exact.mask
    assert found.masked_target.tolist() == exact.masked_target
    for values in found[:3]:
        assert (values.dtype, values.shape) == (torch.float32, (rows,))
    assert (found.target_mask.dtype, found.target_mask.shape) == (torch.uint8, ((rows + 7) // 8,))
    assert (found.masked_target.dtype, found.masked_target.shape) == (problem.target.dtype, (rows,))
    logits = found.vocab_parallel_logits
    assert (logits is not None) == return_logits
    if logits is not None:
        assert (logits.dtype, logits.shape) == (problem.input.dtype, (rows, vocab))
        if logits.dtype == torch.float32:
            assert_close("vocab_parallel_logits", logits, exact.logits, exact.logits_bound)
            assert torch.equal(logits.amax(dim=1), found.logits_max)

    loss, softmax = torch_npu.npu_fused_cross_entropy_loss_with_max_sum(
        *found[:3], vocab_parallel_logits=logits, kernel=kernel
    )
    # A loss near 0 is the logarithm of a sum near 1, of which fp32 numbers keep few digits. At 0.1 they keep 6.
    is_small = exact.loss < 0.1
    of_loss = exact.loss_bound if is_wide else exact.loss_bound.masked_fill(~is_small, 0.0)
    assert_close("loss", loss, exact.loss, of_loss)
    assert (loss.dtype, loss.shape) == (torch.float32, (rows,))
    assert (softmax is not None) == return_logits
    if softmax is not None and logits is not None:
        assert (softmax.dtype, softmax.shape) == (torch.float32, (rows, vocab))
        # The statistics are fp32 numbers now, and the logits are what was stored of them.
        moved = logits.double() - found.logits_max.double()[:, None]
        p = moved.exp() / found.sum_exp_logits.double()[:, None]
        assert_close("softmax", softmax, p)

    grad = torch.randn(rows, generator=torch.Generator().manual_seed(rows))
    arguments = (grad, problem.input, problem.weight, found.target_mask, found.masked_target)
    given_as = {"softmax": softmax}
    if softmax is None:
        given_as = {"logits_max": found.logits_max, "sum_exp_logits": found.sum_exp_logits}
    wide = torch_npu.npu_fused_linear_cross_entropy_loss_with_max_sum_backward(
        *arguments, **given_as, grad_dtype=torch.float32, kernel=kernel
    )
    gradients = backward(problem, grad, exact, softmax)
    assert_close("input_grad", wide[0], gradients.input_grad, gradients.input_bound)
    assert_close("weight_grad", wide[1], gradients.weight_grad, gradients.weight_bound)
    narrow = torch_npu.npu_fused_linear_cross_entropy_loss_with_max_sum_backward(*arguments, **given_as, kernel=kernel)
    for one, other in zip(narrow, wide, strict=True):  # rounded once, at the end
        assert one.dtype == problem.input.dtype
        assert torch.equal(one, other.to(one.dtype))


@drawn(500)
@given(problems(), st.booleans())
def test_all_three_operators_agree_with_float64_to_a_tenth_of_the_tolerances(
    problem: Problem, return_logits: bool
) -> None:
    check_forward_and_backward(problem, return_logits, "auto")


@drawn(60)
@given(problems(), st.booleans())
def test_the_kernel_of_torch_operations_agrees_as_well(problem: Problem, return_logits: bool) -> None:
    check_forward_and_backward(problem, return_logits, "eager")


@drawn(50)
@given(problems((torch.bfloat16, torch.float16)))
def test_sixteen_bit_operands_have_the_results_of_the_same_numbers_in_fp32(problem: Problem) -> None:
    found = torch_npu.npu_fused_linear_online_max_sum(*problem.arguments, True)
    wide = Problem(problem.input.float(), problem.weight.float(), problem.target, problem.start, problem.end)
    expected = torch_npu.npu_fused_linear_online_max_sum(*wide.arguments, True)
    for one, other in zip(found[:5], expected[:5], strict=True):
        assert torch.equal(one, other)
    assert found.vocab_parallel_logits is not None
    assert expected.vocab_parallel_logits is not None
    assert torch.equal(found.vocab_parallel_logits, expected.vocab_parallel_logits.to(problem.input.dtype))


@pytest.mark.parametrize("kernel", [name for name in kernels.available() if name in ("native", "eager")])
@drawn(50)
@given(problem=problems())
def test_rounded_logits_have_the_statistics_of_logits_that_are_rounded_first(kernel: str, problem: Problem) -> None:
    stored = torch_npu.npu_fused_linear_online_max_sum(*problem.arguments, True, kernel=kernel).vocab_parallel_logits
    assert stored is not None
    exact = forward(problem, stored)  # the logits as rounded numbers: the maximum is one of them
    for return_logits in (False, True):
        found = torch_npu.npu_fused_linear_online_max_sum(
            *problem.arguments, return_logits, round_logits=True, kernel=kernel
        )
        if problem.input.dtype != torch.float32:
            assert torch.equal(found.logits_max.double(), exact.max)
            assert torch.equal(found.target_logits, _at_target(stored.float(), exact.masked_target, exact.outside))
        assert_close("sum_exp_logits", found.sum_exp_logits, exact.sum_exp, exact.sum_bound)
        assert_close("predicted_logits", found.predicted_logits, exact.predicted, exact.predicted_bound)
        if found.vocab_parallel_logits is not None:
            assert torch.equal(found.vocab_parallel_logits, stored)
    grad = torch.randn(len(exact.masked_target), generator=torch.Generator().manual_seed(0))
    gradients = torch_npu.npu_fused_linear_cross_entropy_loss_with_max_sum_backward(
        grad,
        problem.input,
        problem.weight,
        found.target_mask,
        found.masked_target,
        logits_max=found.logits_max,
        sum_exp_logits=found.sum_exp_logits,
        grad_dtype=torch.float32,
        round_logits=True,
        kernel=kernel,
    )
    expected = backward(problem, grad, exact)
    assert_close("input_grad", gradients[0], expected.input_grad, expected.input_bound)
    assert_close("weight_grad", gradients[1], expected.weight_grad, expected.weight_bound)


def _at_target(logits: Tensor, masked_target: list[int], outside: Tensor) -> Tensor:
    columns = torch.tensor(masked_target, dtype=torch.int64)
    return logits[torch.arange(len(masked_target)), columns].masked_fill(outside, 0.0)


def test_float64_operands_have_float64_results() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 30, generator=generator, dtype=torch.float64)
    w = torch.randn(700, 30, generator=generator, dtype=torch.float64)
    problem = Problem(x, w, torch.randint(0, 800, (40,), generator=generator), 0, 700)
    found = torch_npu.npu_fused_linear_online_max_sum(*problem.arguments)
    exact = forward(problem)
    for values, expected in zip(found[:3], (exact.max, exact.sum_exp, exact.predicted), strict=True):
        assert values.dtype == torch.float64
        torch.testing.assert_close(values, expected, rtol=1e-13, atol=1e-13)
    gradients = torch_npu.npu_fused_linear_cross_entropy_loss_with_max_sum_backward(
        torch.ones(40), x, w, found.target_mask, found.masked_target, 0.0, found.logits_max, found.sum_exp_logits
    )
    expected_gradients = backward(problem, torch.ones(40), exact)
    torch.testing.assert_close(gradients[0], expected_gradients.input_grad, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(gradients[1], expected_gradients.weight_grad, rtol=1e-12, atol=1e-13)


def plain(problem: Problem, grad: Tensor) -> dict[str, Tensor]:
    """The same by torch in fp32, all logits stored."""
    x, w, at = problem.input.float(), problem.weight.float(), torch.arange(problem.input.shape[0])
    z = x @ w.T
    largest = z.amax(dim=1)
    sum_exp = (z - largest[:, None]).exp().sum(dim=1)
    predicted = z[at, problem.target] - largest
    p = (z - largest[:, None]).exp() / sum_exp[:, None]
    p[at, problem.target] -= 1
    p *= grad[:, None]
    return {
        "logits_max": largest,
        "sum_exp_logits": sum_exp,
        "predicted_logits": predicted,
        "loss": sum_exp.log() - predicted,
        "input_grad": p @ w,
        "weight_grad": p.T @ x,
    }


def test_values_beyond_a_tenth_of_the_tolerance_are_those_that_cancel_in_any_fp32_computation() -> None:
    beyond: dict[str, list[int]] = {}
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        rows, hidden, vocab = (int(torch.randint(1, most, (), generator=generator)) for most in (300, 200, 600))
        x, w = torch.randn(rows, hidden, generator=generator), torch.randn(vocab, hidden, generator=generator)
        problem = Problem(x, w / hidden**0.5, torch.randint(0, vocab, (rows,), generator=generator), 0, vocab)
        grad = torch.randn(rows, generator=generator)
        found = torch_npu.npu_fused_linear_online_max_sum(*problem.arguments)
        gradients = torch_npu.npu_fused_linear_cross_entropy_loss_with_max_sum_backward(
            grad, problem.input, problem.weight, found.target_mask, found.masked_target, 0.0, *found[:2]
        )
        ours = (*found[:3], torch_npu.npu_fused_cross_entropy_loss_with_max_sum(*found[:3])[0], *gradients)
        exact = forward(problem)
        of_exact = backward(problem, grad, exact)
        truths = (exact.max, exact.sum_exp, exact.predicted, exact.loss, of_exact.input_grad, of_exact.weight_grad)
        for (name, theirs), our, truth in zip(plain(problem, grad).items(), ours, truths, strict=True):
            allowed = (RTOL * truth.abs() + ATOL) / STRICTER
            counts = beyond.setdefault(name, [0, 0])
            counts[0] += int(((our - truth).abs() > allowed).sum())
            counts[1] += int(((theirs - truth).abs() > allowed).sum())
    for name in ("logits_max", "sum_exp_logits", "loss"):  # which don't cancel
        assert beyond[name][0] == 0, name
    for name in ("predicted_logits", "input_grad", "weight_grad"):
        ours_beyond, plain_beyond = beyond[name]  # counts of rare events: as many, within 3 standard deviations
        assert ours_beyond <= plain_beyond + 3 * plain_beyond**0.5, name
