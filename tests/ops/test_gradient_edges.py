"""Losses and gradients at the edges, as torch has them: no rows, one class, infinite and missing numbers.

Not here: calls that are wrong (test_cross_entropy_as_torch.py), or accuracy (test_gradcheck.py).
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from steadysum import kernels, linear_cross_entropy, linear_logprobs, linear_max_sum, linear_softmax

INF, NAN = math.inf, math.nan
IGNORED: Final = -100
REDUCTIONS: Final = ("mean", "sum", "none")
OPTIONS: Final = {"plain": {}, "smoothed": {"label_smoothing": 0.1}}


@pytest.fixture(params=["native", "eager"])
def trained(request: pytest.FixtureRequest) -> str:
    """Each kernel that trains."""
    missing = kernels.get(request.param).missing()
    if missing is not None:
        pytest.skip(f"kernel {request.param} is missing: {missing}")
    return str(request.param)


@pytest.fixture(params=REDUCTIONS)
def reduction(request: pytest.FixtureRequest) -> str:
    """Each reduction: gradients are formed in the forward pass for a scalar, in the backward pass for "none"."""
    return str(request.param)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Outcome(NamedTuple):
    loss: Tensor
    input: Tensor  # gradients
    weight: Tensor
    bias: Tensor


def outcome(
    function: Any, x: Tensor, head: Tensor, target: Tensor, bias: Tensor | None = None, **options: Any
) -> Outcome:
    """The loss and its gradients; each row's loss has an upstream gradient of its own."""
    bias = torch.zeros(head.shape[0], dtype=head.dtype) if bias is None else bias
    leaves = [each.detach().requires_grad_() for each in (x, head, bias)]
    loss = function(*leaves[:2], target, linear_bias=leaves[2], **options)
    upstream = 1 + torch.arange(loss.numel(), dtype=loss.dtype).reshape(loss.shape) / 8
    return Outcome(loss.detach(), *torch.autograd.grad(loss, leaves, upstream))


def assert_as_torch(
    x: Tensor, head: Tensor, target: Tensor, kernel: str, bias: Tensor | None = None, **options: Any
) -> Outcome:
    """NaNs, infinities and zeros where torch's float64 computation has them; else as near as fp32 gets.

    A logit of H products is off by (H + 2) u of their sizes, and so, relatively, is a probability, twice.
    """
    wide = [None if each is None else each.double() for each in (x, head, bias)]
    exact = outcome(F.linear_cross_entropy, wide[0], wide[1], target, wide[2], **options)
    found = outcome(linear_cross_entropy, x, head, target, bias, kernel=kernel, **options)
    size = max(1.0, *(float(each.abs().max()) for each in (x, head) if each.numel()))
    tolerance = 16 * (x.shape[-1] + 2) * 2.0**-24 * size**2
    for name, own, right in zip(Outcome._fields, found, exact, strict=True):
        assert own.dtype == x.dtype, name
        torch.testing.assert_close(
            own.double(),
            right,
            rtol=tolerance,
            atol=tolerance,
            equal_nan=True,
            msg=lambda text, name=name: f"{name}: {text}",
        )
    return found


# ---- few rows, few classes, many classes -----------------------------------------------------------------------------


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_with_all_targets_ignored_loss_and_gradients_are_torchs(
    trained: str, reduction: str, options: dict[str, Any]
) -> None:
    found = assert_as_torch(
        draw(5, 8), draw(20, 8, seed=1), torch.full((5,), IGNORED), trained, reduction=reduction, **options
    )
    assert bool(found.loss.isnan().all()) == (reduction == "mean")
    assert not any(bool(gradient.any()) for gradient in found[1:])


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_without_any_row_loss_and_gradients_are_torchs(trained: str, reduction: str, options: dict[str, Any]) -> None:
    none = torch.empty(0, dtype=torch.int64)
    found = assert_as_torch(torch.empty(0, 8), draw(20, 8, seed=1), none, trained, reduction=reduction, **options)
    assert found.loss.shape == ((0,) if reduction == "none" else ())


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("rows", ["[H]", "[1, H]"])
def test_of_one_token_loss_and_gradients_are_torchs(
    trained: str, reduction: str, rows: str, options: dict[str, Any]
) -> None:
    x, target = draw(1, 8), torch.tensor([19])  # the last class
    if rows == "[H]":
        x, target = x[0], target[0]
    assert_as_torch(x, draw(20, 8, seed=1), target, trained, reduction=reduction, **options)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_with_one_class_there_is_no_loss_and_no_gradient(trained: str, reduction: str, options: dict[str, Any]) -> None:
    target = torch.zeros(5, dtype=torch.int64)
    found = assert_as_torch(draw(5, 8), draw(1, 8, seed=1), target, trained, reduction=reduction, **options)
    assert not bool(found.loss.any())


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("vocab", [2**17 + 3, 2**17])
def test_with_many_classes_and_a_target_at_the_last_loss_and_gradients_are_torchs(
    trained: str, reduction: str, vocab: int, options: dict[str, Any]
) -> None:
    target = torch.tensor([vocab - 1, 0, vocab - 2, vocab - 1])
    assert_as_torch(draw(4, 4), draw(vocab, 4, seed=1) / 4, target, trained, reduction=reduction, **options)


def test_a_target_at_the_last_real_class_of_a_padded_head_gets_its_gradient(trained: str, reduction: str) -> None:
    x, head, target = draw(4, 8), draw(600, 8, seed=1), torch.full((4,), 512)
    padded = outcome(linear_cross_entropy, x, head, target, kernel=trained, reduction=reduction, valid_vocab=513)
    alone = outcome(linear_cross_entropy, x, head[:513], target, kernel=trained, reduction=reduction)
    for found, expected in zip(padded[:2], alone[:2], strict=True):
        torch.testing.assert_close(found, expected)
    for found, expected in zip(padded[2:], alone[2:], strict=True):
        torch.testing.assert_close(found[:513], expected)
        assert not bool(found[513:].any())


# ---- infinite logits -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vocab", [20, 1300])  # one tile; three
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize(
    "infinite",
    [
        pytest.param({3: -INF}, id="-inf at no target"),
        pytest.param({7: -INF}, id="-inf at a target"),
        pytest.param({3: INF}, id="+inf at no target"),
        pytest.param({7: INF}, id="+inf at a target"),
        pytest.param({3: INF, 5: -INF}, id="both"),
        pytest.param(dict.fromkeys(range(1300), -INF), id="nothing but -inf"),
    ],
)
def test_infinite_logits_have_the_loss_and_gradients_that_torch_gives_them(
    trained: str, reduction: str, infinite: dict[int, float], options: dict[str, Any], vocab: int
) -> None:
    bias = torch.zeros(vocab)
    for column, value in infinite.items():
        if column < vocab:
            bias[column] = value
    target = torch.tensor([7, 2, vocab - 1])
    assert_as_torch(draw(3, 8), draw(vocab, 8, seed=1) / 4, target, trained, bias=bias, reduction=reduction, **options)


@pytest.mark.parametrize("value", [INF, -INF], ids=["+inf", "-inf"])
def test_infinite_logits_of_one_row_leave_the_other_rows_alone(trained: str, value: float) -> None:
    """Through an input of their own: the other rows' products with those columns are finite."""
    x, head = draw(4, 8), draw(20, 8, seed=1) / 4
    x[:, 0], head[:, 0] = 0.0, 1.0
    x[2, 0] = value
    assert_one_row_is_nan(x, head, trained, largest=torch.tensor(value))


# ---- NaN -------------------------------------------------------------------------------------------------------------


def assert_one_row_is_nan(x: Tensor, head: Tensor, kernel: str, largest: Tensor) -> None:
    """Row 2's loss and gradient are NaN, and so is the weight's gradient; the other rows' are those without row 2."""
    target, others = torch.tensor([0, 7, 19, 3]), torch.tensor([0, 1, 3])
    for options in OPTIONS.values():
        found = outcome(linear_cross_entropy, x, head, target, kernel=kernel, reduction="none", **options)
        clean = outcome(
            linear_cross_entropy, x[others], head, target[others], kernel=kernel, reduction="sum", **options
        )
        assert bool(found.loss[2].isnan())
        assert bool(found.input[2].isnan().all())
        assert bool(found.weight.isnan().all())
        assert bool(found.bias.isnan().all())
        assert bool(found.loss[others].isfinite().all())
        torch.testing.assert_close(found.loss[others].sum(), clean.loss)
        upstream = 1 + torch.tensor([0, 1, 3]) / 8
        torch.testing.assert_close(found.input[others], clean.input * upstream[:, None])
        summed = outcome(linear_cross_entropy, x, head, target, kernel=kernel, reduction="sum", **options)
        assert bool(summed.loss.isnan())
        assert bool(summed.input[2].isnan().all())
        torch.testing.assert_close(summed.input[others], clean.input)
    seen = linear_max_sum(x, head, kernel=kernel).max[2]
    torch.testing.assert_close(seen, largest, equal_nan=True)


def test_a_nan_in_a_row_stays_in_its_loss_its_gradient_and_that_of_the_weight(trained: str) -> None:
    x = draw(4, 8)
    x[2, 5] = NAN
    assert_one_row_is_nan(x, draw(20, 8, seed=1), trained, largest=torch.tensor(NAN))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("value", [NAN, INF], ids=str)
def test_a_nan_in_an_ignored_row_reaches_nothing(
    trained: str, reduction: str, value: float, options: dict[str, Any]
) -> None:
    """Unlike in torch, where 0 * NaN is NaN in the weight's gradient."""
    x, head, target = draw(4, 8), draw(20, 8, seed=1), torch.tensor([0, 7, IGNORED, 3])
    clean = outcome(linear_cross_entropy, x, head, target, kernel=trained, reduction=reduction, **options)
    x[2, 5] = value
    found = outcome(linear_cross_entropy, x, head, target, kernel=trained, reduction=reduction, **options)
    for own, expected in zip(found, clean, strict=True):
        assert bool(own.isfinite().all())
        assert torch.equal(own, expected)
    assert not bool(found.input[2].any())
    by_torch = outcome(F.linear_cross_entropy, x, head, target, reduction=reduction, **options)
    assert bool(by_torch.weight.isnan().any())


def test_a_nan_in_an_ignored_row_of_a_k_dimensional_head_reaches_nothing() -> None:
    x, head = draw(3, 8), draw(5, 2, 8, seed=1)
    target = torch.tensor([[0, 1], [IGNORED, IGNORED], [4, 2]])
    x[1] = NAN
    leaves = [each.requires_grad_() for each in (x, head)]
    found = torch.autograd.grad(linear_cross_entropy(*leaves, target), leaves)
    assert all(bool(each.isfinite().all()) for each in found)


@pytest.mark.parametrize("kind", ["logprobs", "entropy", "softmax", "max", "sum_exp"])
def test_a_nan_row_leaves_the_other_rows_gradients_alone(trained: str, kind: str) -> None:
    x, head, target = draw(4, 8), draw(20, 8, seed=1), torch.tensor([0, 7, 19, 3])
    x[2, 5] = NAN
    leaves = [each.requires_grad_() for each in (x, head)]
    logprobs, entropy = linear_logprobs(*leaves, target, return_entropy=True, kernel=trained)
    largest, sum_exp = linear_max_sum(*leaves, kernel=trained)
    result = {
        "logprobs": logprobs,
        "entropy": entropy,
        "softmax": linear_softmax(*leaves, kernel=trained)[:, 3],
        "max": largest,
        "sum_exp": sum_exp,
    }[kind]
    of_input, of_weight = torch.autograd.grad(result, leaves, torch.ones(4))
    assert bool(of_input[2].isnan().all())
    assert bool(of_input[[0, 1, 3]].isfinite().all())
    assert bool(of_weight.isnan().any())
