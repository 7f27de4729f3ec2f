"""Numerical traps of the field in losses and gradients: ours pass their checks, and the checks see the traps.

As test_traps.py. Each check compares a loss and its gradients with float64. It passes on the shipped code, and fails
once a trap is armed: in the native build with traps, or, where the property belongs to Python code of ours, by putting
the wrong variant in the place of the function that carries it.

Bounds: of a loss that of the roundings on the way, as in test_traps.py. Of a gradient, in the root mean square, twice
the error of torch's plain computation in fp32, with all logits stored, and one rounding of each of the terms that the
gradient sums up. Traps miss them by orders of magnitude.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final, NamedTuple

import pytest
import torch
from torch import Tensor

from steadysum import kernels, linear_cross_entropy, linear_softmax
from steadysum.kernels.gradients import Gradients
from steadysum.kernels.problem import Operands, Statistics
from steadysum.ops import loss_as_number, loss_per_row
from steadysum.ops.token_loss import Losses, TokenLoss

from . import test_traps
from .test_traps import FEW_AND_MANY, ISAS, MISSED, U, draw, exact, far_matrices, instructions, sum_bound

EPS: Final = 2 * U
IGNORED: Final = -100


def rms(values: Tensor) -> float:
    return float(values.double().square().mean().sqrt()) if values.numel() else 0.0


class Problem(NamedTuple):
    """Operands in fp32, or in a 16-bit dtype."""

    input: Tensor  # [N, H]
    weight: Tensor  # [V, H]
    target: Tensor  # [N]
    bias: Tensor | None = None  # [V]
    valid_vocab: int | None = None
    label_smoothing: float = 0.0

    @property
    def kept(self) -> Tensor:
        """Which rows aren't ignored."""
        return self.target != IGNORED

    def leaves(self, dtype: torch.dtype | None = None) -> list[Tensor]:
        """input, weight and bias, in their own dtypes if none is given, as they lie in memory."""
        operands = [self.input, self.weight, *([] if self.bias is None else [self.bias])]
        return [each.detach().to(dtype or each.dtype).requires_grad_() for each in operands]


Outcome = tuple[Tensor, tuple[Tensor, ...]]  # the losses [N], or their mean; the gradients of the leaves


def pulled_back(loss: Tensor, leaves: list[Tensor]) -> Outcome:
    """Each row's loss has an upstream gradient of its own: 1, 1 1/8, 1 1/4 ..."""
    upstream = 1 + torch.arange(len(loss)).to(loss.dtype) / 8 if loss.dim() else None
    return loss.detach(), torch.autograd.grad(loss, leaves, upstream)


def ours(problem: Problem, reduction: str, kernel: str) -> Outcome:
    input, weight, *bias = leaves = problem.leaves()
    loss = linear_cross_entropy(
        input,
        weight,
        problem.target,
        linear_bias=bias[0] if bias else None,
        valid_vocab=problem.valid_vocab,
        label_smoothing=problem.label_smoothing,
        reduction=reduction,
        kernel=kernel,
    )
    return pulled_back(loss, leaves)


def plain(problem: Problem, reduction: str, dtype: torch.dtype) -> Outcome:
    input, weight, *bias = leaves = problem.leaves(dtype)
    logits = torch.nn.functional.linear(input, weight, bias[0] if bias else None)[:, : problem.valid_vocab]
    loss = torch.nn.functional.cross_entropy(
        logits, problem.target, reduction=reduction, label_smoothing=problem.label_smoothing
    )
    return pulled_back(loss, leaves)


def roundings(problem: Problem, reduction: str) -> tuple[float, ...]:
    """Of each gradient, what one rounding of each of its terms amounts to: errors' squares add up."""
    x, w = problem.input.double(), problem.weight.double()[: problem.valid_vocab]
    bias = None if problem.bias is None else problem.bias.double()[: problem.valid_vocab]
    answers = torch.nn.functional.one_hot(problem.target.masked_fill(~problem.kept, 0), w.shape[0])
    size = torch.nn.functional.linear(x, w, bias).softmax(1) + answers
    size = size + problem.label_smoothing / w.shape[0]
    rows = 1 + torch.arange(len(x)) / 8 if reduction == "none" else torch.full((len(x),), 1 / max(1, len(x)))
    squares = (size * (rows * problem.kept)[:, None]).square()
    terms = (squares @ w.square(), squares.T @ x.square(), squares.sum(0))
    return tuple(EPS * rms(each.sqrt()) for each in terms)


def check_loss(found: Tensor, problem: Problem, reduction: str) -> None:
    x, target, kept = problem.input[problem.kept], problem.target[problem.kept], problem.kept
    call = exact(x, problem.weight, problem.bias, problem.valid_vocab)
    distance, log_sum = call.logits - call.max[:, None], call.sum_exp.log()
    away = log_sum - (1 - problem.label_smoothing) * distance.gather(1, target[:, None])[:, 0]
    smoothing = -problem.label_smoothing * distance.clamp(min=torch.finfo(torch.float64).min).mean(1)
    losses = away + smoothing if problem.label_smoothing else away
    columns = distance.shape[1] if problem.label_smoothing else 0  # summed up one by one at worst
    bound = sum_bound(call, problem.weight.shape[0]) + 2 * call.logit_bound + (6 + columns) * U * (log_sum + losses)
    if reduction == "mean":
        losses, bound = losses.mean(), bound.mean() + U * losses.mean()
    else:
        assert not bool(found[~kept].count_nonzero()), f"losses of ignored rows {MISSED}: {found[~kept].tolist()}"
        found = found[kept]
    error = (found.double() - losses).abs()
    assert bool((error <= bound).all()), f"{reduction}: loss {MISSED}: error {error.max():.3g}, bound {bound.max():.3g}"


def check_training(problem: Problem, kernel: str, reductions: tuple[str, ...] = ("mean", "none")) -> None:
    """The loss and its gradients, formed in the forward pass ("mean") and in the backward pass ("none")."""
    for reduction in reductions:
        loss, gradients = ours(problem, reduction, kernel)
        check_loss(loss, problem, reduction)
        rounded, right = (plain(problem, reduction, dtype)[1] for dtype in (torch.float32, torch.float64))
        names = ("input", "weight", "bias")
        for name, found, by_torch, each, floor in zip(
            names, gradients, rounded, right, roundings(problem, reduction), strict=False
        ):
            narrow = torch.finfo(found.dtype).eps if found.dtype.itemsize == 2 else 0.0
            allowed = 2 * rms(by_torch.double() - each) + floor + narrow * rms(each)
            error = rms(found.double() - each)
            assert error <= allowed, f"{reduction}: gradient of {name} {MISSED}: {error:.3g}, allowed {allowed:.3g}"


def targets(rows: int, columns: int, first: int = 0) -> Tensor:
    return first + torch.arange(rows) * 7 % (columns - first)


# ---- traps of the kernel --------------------------------------------------------------------------------------------


def check_ragged_tail(kernel: str) -> None:
    """verl#2656, #2899: the padded tail of the vocabulary was counted as exp(0).

    The head ends with a tile: beyond a ragged one, where gradients are formed there is no memory to write the tail to.
    """
    for rows in FEW_AND_MANY:
        x, head, bias = draw(rows, 32) / 8, draw(1024, 32, seed=1), torch.full((1024,), -20.0)
        for smoothing in (0.0, 0.1):
            for valid in (130, 700):
                check_training(Problem(x, head, targets(rows, valid), bias, valid, smoothing), kernel)


def check_very_negative_rows(kernel: str) -> None:
    """verl, Megatron: with a running max that starts at 0, rows of logits below -88 underflow to log 0."""
    for rows in FEW_AND_MANY:
        bias = torch.full((700,), -120.0)
        check_training(Problem(draw(rows, 32) / 8, draw(700, 32, seed=1), targets(rows, 700), bias), kernel)


def check_bias_over_blocks(kernel: str) -> None:
    """apple/ml-cross-entropy#52: the bias was subtracted once per block of H."""
    for rows in FEW_AND_MANY:
        head = draw(700, 300, seed=1) / 16
        check_training(Problem(draw(rows, 300), head, targets(rows, 700), draw(700, seed=2)), kernel)


def check_masked_tiles(kernel: str) -> None:
    """apple/ml-cross-entropy: a tile of -inf logits gave NaN."""
    for rows in FEW_AND_MANY:
        x, head, bias = draw(rows, 32), draw(1100, 32, seed=1) / 4, torch.zeros(1100)
        bias[:512] = -torch.inf
        check_training(Problem(x, head, targets(rows, 1100, first=512), bias), kernel)
        check_training(Problem(x, head, targets(rows, 512), valid_vocab=512), kernel)  # the second and third tile


def check_strides(kernel: str) -> None:
    """TransformerEngine#2746: transposed and other non-contiguous operands gave a wrong loss."""
    for rows in FEW_AND_MANY:
        x, head, target = draw(rows, 48), draw(300, 48, seed=1) / 4, targets(rows, 300)
        check_training(Problem(x, draw(48, 300, seed=1).T / 4, target), kernel)
        check_training(Problem(draw(48, rows).T, head, target), kernel)
        check_training(Problem(draw(rows, 96)[:, ::2], head, target), kernel)
        check_training(Problem(x, draw(600, 48, seed=1)[::2] / 4, target), kernel)
        check_training(Problem(draw(1, 48).expand(rows, 48), head, target), kernel)
        check_softmax(x, head, draw(300, rows, seed=2).T, kernel)


def check_softmax(input: Tensor, weight: Tensor, upstream: Tensor, kernel: str) -> None:
    """The gradients of a softmax, which read an upstream gradient as large as the logits."""

    def gradients(dtype: torch.dtype, softmax: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        leaves = [each.detach().to(dtype).requires_grad_() for each in (input, weight)]
        return torch.autograd.grad(softmax(*leaves), leaves, upstream.to(dtype))

    def stored(x: Tensor, head: Tensor) -> Tensor:
        return (x @ head.T).softmax(1)

    found = gradients(torch.float32, lambda x, head: linear_softmax(x, head, kernel=kernel))
    rounded, right = gradients(torch.float32, stored), gradients(torch.float64, stored)
    x, head, p = input.double(), weight.double(), stored(input.double(), weight.double())
    squares = (p * (upstream.abs() + (p * upstream).sum(1, keepdim=True).abs())).square()
    floors = (EPS * rms((squares @ head.square()).sqrt()), EPS * rms((squares.T @ x.square()).sqrt()))
    for own, by_torch, each, floor in zip(found, rounded, right, floors, strict=True):
        error, allowed = rms(own.double() - each), 2 * rms(by_torch.double() - each) + floor
        assert error <= allowed, f"gradient of a softmax {MISSED}: {error:.3g}, allowed {allowed:.3g}"


def check_far_elements(kernel: str) -> None:
    """apple/ml-cross-entropy, commit #39: offsets in 32 bits overflow.

    Of the 16 GiB only the pages of the elements are ever touched. A gradient of more than 2^31 elements would be
    written, all of it: none is tested, and the offsets in results are formed by the same function.
    """
    far = far_matrices(torch.float32)
    for rows in FEW_AND_MANY:
        head = draw(70, 16, seed=1)
        # The second row's offset of 2^32 wraps to 0, one of 2^31 to -2^31: the storage reaches that far to both sides.
        check_training(Problem(far(2, 16, 2**32, 1, 0), head, targets(2, 70)), kernel)
        check_training(Problem(draw(rows, 16), far(2, 16, 2**32, 1, 16), targets(rows, 2)), kernel)
        check_training(Problem(draw(rows, 2), far(70, 2, 1, 2**32, 64), targets(rows, 70)), kernel)
        # Strides that fit into 32 bits, 64 times of which don't: a step from one block of hidden columns to the next.
        check_training(Problem(draw(rows, 65), far(70, 65, 1, 2**26, 128), targets(rows, 70)), kernel)
        check_softmax(draw(2, 16), head, far(2, 70, 2**31, 1, 2**31 + 256), kernel)


def check_alternating_calls(kernel: str) -> None:
    """A partial that isn't written leaves the previous call's in its slot, which is right if the calls are equal."""
    for rows in FEW_AND_MANY:
        for call in (1, 2, 1, 2):
            x, head = draw(rows, 32, seed=call), draw(1100, 32, seed=10 * call) / 4
            check_training(Problem(x, head, targets(rows, 1100), torch.full((1100,), 3.0 * call)), kernel)


def check_common_offset(kernel: str) -> None:
    """Review of pytorch PR 195829: lse - z_t loses everything where all logits share an offset of 2^24."""
    for rows in (6, 40):
        offsets = torch.full((40,), 2.0**24)
        x, head = torch.eye(rows, 6).contiguous(), -torch.arange(240.0).view(40, 6)  # logits exact in fp32
        x[6:] = x[0]
        for smoothing in (0.0, 0.1):
            problem = Problem(x, head, torch.arange(rows) % 6, offsets, None, smoothing)
            # The bound of a logit's rounding, 2 at this offset, would hide the trap; nothing is rounded here.
            found, _ = ours(problem, "none", kernel)
            check_loss(found, problem._replace(bias=None), "none")
            check_training(problem, kernel, reductions=("none",))


def check_peaked_rows(kernel: str) -> None:
    """Liger-Kernel#1268, TransformerEngine#3193, fla#1231: probability minus one, formed after rounding to bf16."""
    for probability in (0.99, 0.999, 0.99999):
        for rows, dtype in ((3, torch.float32), (40, torch.bfloat16)):
            # The target's logit lies so far above 699 others near 0 that it has this probability, or more.
            gap = torch.tensor(699 * probability / (1 - probability)).log()
            x = torch.cat([(gap + torch.linspace(0, 1, rows))[:, None], draw(rows, 3)], 1)
            head = torch.cat([torch.zeros(700, 1), draw(700, 3, seed=1) / 16], 1)
            head[130, 0] = 1.0
            check_training(Problem(x.to(dtype), head.to(dtype), torch.full((rows,), 130)), kernel)


def check_many_blocks_of_rows(kernel: str) -> None:
    """Liger-Kernel#512, axolotl#1601: the weight's gradient was accumulated in 16 bits over chunks of rows."""
    rows, columns = (600, 130) if kernel == "triton" else (1500, 530)  # which, interpreted, takes half a minute
    for dtype in (torch.float32, torch.bfloat16):
        x, head = draw(rows, 16).to(dtype), (draw(columns, 16, seed=1) / 4).to(dtype)
        check_training(Problem(x, head, targets(rows, columns)), kernel)
    # In 16 bits equal terms stop adding up at 256 of them: far beyond the one rounding that bf16 operands allow.
    x, head = torch.ones(rows, 16, dtype=torch.bfloat16), torch.zeros(columns, 16, dtype=torch.bfloat16)
    check_training(Problem(x, head, torch.zeros(rows, dtype=torch.int64)), kernel)


def check_many_segments(kernel: str) -> None:
    """Megatron-LM#2739: the input's gradient was accumulated in 16 bits over splits of the vocabulary."""
    for rows in FEW_AND_MANY:
        check_training(Problem(draw(rows, 16), draw(9000, 16, seed=1) / 4, targets(rows, 9000)), kernel)


CHECKS: Final[dict[str, Callable[[str], None]]] = {
    "tail_counts_as_zero": check_ragged_tail,
    "max_starts_at_zero": check_very_negative_rows,
    "bias_once_per_block": check_bias_over_blocks,
    "masked_tile_is_nan": check_masked_tiles,
    "strides_ignored": check_strides,
    "offsets_in_32_bits": check_far_elements,
    "stale_partial": check_alternating_calls,
    "loss_as_difference": check_common_offset,
    "logit_gradient_in_16_bits": check_peaked_rows,
    "weight_gradient_in_16_bits": check_many_blocks_of_rows,
    "input_gradient_in_16_bits": check_many_segments,
}


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("trap", CHECKS)
def test_loss_and_gradients_do_not_fall_into(trap: str, isa: str, needs_native: ModuleType) -> None:
    with instructions(needs_native, isa):
        CHECKS[trap]("native")


@pytest.mark.parametrize("trap", CHECKS)
def test_eager_does_not_fall_into(trap: str) -> None:
    CHECKS[trap]("eager")


@pytest.mark.parametrize("trap", CHECKS)
def test_triton_does_not_fall_into(trap: str, runs_triton: None) -> None:
    CHECKS[trap]("triton")


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("trap", CHECKS)
def test_the_check_of_gradients_notices(trap: str, isa: str, traps: ModuleType) -> None:
    with instructions(traps, isa):
        traps.arm(traps.TRAPS.index(trap))
        with pytest.raises(AssertionError, match=MISSED):
            CHECKS[trap]("native")


def test_every_trap_of_the_kernel_has_a_check(built_with_traps: ModuleType) -> None:
    assert set(built_with_traps.TRAPS) == {"none", *CHECKS}
    assert set(test_traps.CHECKS) < set(CHECKS)  # those that show in the statistics


# ---- traps of the Python code ---------------------------------------------------------------------------------------


def with_ignored_rows(rows: int) -> Problem:
    target = targets(rows, 300)
    target[1::3] = IGNORED
    return Problem(draw(rows, 32), draw(300, 32, seed=1) / 4, target)


def check_sum_of_many_losses(kernel: str) -> None:
    """torch 2.13's chunked linear_cross_entropy sums the losses up in bf16: 1.5 to 3.8 % wrong at 9.3."""
    problem = Problem(draw(300, 16).bfloat16(), (draw(700, 16, seed=1) / 4).bfloat16(), targets(300, 700))
    check_training(problem, kernel, reductions=("mean",))


def sum_in_bf16(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(loss_as_number, "total", lambda values: values.bfloat16().cumsum(0)[-1].double())


def check_odd_number_of_rows(kernel: str) -> None:
    """mgmalek: the number of tokens was held in bf16, which above 256 has only even numbers."""
    check_training(Problem(draw(257, 16), draw(300, 16, seed=1) / 4, targets(257, 300)), kernel, reductions=("mean",))


def count_in_bf16(patch: pytest.MonkeyPatch) -> None:
    right = loss_as_number._Collected.divisors

    def rounded(self: loss_as_number._Collected) -> tuple[float, ...]:
        return tuple(float(torch.tensor(each).bfloat16()) for each in right(self))

    patch.setattr(loss_as_number._Collected, "divisors", rounded)


def check_ignored_rows(kernel: str) -> None:
    """Liger-Kernel#1338: under torch.compile an ignored row's gradient was left unwritten."""
    problem = with_ignored_rows(40)
    check_training(problem, kernel)
    compiled = torch.compile(ours, backend="aot_eager")
    for reduction in ("mean", "none"):
        for found in (ours(problem, reduction, kernel), compiled(problem, reduction, kernel)):
            left = found[1][0][~problem.kept]
            assert not bool(left.count_nonzero()), f"gradients of ignored rows {MISSED}: {left.abs().max()}"
            if reduction == "none":
                check_loss(found[0], problem, reduction)


def gradients_unwritten(patch: pytest.MonkeyPatch) -> None:
    for name in ("native", "eager"):
        patch.setattr(kernels.get(name), "gradients", _leaving_ignored_rows(kernels.get(name).gradients))


def _leaving_ignored_rows(right: Callable[..., Gradients]) -> Callable[..., Gradients]:
    def gradients(call: Operands, *arguments: Any) -> Gradients:
        found = right(call, *arguments)
        if found.input is not None and call.kept is not None:
            unwritten = torch.ones(len(found.input), dtype=torch.bool)
            unwritten[call.kept] = False
            found.input[unwritten] = 1e9  # what a previous tensor may have left there
        return found

    return gradients


def losses_unwritten(patch: pytest.MonkeyPatch) -> None:
    right = loss_per_row.every_row
    patch.setattr(loss_per_row, "every_row", lambda *arguments: right(*arguments[:-1], 1e9))


def check_upstream_per_row(kernel: str) -> None:
    """Liger-Kernel#968, #678, TransformerEngine#2139: the rows' upstream gradients were mishandled."""
    for problem in (with_ignored_rows(40), with_ignored_rows(3)._replace(label_smoothing=0.1)):
        check_training(problem, kernel, reductions=("none",))


def first_upstream_for_all(patch: pytest.MonkeyPatch) -> None:
    right = TokenLoss.logit_gradient

    def wrong(self: TokenLoss, *arguments: Any) -> Any:
        *others, upstream, upstream_of_z = arguments
        return right(self, *others, upstream[:1].expand_as(upstream), upstream_of_z)

    patch.setattr(TokenLoss, "logit_gradient", wrong)


def upstream_of_rows_that_are_not_ignored(patch: pytest.MonkeyPatch) -> None:
    """The upstream gradients are taken in order, as if they had no entries for the ignored rows."""
    right = loss_per_row._rows
    patch.setattr(
        loss_per_row,
        "_rows",
        lambda rule, values: values.reshape(-1)[: rule.call.size] if values.min() >= 1 else right(rule, values),
    )


def loss_as_difference(patch: pytest.MonkeyPatch) -> None:
    def wrong(self: TokenLoss, kernel: Any, found: Statistics, start: int, stop: int) -> Losses:
        assert found.target_logit is not None
        log_sum_exp = found.max + kernel.log(found.sum_exp)
        losses = log_sum_exp - found.target_logit
        if self.label_smoothing:
            assert found.column_sum is not None
            mean = found.max + found.column_sum / self.classes
            losses = (1 - self.label_smoothing) * losses + self.label_smoothing * (log_sum_exp - mean)
        return Losses(losses, None)

    patch.setattr(TokenLoss, "losses", wrong)


def check_nothing_but_ignored_rows(kernel: str) -> None:
    """Liger-Kernel returns 0 where all targets are ignored; torch NaN, which tells that nothing was learnt."""
    problem = with_ignored_rows(4)
    problem = problem._replace(target=torch.full_like(problem.target, IGNORED))
    for reduction, dtype in (("mean", torch.float32), ("sum", torch.float32)):
        loss, gradients = ours(problem, reduction, kernel)
        by_torch, expected = plain(problem, reduction, dtype)
        message = f"{reduction} of no rows {MISSED}: {float(loss)}, in torch {float(by_torch)}"
        assert torch.equal(loss.isnan(), by_torch.isnan()), message
        assert bool(loss.isnan()) or float(loss) == float(by_torch), message
        for found, each in zip(gradients, expected, strict=True):
            assert torch.equal(found, each), f"gradients {MISSED}"


def at_least_one_row(patch: pytest.MonkeyPatch) -> None:
    right = loss_as_number._Collected.divisors
    patch.setattr(loss_as_number._Collected, "divisors", lambda self: tuple(max(1.0, each) for each in right(self)))


class Variant(NamedTuple):
    check: Callable[[str], None]
    arm: Callable[[pytest.MonkeyPatch], None]


VARIANTS: Final = {
    "scalar loss added up in bf16": Variant(check_sum_of_many_losses, sum_in_bf16),
    "number of rows in bf16": Variant(check_odd_number_of_rows, count_in_bf16),
    "ignored rows' gradients unwritten": Variant(check_ignored_rows, gradients_unwritten),
    "ignored rows' losses unwritten": Variant(check_ignored_rows, losses_unwritten),
    "first row's upstream gradient for all": Variant(check_upstream_per_row, first_upstream_for_all),
    "upstream gradients of other rows": Variant(check_upstream_per_row, upstream_of_rows_that_are_not_ignored),
    "loss as log-sum-exp minus logit": Variant(check_common_offset, loss_as_difference),
    "mean of no rows is 0": Variant(check_nothing_but_ignored_rows, at_least_one_row),
}


@pytest.fixture(params=["native", "eager"])
def trained(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each kernel that trains."""
    missing = kernels.get(request.param).missing()
    if missing is not None:
        pytest.skip(f"kernel {request.param} is missing: {missing}")
    yield request.param
    torch.compiler.reset()


@pytest.mark.parametrize("check", {variant.check: None for variant in VARIANTS.values()})
def test_training_passes(check: Callable[[str], None], trained: str) -> None:
    check(trained)


@pytest.mark.parametrize("check", {variant.check: None for variant in VARIANTS.values()})
def test_training_with_triton_passes(check: Callable[[str], None], runs_triton: None) -> None:
    check("triton")
    torch.compiler.reset()


@pytest.mark.parametrize("name", VARIANTS)
def test_the_check_notices_the_wrong_variant(name: str, trained: str, monkeypatch: pytest.MonkeyPatch) -> None:
    variant = VARIANTS[name]
    variant.arm(monkeypatch)
    with pytest.raises(AssertionError, match=MISSED):
        variant.check(trained)
