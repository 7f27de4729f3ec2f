"""linear_cross_entropy: torch's meaning of every option, what is added to it, ignored rows, statistics, mistakes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from steadysum import LossStats, errors, linear_cross_entropy, linear_logprobs, linear_max_sum, nn

N, H, V = 6, 16, 40
INF, NAN = math.inf, math.nan


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, HEAD, BIAS = draw(N, H), draw(V, H, seed=1), draw(V, seed=2)
TARGET = torch.tensor([3, 0, V - 1, 17, -100, 3])
CLASS_WEIGHT = draw(V, seed=3).exp()
PROBABILITIES = draw(N, V, seed=4).softmax(-1)
TARGETS = {"indices": TARGET, "probabilities": PROBABILITIES}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bias": {"linear_bias": BIAS},
    "class weights": {"weight": CLASS_WEIGHT},
    "label smoothing": {"label_smoothing": 0.2},
    "everything": {"linear_bias": BIAS, "weight": CLASS_WEIGHT, "label_smoothing": 0.3},
}


def values_and_gradients(
    loss: Callable[..., Tensor], x: Tensor, head: Tensor, target: Tensor, **options: Any
) -> list[Tensor]:
    operands = [operand.clone().requires_grad_() for operand in (x, head)]
    if options.get("linear_bias") is not None:
        options["linear_bias"] = options["linear_bias"].clone().requires_grad_()
        operands.append(options["linear_bias"])
    value = loss(operands[0], operands[1], target, **options)
    upstream = torch.linspace(-1, 2, value.numel(), dtype=value.dtype).view_as(value)  # of each token another
    return [value, *torch.autograd.grad(value, operands, upstream)]


def assert_close(ours: list[Tensor], torchs: list[Tensor]) -> None:
    for one, other in zip(ours, torchs, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)


# ---- as torch ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_value_and_gradients_are_torchs(options: dict[str, Any], kind: str, reduction: str) -> None:
    results = [
        values_and_gradients(loss, X, HEAD, TARGETS[kind], reduction=reduction, **options)
        for loss in (linear_cross_entropy, F.linear_cross_entropy)
    ]
    assert_close(*results)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_every_kernel_gives_the_value_in_fp32(kernel: str, dtype: torch.dtype, reduction: str) -> None:
    x, head, weight = X.to(dtype), HEAD.to(dtype), CLASS_WEIGHT.to(dtype)
    options = {"weight": weight, "reduction": reduction, "label_smoothing": 0.1}
    with torch.no_grad():
        found = linear_cross_entropy(x, head, TARGET, kernel=kernel, **options)
        wide = {**options, "weight": weight.double()}
        wanted = F.linear_cross_entropy(x.double(), head.double(), TARGET, **wide)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), wanted, rtol=2.0**-20, atol=0.0)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("target", [torch.tensor(3), torch.tensor(-100), PROBABILITIES[0]])
def test_one_row_without_a_batch_is_torchs(target: Tensor, reduction: str) -> None:
    results = [
        values_and_gradients(loss, X[0], HEAD, target, reduction=reduction)
        for loss in (linear_cross_entropy, F.linear_cross_entropy)
    ]
    assert results[0][0].shape == ()
    assert_close(*results)
    if target.shape == ():  # torch takes one target in a vector, too, but can't differentiate that
        for loss in (linear_cross_entropy, F.linear_cross_entropy):
            torch.testing.assert_close(
                loss(X[0], HEAD, target[None], reduction=reduction), results[0][0].detach(), equal_nan=True
            )


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("rows", [0, N])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 1.0])
def test_no_rows_and_nothing_but_ignored_rows_are_as_in_torch(
    label_smoothing: float, rows: int, reduction: str
) -> None:
    options = {"reduction": reduction, "label_smoothing": label_smoothing, "linear_bias": BIAS}
    ours, torchs = (
        values_and_gradients(loss, X[:rows], HEAD, TARGET[:rows] * 0 - 100, **options)
        for loss in (linear_cross_entropy, F.linear_cross_entropy)
    )
    assert_close(ours, torchs)
    assert ours[0].isnan() if reduction == "mean" else ours[0].eq(0).all()
    assert all(gradient.eq(0).all() for gradient in ours[1:])


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_an_ignore_index_may_be_a_class(reduction: str) -> None:
    target = TARGET.clamp(min=0)
    options = {"ignore_index": 3, "weight": CLASS_WEIGHT, "reduction": reduction}
    losses = (linear_cross_entropy, F.linear_cross_entropy)
    assert_close(*(values_and_gradients(loss, X, HEAD, target, **options) for loss in losses))


@pytest.mark.parametrize("logits", [[INF, 0.0, 1.0], [-INF, -INF, -INF], [NAN, 0.0, 1.0], [0.0, -INF, 1.0]], ids=str)
@pytest.mark.parametrize("target", [0, 1, 2])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_logits_that_are_not_finite_are_as_in_torch(target: int, logits: list[float], label_smoothing: float) -> None:
    head = torch.zeros(3, 1, dtype=torch.float64)
    bias = torch.tensor(logits, dtype=torch.float64)
    for reduction in ("none", "mean"):
        options = {"linear_bias": bias, "label_smoothing": label_smoothing, "reduction": reduction}
        ours, torchs = (
            values_and_gradients(loss, torch.ones_like(head[:1]), head, torch.tensor([target]), **options)
            for loss in (linear_cross_entropy, F.linear_cross_entropy)
        )
        assert_close([ours[0], ours[3]], [torchs[0], torchs[3]])  # the bias's gradient is that of the logits


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
def test_targets_may_be_narrow(dtype: torch.dtype) -> None:
    target = TARGET.clamp(min=0)
    assert linear_cross_entropy(X, HEAD, target.to(dtype)) == linear_cross_entropy(X, HEAD, target)


def test_leading_dimensions_are_as_many_rows() -> None:
    x, target, probabilities = X.view(2, 3, H), TARGET.view(2, 3), PROBABILITIES.view(2, 3, V)
    flat = linear_cross_entropy(X, HEAD, TARGET, reduction="none")
    assert torch.equal(linear_cross_entropy(x, HEAD, target, reduction="none"), flat.view(2, 3))
    assert linear_cross_entropy(x, HEAD, target) == linear_cross_entropy(X, HEAD, TARGET)
    assert linear_cross_entropy(x, HEAD, probabilities) == linear_cross_entropy(X, HEAD, PROBABILITIES)


def test_a_head_in_any_layout_gives_the_same_bits() -> None:
    for one, other in zip(
        values_and_gradients(linear_cross_entropy, X, HEAD, TARGET, kernel="eager"),
        values_and_gradients(linear_cross_entropy, X, HEAD.T.contiguous().T, TARGET, kernel="eager"),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-15)  # torch's product may differ by layout


def test_a_large_common_offset_loses_nothing(kernel: str) -> None:
    # logits 2^24 + {0, 2, 4}: exact in fp32; lse - z_t would be rounded to a multiple of 2
    x, head = torch.tensor([[4096.0, 2.0]]), torch.tensor([[4096.0, 0.0], [4096.0, 1.0], [4096.0, 2.0]])
    found = linear_cross_entropy(x, head, torch.tensor([2]), kernel=kernel)
    assert found.item() == pytest.approx(math.log1p(math.exp(-2) + math.exp(-4)), rel=4 * 2.0**-23)


def test_the_scalar_is_summed_in_fp64_in_row_order_and_rounded_once(kernel: str) -> None:
    x, head = draw(300, H, seed=5).float(), HEAD.float()
    target = torch.arange(300) % V
    tokens = linear_cross_entropy(x, head, target, reduction="none", kernel=kernel)
    exact = 0.0
    for token in tokens.tolist():
        exact += token
    assert linear_cross_entropy(x, head, target, reduction="sum", kernel=kernel).item() == float(
        torch.tensor(exact, dtype=torch.float32)
    )
    assert linear_cross_entropy(x, head, target, kernel=kernel).item() == float(
        torch.tensor(exact / 300, dtype=torch.float32)
    )


# ---- heads of more dimensions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_k_dimensional_loss_is_torchs(options: dict[str, Any], kind: str, reduction: str) -> None:
    head = draw(V, 2, 3, H, seed=6)
    target = draw(N, V, 2, 3, seed=7).softmax(1)
    if kind == "indices":
        target = target.argmax(1)
        target[2:4, 1] = -100
    options = dict(options)
    if "linear_bias" in options:
        options["linear_bias"] = draw(V, 2, 3, seed=8)
    losses = (linear_cross_entropy, F.linear_cross_entropy)
    assert_close(*(values_and_gradients(loss, X, head, target, reduction=reduction, **options) for loss in losses))


def test_k_dimensional_loss_has_the_additions_too() -> None:
    head = draw(V, 2, H, seed=6)
    target = torch.stack([TARGET, TARGET.flip(0)], 1)
    options: dict[str, Any] = {"z_loss": 0.1, "scale": 0.5, "softcap": 4.0, "valid_vocab": V - 3, "ignore_index": V - 1}
    target[target < 0] = 1
    value, stats = linear_cross_entropy(X, head, target, return_stats=True, **options)
    singles = [
        linear_cross_entropy(X, head[:, k], target[:, k], return_stats=True, reduction="sum", **options)
        for k in range(2)
    ]
    rows = int((target != V - 1).sum())
    torch.testing.assert_close(value, (singles[0][0] + singles[1][0]) / rows)
    torch.testing.assert_close(stats.token_loss, torch.stack([each.token_loss for _, each in singles], 1))
    torch.testing.assert_close(stats.max_sum.max, torch.stack([each.max_sum.max for _, each in singles], 1))
    assert stats.correct == singles[0][1].correct + singles[1][1].correct


def test_k_dimensional_loss_in_16_bits_is_computed_in_fp32() -> None:
    head, target = draw(V, 2, H, seed=6).bfloat16(), TARGET[:, None].expand(N, 2)
    found = linear_cross_entropy(X.bfloat16(), head, target)
    assert found.dtype == torch.float32
    wanted = F.linear_cross_entropy(X.bfloat16().double(), head.double(), target)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-6, atol=0)


# ---- what is added -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_z_loss_scale_softcap_and_valid_vocab_are_what_they_say(kind: str, reduction: str) -> None:
    real, z_loss = V - 8, 0.3
    options = {"weight": CLASS_WEIGHT, "linear_bias": BIAS, "reduction": reduction, "label_smoothing": 0.1}
    target = TARGETS[kind]
    if kind == "indices":
        target = target.clone()
        target[2] = 7

    def by_definition(
        x: Tensor, head: Tensor, target: Tensor, *, linear_bias: Tensor, weight: Tensor, **others: Any
    ) -> Tensor:
        z = 5.0 * torch.tanh(0.5 * (x @ head.T + linear_bias) / 5.0)[:, :real]
        loss = F.cross_entropy(z, target if kind == "indices" else target[:, :real], weight=weight[:real], **others)
        taking_part = (target != -100) if kind == "indices" else torch.ones(N)
        of_z = z_loss * z.logsumexp(1).square() * taking_part
        return loss + {"none": of_z, "sum": of_z.sum(), "mean": of_z.sum() / taking_part.sum()}[reduction]

    added = {"z_loss": z_loss, "scale": 0.5, "softcap": 5.0, "valid_vocab": real}
    assert_close(
        values_and_gradients(linear_cross_entropy, X, HEAD, target, **options, **added),
        values_and_gradients(by_definition, X, HEAD, target, **options),
    )


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_statistics_are_those_of_the_rows_that_take_part(kernel: str, reduction: str) -> None:
    x, head = X.float(), HEAD.float()
    value, stats = linear_cross_entropy(x, head, TARGET, reduction=reduction, return_stats=True, kernel=kernel)
    assert isinstance(stats, LossStats)
    taking_part = TARGET != -100
    found = linear_max_sum(x, head, kernel=kernel)
    for ours, wanted, ignored in zip(stats.max_sum, found, (-INF, 0.0), strict=True):
        torch.testing.assert_close(ours, torch.where(taking_part, wanted, ignored))
    tokens = linear_cross_entropy(x, head, TARGET, reduction="none", kernel=kernel)
    torch.testing.assert_close(stats.token_loss, tokens)
    assert tokens[~taking_part].eq(0).all()
    hits = (x @ head.T).argmax(1) == TARGET
    assert stats.correct.dtype == torch.int64
    assert stats.correct == hits.sum()
    torch.testing.assert_close(
        value, {"none": tokens, "sum": tokens.sum(), "mean": tokens.sum() / taking_part.sum()}[reduction]
    )


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_statistics_carry_no_gradient_and_change_none(reduction: str) -> None:
    x = X.clone().requires_grad_()
    value, stats = linear_cross_entropy(x, HEAD, TARGET, reduction=reduction, return_stats=True)
    assert value.requires_grad
    assert not any(each.requires_grad for each in (*stats.max_sum, stats.token_loss, stats.correct))
    (with_stats,) = torch.autograd.grad(value.sum(), x)
    (without,) = torch.autograd.grad(linear_cross_entropy(x, HEAD, TARGET, reduction=reduction).sum(), x)
    assert torch.equal(with_stats, without)


def test_a_correct_row_of_class_probabilities_names_the_likeliest_class() -> None:
    wanted = int(((X @ HEAD.T).argmax(1) == PROBABILITIES.argmax(1)).sum())
    assert wanted < N
    right = (X @ HEAD.T).softmax(1)
    for target, count in ((PROBABILITIES, wanted), (right, N)):
        assert linear_cross_entropy(X, HEAD, target, return_stats=True)[1].correct == count


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_filtered_gradients_stay_within_the_stated_bound(reduction: str) -> None:
    eps = 0.02
    target = TARGET.clamp(min=0)
    exact = values_and_gradients(linear_cross_entropy, X, HEAD, target, reduction=reduction)
    filtered = values_and_gradients(linear_cross_entropy, X, HEAD, target, reduction=reduction, gradient_filter=eps)
    assert torch.equal(exact[0], filtered[0])  # the loss itself isn't filtered
    p = (X @ HEAD.T).softmax(1)
    dropped = torch.where(p < eps, p, 0.0)
    assert dropped.gt(0).any()
    upstream = (
        torch.full((N,), -1 / N, dtype=p.dtype) if reduction == "mean" else torch.linspace(-1, 2, N, dtype=p.dtype)
    )
    bound_of_input = upstream.abs() * (dropped @ HEAD.norm(dim=1))
    bound_of_weight = dropped.T @ (upstream.abs() * X.norm(dim=1))
    assert (exact[1] - filtered[1]).norm(dim=1).le(bound_of_input + 1e-12).all()
    assert (exact[2] - filtered[2]).norm(dim=1).le(bound_of_weight + 1e-12).all()
    assert not torch.equal(exact[1], filtered[1])


# ---- ignored rows --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", [HEAD, draw(V, 2, H, seed=6)], ids=["matrix", "K-dimensional"])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_a_nan_in_an_ignored_row_poisons_nothing(head: Tensor, reduction: str) -> None:
    target = TARGET if head.dim() == 2 else TARGET[:, None].expand(N, 2)
    poisoned = X.clone()
    poisoned[4] = NAN
    options = {"reduction": reduction, "label_smoothing": 0.1}
    clean = values_and_gradients(linear_cross_entropy, X, head, target, **options)
    found = values_and_gradients(linear_cross_entropy, poisoned, head, target, **options)
    for one, other in zip(found, clean, strict=True):
        assert torch.equal(one, other)
    assert found[1][4].eq(0).all()


def test_a_nan_in_a_row_that_counts_stays_in_its_loss_and_its_input_gradient() -> None:
    poisoned = X.clone()
    poisoned[1, 0] = NAN
    loss, of_input, of_weight = values_and_gradients(linear_cross_entropy, poisoned, HEAD, TARGET, reduction="none")
    others = torch.arange(N) != 1
    assert loss[1].isnan()
    assert of_input[1].isnan().all()
    assert of_weight.isnan().all()
    assert loss[others].isfinite().all()
    assert of_input[others].isfinite().all()


# ---- precision ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", [HEAD, draw(V, 2, H, seed=6)], ids=["matrix", "K-dimensional"])
def test_autocast_rounds_operands_and_leaves_gradients_in_fp32(head: Tensor) -> None:
    target = TARGET if head.dim() == 2 else TARGET[:, None].expand(N, 2)
    x, weight = X.float().requires_grad_(), head.float().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        loss = linear_cross_entropy(x, weight, target, kernel="eager" if head.dim() == 2 else "auto")
    loss.backward()
    rounded = [operand.detach().bfloat16().double().requires_grad_() for operand in (x, weight)]
    wanted = F.linear_cross_entropy(*rounded, target)
    wanted.backward()
    assert loss.dtype == x.grad.dtype == weight.grad.dtype == torch.float32
    torch.testing.assert_close(loss.double(), wanted, rtol=1e-6, atol=0)
    if head.dim() == 2:  # torch's own cast rounds the gradients of the others to bf16
        torch.testing.assert_close(weight.grad.double(), rounded[1].grad, rtol=1e-4, atol=1e-7)
        torch.testing.assert_close(x.grad.double(), rounded[0].grad, rtol=1e-4, atol=1e-7)


def test_under_autocast_dtypes_may_be_mixed() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        mixed = linear_cross_entropy(
            X.bfloat16(), HEAD.float(), TARGET, linear_bias=BIAS.half(), weight=CLASS_WEIGHT.float()
        )
        assert mixed.dtype == torch.float32
        assert linear_cross_entropy(X, HEAD, TARGET).dtype == torch.float64  # as torch: fp64 is left alone
    with pytest.raises(errors.DtypeError, match="dtypes of input and weight"):
        linear_cross_entropy(X.bfloat16(), HEAD.float(), TARGET)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_gradients_come_in_each_operands_own_dtype(dtype: torch.dtype) -> None:
    for reduction in ("none", "mean"):
        x, head, bias = X.to(dtype).requires_grad_(), HEAD.to(dtype).requires_grad_(), BIAS.float().requires_grad_()
        linear_cross_entropy(x, head, TARGET, linear_bias=bias, reduction=reduction, kernel="eager").sum().backward()
        assert (x.grad.dtype, head.grad.dtype, bias.grad.dtype) == (dtype, dtype, torch.float32)


# ---- the module ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("out_features", [(), (2, 3)])
@pytest.mark.parametrize("bias", [False, True])
def test_the_module_is_torchs_module(out_features: tuple[int, ...], bias: bool) -> None:
    arguments: dict[str, Any] = {
        "out_features": out_features,
        "bias": bias,
        "dtype": torch.float64,
        "weight": CLASS_WEIGHT,
        "label_smoothing": 0.1,
        "ignore_index": 5,
    }
    ours, torchs = (each(H, V, **arguments) for each in (nn.LinearCrossEntropyLoss, torch.nn.LinearCrossEntropyLoss))
    ours.load_state_dict(torchs.state_dict())
    target = torch.arange(N * math.prod(out_features)).view(N, *out_features) % V
    for module in (ours, torchs):
        module(X, target).backward()
    torch.testing.assert_close(ours(X, target), torchs(X, target))
    for one, other in zip(ours.parameters(), torchs.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_the_module_takes_the_additions_and_shows_them() -> None:
    module = nn.LinearCrossEntropyLoss(H, V, dtype=torch.float64, z_loss=0.5, softcap=3.0, return_stats=True)
    value, stats = module(X, TARGET)
    assert value == linear_cross_entropy(X, module.linear.weight, TARGET, z_loss=0.5, softcap=3.0)
    assert stats.token_loss.shape == (N,)
    assert "num_classes=40, out_features=()" in repr(module)
    assert "z_loss=0.5, scale=1.0, softcap=3.0" in repr(module)
    with pytest.raises(errors.ShapeError, match=re.escape("shape of weight (class weights): got [3]; allowed: [40]")):
        nn.LinearCrossEntropyLoss(H, V, weight=torch.ones(3))
    with pytest.raises(errors.LabelSmoothingError, match=r"label_smoothing: got 1\.5; allowed: 0\.0 to 1\.0"):
        nn.LinearCrossEntropyLoss(H, V, label_smoothing=1.5)


def test_torchs_options_are_taken_and_change_nothing() -> None:
    options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=2, chunking_method=None)
    assert linear_cross_entropy(X, HEAD, TARGET, options=options) == linear_cross_entropy(X, HEAD, TARGET)


def test_the_loss_is_minus_the_log_probability(kernel: str) -> None:
    x, head, target = X.float(), HEAD.float(), TARGET.clamp(min=0)
    losses = linear_cross_entropy(x, head, target, reduction="none", kernel=kernel)
    assert torch.equal(losses, -linear_logprobs(x, head, target, kernel=kernel))


# ---- mistakes ------------------------------------------------------------------------------------------------------


class Mistake(NamedTuple):
    arguments: dict[str, Any]
    error: type[Exception]
    text: str  # the start of the error's text: what, seen, allowed
    torch_raises: bool = True


WIDE_HEAD = HEAD.view(V, 2, 8)
MISTAKES = {
    "target is a list": Mistake(
        {"target": [1]}, errors.OperandTypeError, "type of target: got list; allowed: torch.Tensor.", False
    ),
    "class weights are a list": Mistake(
        {"weight": [1.0]}, errors.OperandTypeError, "type of weight: got list; allowed: torch.Tensor."
    ),
    "reduction is unknown": Mistake(
        {"reduction": "average"}, errors.RangeError, "reduction: got 'average'; allowed: 'none', 'mean', 'sum'."
    ),
    "reduction is None": Mistake({"reduction": None}, errors.RangeError, "reduction: got None; allowed:"),
    "ignore_index is a float": Mistake(
        {"ignore_index": 1.0}, errors.OperandTypeError, "type of ignore_index: got float; allowed: int or None."
    ),
    "ignore_index beside class probabilities": Mistake(
        {"target": PROBABILITIES, "ignore_index": 1},
        errors.OptionError,
        "ignore_index: got 1 beside class probabilities; allowed: None. Give rows to leave out probabilities of 0",
    ),
    "label_smoothing is more than 1": Mistake(
        {"label_smoothing": 1.5}, errors.LabelSmoothingError, "label_smoothing: got 1.5; allowed: 0.0 to 1.0."
    ),
    "label_smoothing is negative, which torch overlooks": Mistake(
        {"label_smoothing": -0.1}, errors.LabelSmoothingError, "label_smoothing: got -0.1; allowed: 0.0", False
    ),
    "label_smoothing is NaN, which torch overlooks": Mistake(
        {"label_smoothing": NAN}, errors.LabelSmoothingError, "label_smoothing: got nan; allowed: 0.0", False
    ),
    "label_smoothing is a string": Mistake(
        {"label_smoothing": "0.1"},
        errors.OperandTypeError,
        "type of label_smoothing: got str; allowed: a Python number.",
    ),
    "z_loss is negative": Mistake(
        {"z_loss": -1.0}, errors.RangeError, "z_loss: got -1.0; allowed: a finite number >= 0.", False
    ),
    "gradient_filter is 1": Mistake(
        {"gradient_filter": 1.0},
        errors.RangeError,
        "gradient_filter: got 1.0; allowed: 0 <= gradient_filter < 1. Pass None for exact gradients.",
        False,
    ),
    "options are a dict": Mistake(
        {"options": {}},
        errors.OperandTypeError,
        "type of options: got dict; allowed: torch.nn.LinearCrossEntropyOptions or None.",
        False,
    ),
    "return_stats is a number": Mistake(
        {"return_stats": 1}, errors.OperandTypeError, "type of return_stats: got int; allowed: bool.", False
    ),
    "the kernel is unknown": Mistake({"kernel": "cuda"}, errors.UnknownKernelError, "kernel: got 'cuda';", False),
    "the batch has another size": Mistake(
        {"target": TARGET[:3]},
        errors.TargetShapeError,
        "shape of target: got [3]; allowed: [6] for class indices, [6, 40] for class probabilities.",
    ),
    "target has a dimension too many": Mistake(
        {"target": TARGET[:, None]}, errors.TargetShapeError, "shape of target: got [6, 1]; allowed: [6] for class"
    ),
    "class probabilities for another vocabulary": Mistake(
        {"target": PROBABILITIES[:, 1:]}, errors.TargetShapeError, "shape of target: got [6, 39]; allowed:"
    ),
    "class indices are floats": Mistake(
        {"target": TARGET.double()},
        errors.DtypeError,
        "dtype of target: got torch.float64; allowed: torch.int64, torch.int32, torch.uint8 for class indices. Class "
        "probabilities have the shape of the logits, [6, 40].",
    ),
    "class probabilities are integers": Mistake(
        {"target": PROBABILITIES.long()},
        errors.DtypeError,
        "dtype of target: got torch.int64 in the shape of the logits; allowed: a floating-point dtype for class",
    ),
    "class weights for another vocabulary": Mistake(
        {"weight": CLASS_WEIGHT[1:]},
        errors.ShapeError,
        "shape of weight (class weights): got [39]; allowed: [40], one per class.",
    ),
    "class weights for another vocabulary, with probabilities": Mistake(
        {"weight": CLASS_WEIGHT[1:], "target": PROBABILITIES}, errors.ShapeError, "shape of weight (class weights):"
    ),
    "class weights in another dtype": Mistake(
        {"weight": CLASS_WEIGHT.float()},
        errors.DtypeError,
        "dtype of weight (class weights): got torch.float32; allowed: torch.float64, as linear_weight.",
    ),
    "class weights require grad": Mistake(
        {"weight": CLASS_WEIGHT.clone().requires_grad_()},
        errors.GradientError,
        "gradients of linear_cross_entropy: got class_weight with requires_grad in grad mode; allowed: gradients of "
        "input, weight, bias alone",
    ),
    "class probabilities require grad": Mistake(
        {"target": PROBABILITIES.clone().requires_grad_(), "reduction": "none"},
        errors.GradientError,
        "gradients of linear_token_loss: got target with requires_grad in grad mode;",
        False,
    ),
    "a target is V": Mistake(
        {"target": torch.tensor([0, -100, V, 0, V, 0])},
        errors.TargetRangeError,
        "target: got 40 at position [2]; allowed: 0 to 39, or ignore_index=-100. Give rows to leave out the",
    ),
    "a target is negative": Mistake(
        {"target": TARGET, "ignore_index": -1},
        errors.TargetRangeError,
        "target: got -100 at position [4]; allowed: 0 to",
    ),
    "a target is a padded column": Mistake(
        {"valid_vocab": V - 1},
        errors.TargetRangeError,
        "target: got 39 at position [2]; allowed: 0 to 38 (valid_vocab=39 of 40), or ignore_index=-100.",
        False,
    ),
    "input has no dimension": Mistake(
        {"input": torch.tensor(1.0)}, errors.ShapeError, "rank of input: got []; allowed: [..., H], rank >= 1."
    ),
    "linear_weight is a vector": Mistake({"linear_weight": HEAD[0]}, errors.ShapeError, "rank of weight: got [16];"),
    "hidden sizes differ": Mistake({"linear_weight": HEAD.T}, errors.ShapeError, "hidden sizes of input and weight:"),
    "bias has another length": Mistake(
        {"linear_bias": BIAS[1:]}, errors.ShapeError, "shape of bias: got [39] for weight [40, 16];"
    ),
    "operands are of two dtypes": Mistake(
        {"input": X.float()}, errors.DtypeError, "dtypes of input and weight: got input torch.float32, weight torch."
    ),
    "K-dimensional loss of one row": Mistake(
        {"input": X[0], "linear_weight": HEAD[:, None], "target": TARGET[:1]},
        errors.ShapeError,
        "shapes of input and linear_weight: got input [16], linear_weight [40, 1, 16]; allowed: input [N, H],",
    ),
    "K-dimensional loss with a flat bias": Mistake(
        {"linear_weight": HEAD[:, None], "target": TARGET[:, None], "linear_bias": BIAS},
        errors.ShapeError,
        "shape and dtype of linear_bias: got [40] in torch.float64; allowed: [40, 1] in torch.float64.",
    ),
    "K-dimensional loss with a target of another shape": Mistake(
        {"linear_weight": HEAD[:, None], "target": TARGET[:, None].expand(N, 2)},
        errors.TargetShapeError,
        "shape of target: got [6, 2]; allowed: [6, 1] for class indices, [6, 40, 1] for class probabilities.",
    ),
    "K-dimensional loss with a target out of range": Mistake(
        {"linear_weight": HEAD[:, None], "target": TARGET[:, None] + 1, "ignore_index": -99},
        errors.TargetRangeError,
        "target: got 40 at position [2, 0]; allowed: 0 to 39, or ignore_index=-99.",
    ),
    "K-dimensional loss by a kernel that stores no logits": Mistake(
        {"linear_weight": HEAD[:, None], "target": TARGET[:, None], "kernel": "native"},
        errors.KernelUnavailableError,
        "kernel='native' can't run this call: got linear_weight [40, 1, 16]; allowed: linear_weight [V, H], or kernel=",
        False,
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_has_its_own_clear_error_of_the_type_that_torch_raises(mistake: Mistake) -> None:
    arguments = {"input": X, "linear_weight": HEAD, "target": TARGET} | mistake.arguments
    with pytest.raises(mistake.error, match="^" + re.escape(mistake.text)) as ours:
        linear_cross_entropy(**arguments)
    assert type(ours.value) is mistake.error
    if mistake.torch_raises:
        with pytest.raises(Exception) as torchs:  # noqa: PT011  # whatever it is
            F.linear_cross_entropy(**arguments)
        assert isinstance(ours.value, type(torchs.value))
