"""Gradients are the derivatives: by torch.autograd.gradcheck in float64, and in 16 and 32 bits against float64.

Every differentiable function, with every option. Not here: the edges (test_gradient_edges.py), or what the kernels do
with the coefficients that they are given (tests/kernels/test_gradients.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional as F

from steadysum import kernels, linear_cross_entropy, linear_logprobs, linear_max_sum, linear_softmax
from steadysum.errors import GradientError

N, H, V = 4, 3, 6
TARGET: Final = torch.tensor([0, 4, 2, 4])  # below 5, the number of real columns of a padded head


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def leaves(rows: int = N, hidden: int = H, vocab: int = V) -> tuple[Tensor, Tensor, Tensor]:
    shapes = ((rows, hidden), (vocab, hidden), (vocab,))
    return tuple(draw(*shape, seed=seed).requires_grad_() for seed, shape in enumerate(shapes))  # type: ignore[return-value]


# ---- float64, by finite differences ----------------------------------------------------------------------------------

COMMON: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "scale": {"scale": 0.7},
    "softcap": {"softcap": 1.5},
    "valid_vocab": {"valid_vocab": 5},
    "all": {"scale": 1.3, "softcap": 2.0, "valid_vocab": 5},
}
TEMPERATURES: Final[dict[str, dict[str, Any]]] = {
    "one temperature": {"temperature": 0.8},
    "a temperature per row": {"temperature": torch.tensor([0.5, 1.0, 1.5, 2.0], dtype=torch.float64)},
    "all, with temperatures": {**COMMON["all"], "temperature": torch.tensor([0.5, 1.0, 1.5, 2.0], dtype=torch.float64)},
}
CLASS_WEIGHT: Final = draw(V, seed=5).abs()
PROBABILITIES: Final = draw(N, V, seed=6).softmax(1)
IGNORING: Final = torch.tensor([0, -100, 2, 4])
LOSSES: Final[dict[str, dict[str, Any]]] = {
    **COMMON,
    "label_smoothing": {"label_smoothing": 0.3},
    "label_smoothing 1": {"label_smoothing": 1.0},
    "weight": {"weight": CLASS_WEIGHT},
    "weight, smoothed": {"weight": CLASS_WEIGHT, "label_smoothing": 0.3},
    "z_loss": {"z_loss": 0.1},
    "z_loss, weight": {"z_loss": 0.1, "weight": CLASS_WEIGHT},
    "ignored rows": {"target": IGNORING},
    "ignored rows, smoothed, weight, z_loss": {
        "target": IGNORING,
        "label_smoothing": 0.3,
        "weight": CLASS_WEIGHT,
        "z_loss": 0.1,
    },
    "a class is ignored": {"ignore_index": 4},
    "probabilities": {"target": PROBABILITIES},
    "probabilities, smoothed": {"target": PROBABILITIES, "label_smoothing": 0.3},
    "probabilities, smoothed, weight, z_loss": {
        "target": PROBABILITIES,
        "label_smoothing": 0.3,
        "weight": CLASS_WEIGHT,
        "z_loss": 0.1,
    },
    "everything": {
        **COMMON["all"],
        "target": IGNORING,
        "label_smoothing": 0.3,
        "weight": CLASS_WEIGHT,
        "z_loss": 0.1,
    },
}

Run = Callable[..., Any]  # of input, weight and bias


def loss_of(reduction: str, options: dict[str, Any]) -> Run:
    options = dict(options)
    target = options.pop("target", TARGET)

    def run(x: Tensor, head: Tensor, bias: Tensor) -> Tensor:
        return linear_cross_entropy(x, head, target, linear_bias=bias, reduction=reduction, kernel="eager", **options)

    return run


def logprobs_of(options: dict[str, Any]) -> Run:
    return lambda x, head, bias: linear_logprobs(x, head, TARGET, bias=bias, kernel="eager", **options)


def logprobs_and_entropy_of(options: dict[str, Any]) -> Run:
    return lambda x, head, bias: linear_logprobs(
        x, head, TARGET, bias=bias, kernel="eager", return_entropy=True, **options
    )


def max_sum_of(options: dict[str, Any]) -> Run:
    return lambda x, head, bias: tuple(linear_max_sum(x, head, bias=bias, kernel="eager", **options))


def softmax_of(options: dict[str, Any]) -> Run:
    return lambda x, head, bias: linear_softmax(x, head, bias=bias, kernel="eager", **options)


OTHERS: Final = {
    "logprobs": logprobs_of,
    "logprobs and entropy": logprobs_and_entropy_of,
    "max_sum": max_sum_of,
    "softmax": softmax_of,
}


def functions(suits: Callable[[dict[str, Any]], bool]) -> dict[str, Run]:
    """Every function with every set of options that suits."""
    found = {
        f"loss, {reduction}, {name}": loss_of(reduction, options)
        for reduction in ("mean", "sum", "none")
        for name, options in LOSSES.items()
        if suits(options)
    }
    for function, build in OTHERS.items():
        for name, options in {**COMMON, **TEMPERATURES}.items():
            if suits(options):
                found[f"{function}, {name}"] = build(options)
    return found


def suits_any_vocabulary(options: dict[str, Any]) -> bool:
    return options.keys().isdisjoint({"weight", "valid_vocab"}) and options.get("target") is not PROBABILITIES


FUNCTIONS: Final = functions(lambda _: True)
OVER_TILES: Final = functions(suits_any_vocabulary)  # of 512 columns; test_gradients.py has them with all options


@pytest.mark.parametrize("run", FUNCTIONS.values(), ids=FUNCTIONS)
def test_gradients_are_the_limit_of_finite_differences(run: Run) -> None:
    assert gradcheck(run, leaves())


@pytest.mark.parametrize("run", FUNCTIONS.values(), ids=FUNCTIONS)
def test_gradients_of_gradients_are_the_limit_of_finite_differences(run: Run) -> None:
    """fast_mode: one direction of each operand, and one of the results."""
    assert gradgradcheck(run, leaves(), fast_mode=True)


@pytest.mark.parametrize("run", OVER_TILES.values(), ids=OVER_TILES)
def test_gradients_over_several_tiles_are_the_limit_of_finite_differences(run: Run) -> None:
    """fast_mode: one direction of each operand, and one of the results."""
    assert gradcheck(run, leaves(vocab=1100), fast_mode=True)


def test_gradients_of_a_k_dimensional_head_are_the_limit_of_finite_differences() -> None:
    x, head = draw(3, H).requires_grad_(), draw(4, 2, H, seed=1).requires_grad_()
    target = torch.tensor([[0, 3], [-100, 1], [2, 2]])
    options = {"label_smoothing": 0.2, "weight": draw(4, seed=5).abs(), "z_loss": 0.1}
    for reduction in ("mean", "sum", "none"):
        run = loss_of(reduction, {**options, "target": target})
        operands = (x, head, draw(4, 2, seed=2).requires_grad_())
        assert gradcheck(run, operands)
        assert gradgradcheck(run, operands, fast_mode=True)


@pytest.mark.parametrize("kernel", ["native", "eager", "reference"])
def test_the_gradient_of_max_is_split_evenly_among_ties(kernel: str) -> None:
    missing = kernels.get(kernel).missing()
    if missing is not None:
        pytest.skip(f"kernel {kernel} is missing: {missing}")
    dtype = torch.float32 if kernel == "native" else torch.float64
    head = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [-1.0, 0.5], [1.0, 0.0]], dtype=dtype).repeat(200, 1)
    x = torch.tensor([[2.0, 1.0], [1.0, 1.0], [-1.0, -1.0]], dtype=dtype)  # 600, 800 and 200 ties, exactly
    found, expected = (
        torch.autograd.grad(results(*operands), operands, (torch.tensor([1.0, 2.0, 3.0], dtype=dtype),) * 2)
        for results, operands in (
            (
                lambda a, b: tuple(linear_max_sum(a, b, kernel=kernel)),
                [each.clone().requires_grad_() for each in (x, head)],
            ),
            (plain_max_sum, [each.clone().requires_grad_() for each in (x, head)]),
        )
    )
    for own, by_torch in zip(found, expected, strict=True):
        torch.testing.assert_close(
            own, by_torch, rtol=1000 * torch.finfo(dtype).eps, atol=1000 * torch.finfo(dtype).eps
        )


@pytest.mark.usefixtures("needs_native")
def test_gradients_of_gradients_by_native_are_refused() -> None:
    x, head = draw(N, H).float().requires_grad_(), draw(V, H).float()
    for reduction in ("mean", "none"):
        loss = linear_cross_entropy(x, head, TARGET, reduction=reduction, kernel="native").sum()
        (once,) = torch.autograd.grad(loss, x, create_graph=True)
        with pytest.raises(GradientError, match="kernel='eager'"):
            torch.autograd.grad(once.sum(), x)


# ---- 16 and 32 bits, against float64 ---------------------------------------------------------------------------------


def plain_max_sum(x: Tensor, head: Tensor) -> tuple[Tensor, Tensor]:
    z = F.linear(x, head)
    return max_sum_of_logits(z, TARGET)


class Case(NamedTuple):
    """A function of ours, and of logits by torch alone; and per logit the size of what its gradient is rounded from."""

    ours: Callable[..., tuple[Tensor, ...]]
    of_logits: Callable[[Tensor, Tensor], tuple[Tensor, ...]]


def max_sum_of_logits(z: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    largest = z.amax(-1)
    return largest, (z - largest[:, None]).exp().sum(-1)


def logprobs_of_logits(z: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    log_p = z.log_softmax(-1)
    p = log_p.exp()
    return log_p.gather(-1, target[:, None])[:, 0], -torch.where(p == 0, 0.0, p * log_p).sum(-1)


CASES: Final = {
    "loss, mean": Case(
        lambda x, head, bias, target, kernel: (linear_cross_entropy(x, head, target, linear_bias=bias, kernel=kernel),),
        lambda z, target: (F.cross_entropy(z, target),),
    ),
    "loss, none, smoothed": Case(
        lambda x, head, bias, target, kernel: (
            linear_cross_entropy(
                x, head, target, linear_bias=bias, kernel=kernel, reduction="none", label_smoothing=0.1
            ),
        ),
        lambda z, target: (F.cross_entropy(z, target, reduction="none", label_smoothing=0.1),),
    ),
    "logprobs and entropy": Case(
        lambda x, head, bias, target, kernel: linear_logprobs(
            x, head, target, bias=bias, kernel=kernel, return_entropy=True
        ),
        logprobs_of_logits,
    ),
    "max_sum": Case(
        lambda x, head, bias, _, kernel: tuple(linear_max_sum(x, head, bias=bias, kernel=kernel)),
        max_sum_of_logits,
    ),
    "softmax": Case(
        lambda x, head, bias, _, kernel: (linear_softmax(x, head, bias=bias, kernel=kernel),),
        lambda z, _: (z.softmax(-1),),
    ),
}


class Operands(NamedTuple):
    x: Tensor
    head: Tensor
    bias: Tensor
    target: Tensor

    def leaves(self, dtype: torch.dtype) -> list[Tensor]:
        return [each.detach().to(dtype, copy=True).requires_grad_() for each in self[:3]]


def random_operands(rows: int, hidden: int, vocab: int, spread: float, offset: float, dtype: torch.dtype) -> Operands:
    target = torch.arange(rows) * 7 % vocab
    head = draw(vocab, hidden, seed=1) * (spread / hidden**0.5)
    bias = draw(vocab, seed=2) * 0.1 + offset
    return Operands(draw(rows, hidden).to(dtype), head.to(dtype), bias.to(dtype), target)


def peaked_operands(probability: float, dtype: torch.dtype) -> Operands:
    """Each row's target has this probability, or up to e times the odds of it; 699 others share the rest.

    The odds differ, so that the rows' roundings are independent of each other.
    """
    gap = math.log(699 * probability / (1 - probability))
    x = torch.cat([gap + torch.linspace(0, 1, 20, dtype=torch.float64)[:, None], draw(20, 8)], 1)
    head = torch.cat([torch.zeros(700, 1, dtype=torch.float64), draw(700, 8, seed=1) / 32], 1)
    target = torch.full((20,), 512)
    head[target, 0] = 1.0
    return Operands(x.to(dtype), head.to(dtype), torch.zeros(700, dtype=dtype), target)


def operands_of(which: str, dtype: torch.dtype) -> Operands:
    kind, *numbers = which.split(", ")
    if kind == "peaked":
        return peaked_operands(float(numbers[0]), dtype)
    rows, hidden, vocab = (int(each) for each in kind.split(" x "))
    return random_operands(rows, hidden, vocab, *(float(each.split(" ")[1]) for each in numbers), dtype)


DISTRIBUTIONS: Final = (
    "5 x 16 x 40, spread 1, offset 0",
    "150 x 40 x 1300, spread 0.1, offset 0",
    "150 x 40 x 1300, spread 4, offset 0",
    "3 x 130 x 9000, spread 1, offset 0",
    "40 x 16 x 700, spread 1, offset 1024",
    "peaked, 0.99",
    "peaked, 0.999",
    "peaked, 0.99999",
)


def rms(values: Tensor) -> float:
    return float(values.double().square().mean().sqrt())


def pulled_back(results: tuple[Tensor, ...], inputs: list[Tensor]) -> tuple[Tensor, ...]:
    upstream = [draw(*each.shape, seed=10 + i).to(each.dtype) for i, each in enumerate(results)]
    return torch.autograd.grad(results, inputs, upstream, retain_graph=True)


def stored(case: Case, operands: Operands, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """The gradients by torch's plain computation."""
    inputs = operands.leaves(dtype)
    return pulled_back(case.of_logits(F.linear(*inputs), operands.target), inputs)


def roundings(case: Case, operands: Operands) -> tuple[float, ...]:
    """Of each gradient, what one rounding in fp32 of each of its terms amounts to: errors' squares add up.

    A logit's gradient is a difference of numbers that are up to as large as the sum of its own size, its
    probability's share of the upstream gradients and, where it is the row's largest, sum_exp times that.
    """
    inputs = operands.leaves(torch.float64)
    z = F.linear(*inputs)
    results = case.of_logits(z, operands.target)
    (of_logits,) = pulled_back(results, [z])
    p = z.detach().softmax(1)
    upstream = [draw(*each.shape, seed=10 + i).abs() for i, each in enumerate(results)]
    share = sum(each if each.dim() == 0 else each.reshape(len(z), -1).amax(1, keepdim=True) for each in upstream)
    if results[0].dim() == 0:
        share = share / len(z)
    size = (of_logits.abs() + p * share).square()
    x, head, _ = (each.detach().square() for each in inputs)
    return tuple(2.0**-23 * rms(each.sqrt()) for each in (size @ head, size.T @ x, size.sum(0)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("which", DISTRIBUTIONS)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kernel", ["native", "eager"])
def test_gradients_are_as_good_as_those_of_the_plain_computation(
    kernel: str, name: str, which: str, dtype: torch.dtype
) -> None:
    """At most twice its error in the same dtype, plus two roundings of each term (exp, quotient) and one of the result.

    Torch's own error depends on its instructions: with AVX-512 (not with ATEN_CPU_CAPABILITY=avx2) it is far below the
    roundings of the terms in one case here; the bits of `native` are the same on both.
    """
    missing = kernels.get(kernel).missing()
    if missing is not None:
        pytest.skip(f"kernel {kernel} is missing: {missing}")
    case, operands = CASES[name], operands_of(which, dtype)
    inputs = operands.leaves(dtype)
    found = pulled_back(case.ours(*inputs, operands.target, kernel), inputs)
    plain, exact = (stored(case, operands, each) for each in (dtype, torch.float64))
    floors = roundings(case, operands)
    for what, *gradients, floor in zip(("input", "weight", "bias"), found, plain, exact, floors, strict=True):
        own, by_torch, right = gradients
        assert own.dtype == dtype
        allowed = 2 * rms(by_torch.double() - right) + 2 * floor + torch.finfo(dtype).eps * rms(right)
        error = rms(own.double() - right)
        assert error <= allowed, f"{what}: root-mean-square error {error:.3g}, allowed {allowed:.3g}"
