"""linear_cross_entropy does what torch.nn.functional.linear_cross_entropy does: the same loss, gradients and errors.

Every combination of options that torch takes is drawn, and every way to call it wrongly that is listed. What is ours
alone (z_loss, scale, softcap, ...) is tested elsewhere.

Tolerance: with the exact result of a float64 computation, ours may be off by twice the error of torch's plain
computation in the same dtype, plus a floor for roundings that torch happens not to suffer. The floor is the worst case
of a plain computation in fp32 (fp64 for fp64), first order: what `Floor` adds up, and the rounding to the result's
dtype.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from steadysum import kernels, linear_cross_entropy
from steadysum.errors import SteadySumError

DTYPES: Final = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
KERNELS: Final = ("native", "eager")

# Function-scoped fixtures hold no state that an example could leave to the next.
drawn = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(params=KERNELS)
def trained(request: pytest.FixtureRequest) -> str:
    """Each kernel that trains."""
    missing = kernels.get(request.param).missing()
    if missing is not None:
        pytest.skip(f"kernel {request.param} is missing: {missing}")
    return str(request.param)


class Call(NamedTuple):
    """A call that torch accepts."""

    input: Tensor  # [H] or [N, H]
    linear_weight: Tensor  # [C, H] or [C, d1, ..., dK, H]
    target: Tensor
    options: dict[str, Any]
    upstream_seed: int

    def __repr__(self) -> str:  # what hypothesis prints
        shapes = f"{list(self.input.shape)}, {list(self.linear_weight.shape)}, {list(self.target.shape)}"
        named = {name: each.tolist() if isinstance(each, Tensor) else each for name, each in self.options.items()}
        return f"<{shapes}, {self.input.dtype}, {self.target.dtype}, {named}>"

    @property
    def is_dense(self) -> bool:
        """Whether the target holds class probabilities."""
        return self.target.is_floating_point()


def draw_values(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """Calls that torch accepts."""
    seed = draw(st.integers(0, 10_000))
    dtype = draw(st.sampled_from(DTYPES))
    hidden, classes = draw(st.sampled_from([1, 3, 16, 40])), draw(st.sampled_from([1, 2, 5, 17, 530]))
    kind = draw(st.sampled_from(["[N, H]", "[N, H]", "[H]", "K-dimensional"]))
    positions: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    if kind != "[H]":
        rows = (draw(st.sampled_from([0, 1, 2, 7, 40])),)
    if kind == "K-dimensional":
        positions = draw(st.sampled_from([(1,), (3,), (2, 2)]))
    spread = draw(st.sampled_from([0.1, 1.0, 6.0]))  # from all classes alike to one that has nearly all
    input = draw_values(seed, *rows, hidden).to(dtype)
    linear_weight = (draw_values(seed + 1, classes, *positions, hidden) * (spread / hidden**0.5)).to(dtype)

    options: dict[str, Any] = {"reduction": draw(st.sampled_from(["none", "mean", "sum"]))}
    if draw(st.booleans()):
        options["linear_bias"] = draw_values(seed + 2, classes, *positions).to(dtype)
    if draw(st.booleans()):
        options["weight"] = draw_values(seed + 3, classes).abs().to(dtype)
    if draw(st.booleans()):
        options["label_smoothing"] = draw(st.sampled_from([0.0, 0.1, 0.7, 1.0]))
    if draw(st.booleans()):
        options["options"] = torch.nn.LinearCrossEntropyOptions()

    generator = torch.Generator().manual_seed(seed + 4)
    if draw(st.booleans()):
        shape = (*rows, classes, *positions)
        target = torch.rand(shape, generator=generator).softmax(len(rows))
        if draw(st.booleans()):
            target = torch.rand(shape, generator=generator) - 0.2  # torch takes what are no probabilities
        target = target.to(dtype)
    else:
        target = torch.randint(classes, (*rows, *positions), generator=generator)
        if classes < 256 and not positions:  # K-dimensional ones are int64 in torch
            target = target.to(draw(st.sampled_from([torch.int64, torch.uint8])))
        ignored = draw(st.sampled_from(["default", "None", "-100", "a class", "beyond"]))
        index = {"-100": -100, "a class": draw(st.integers(0, classes - 1)), "beyond": classes + 7}.get(ignored, -100)
        if ignored != "default":
            options["ignore_index"] = None if ignored == "None" else index
        if target.dtype == torch.int64 or 0 <= index < 256:
            share = draw(st.sampled_from([0.0, 0.3, 1.0]))
            target = target.masked_fill(torch.rand(target.shape, generator=generator) < share, index)
    return Call(input, linear_weight, target, options, seed + 5)


# ---- the same numbers ------------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    loss: Tensor
    gradients: dict[str, Tensor]


LEAVES: Final = ("input", "linear_weight", "linear_bias")


def outcome(function: Callable[..., Tensor], call: Call, dtype: torch.dtype, **more: Any) -> Outcome:
    """Loss and gradients, with operands in this dtype."""
    named = {"input": call.input, "linear_weight": call.linear_weight, **call.options}
    wide = {
        name: each.to(dtype) if isinstance(each, Tensor) else each for name, each in named.items() if name != "options"
    }
    leaves = {name: wide[name].detach().requires_grad_() for name in LEAVES if name in wide}
    target = call.target.to(dtype) if call.is_dense else call.target
    loss = function(target=target, **{**wide, **leaves}, **more)
    upstream = draw_values(call.upstream_seed, *loss.shape).to(loss.dtype)
    gradients = torch.autograd.grad(loss, list(leaves.values()), upstream)
    return Outcome(loss.detach(), dict(zip(leaves, gradients, strict=True)))


class Floor(NamedTuple):
    """Per element of the results, the worst rounding error of a plain computation, first order."""

    loss: Tensor
    gradients: dict[str, Tensor]


def floor(call: Call, upstream: Tensor, unit: float) -> Floor:  # unit: half the distance of 1 from the next number
    """With A the weights of the terms lse - z in a loss, its gradient by the logits is g (sum(A) p - A)."""
    options = call.options
    classes, hidden = call.linear_weight.shape[0], call.linear_weight.shape[-1]
    x = call.input.double().reshape(-1, hidden)  # [N, H]
    head = call.linear_weight.double().reshape(classes, -1, hidden)  # [C, P, H]
    bias = options.get("linear_bias", torch.zeros(1)).double().expand(call.linear_weight.shape[:-1])
    z = torch.einsum("nh,cph->ncp", x, head) + bias.reshape(classes, -1)
    sizes = torch.einsum("nh,cph->ncp", x.abs(), head.abs()) + bias.reshape(classes, -1).abs()
    logit = (hidden + 4) * unit * sizes.amax(1, keepdim=True) if classes else sizes  # [N, 1, P]
    p, away = z.softmax(1), z.logsumexp(1, keepdim=True) - z
    N, _, P = z.shape

    smoothing = options.get("label_smoothing", 0.0)
    w = options.get("weight", torch.ones(classes)).double()[None, :, None]
    if call.is_dense:
        terms = w * (call.target.double().reshape(N, classes, P) * (1 - smoothing) + smoothing / classes)
        kept = torch.ones(N, 1, P, dtype=torch.float64)
    else:
        index = options.get("ignore_index")
        target = call.target.to(torch.int64).reshape(N, 1, P)
        kept = (target != (-100 if index is None else index)).double()
        answers = torch.zeros_like(z).scatter(1, (target * kept.to(torch.int64)), 1.0)
        terms = w * (answers * (1 - smoothing) + smoothing / classes) * kept
    terms = terms.abs()
    total = terms.sum(1, keepdim=True)

    divisor = 1.0
    if options["reduction"] == "mean":
        divisor = N * P if call.is_dense else float((w.expand_as(answers) * answers * kept).sum())
        divisor = divisor or 1.0
    g = (upstream.double().abs().expand(N * P) if upstream.dim() == 0 else upstream.double().abs()).reshape(N, 1, P)
    g = g / divisor
    steps = (classes + 40) * unit  # a sum over the classes one by one, and the operations around it
    losses = (total * (2 * logit + steps) + steps * (terms * away.abs()).sum(1, keepdim=True))[:, 0] / divisor
    of_logits = g * (total * p * (2 * logit + steps) + (total * p + terms) * (N + 20) * unit)
    size = g * (total * p + terms)

    def product(equation: str, factor: Tensor, length: int) -> Tensor:
        return torch.einsum(equation, of_logits, factor) + length * unit * torch.einsum(equation, size, factor)

    of_head = product("ncp,nh->cph", x.abs(), N + 8)
    gradients = {
        "input": product("ncp,cph->nh", head.abs(), classes * P + 8).reshape(call.input.shape),
        "linear_weight": of_head.reshape(call.linear_weight.shape),
        "linear_bias": (of_logits + (N + 8) * unit * size).sum(0).reshape(call.linear_weight.shape[:-1]),
    }
    if options["reduction"] == "none":
        return Floor(losses.reshape(upstream.shape), gradients)
    return Floor((1 + (N * P + 8) * unit) * losses.sum(), gradients)


def assert_as_torch(found: Tensor, by_torch: Tensor, exact: Tensor, floor: Tensor, what: str) -> None:
    assert found.shape == by_torch.shape, what
    assert torch.equal(found.isnan(), by_torch.isnan()), f"{what}: {found.tolist()}, in torch {by_torch.tolist()}"
    limits = torch.finfo(found.dtype)
    allowed = 2 * (by_torch.double() - exact).abs() + floor + limits.eps / 2 * exact.abs() + limits.smallest_normal
    error = (found.double() - exact).abs()
    good = (error <= allowed) | found.isnan()
    assert bool(good.all()), f"{what}: error {error[~good].tolist()}, allowed {allowed[~good].tolist()}"


@settings(drawn, max_examples=250)
@given(call=calls())
def test_loss_and_gradients_are_those_of_torch(trained: str, call: Call) -> None:
    dtype = call.input.dtype
    kernel = "auto" if trained == "native" and (dtype == torch.float64 or call.linear_weight.dim() > 2) else trained
    found = outcome(
        linear_cross_entropy, call, dtype, kernel=kernel, **{k: v for k, v in call.options.items() if k == "options"}
    )
    by_torch, exact = (outcome(F.linear_cross_entropy, call, each) for each in (dtype, torch.float64))
    assert found.loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    unit = torch.finfo(found.loss.dtype).eps / 2
    upstream = draw_values(call.upstream_seed, *found.loss.shape)
    least = floor(call, upstream, unit * (2 if dtype == torch.float64 else 1))  # there exact has errors of its own
    assert_as_torch(found.loss, by_torch.loss, exact.loss, least.loss, "loss")
    assert found.gradients.keys() == by_torch.gradients.keys()
    for name, gradient in found.gradients.items():
        assert gradient.dtype == dtype
        assert_as_torch(gradient, by_torch.gradients[name], exact.gradients[name], least.gradients[name], name)


# ---- the same errors -------------------------------------------------------------------------------------------------


def valid(dtype: torch.dtype, *, dense: bool) -> dict[str, Any]:
    target = draw_values(3, 4, 6).softmax(1).to(dtype) if dense else torch.tensor([0, 5, 2, 3])
    return {
        "input": draw_values(0, 4, 8).to(dtype),
        "linear_weight": draw_values(1, 6, 8).to(dtype),
        "target": target,
        "linear_bias": draw_values(2, 6).to(dtype),
        "weight": draw_values(5, 6).abs().to(dtype),
    }


def ones(*shape: int, dtype: torch.dtype | None = None) -> Callable[[torch.dtype], Tensor]:
    return lambda operands: torch.ones(shape, dtype=dtype or operands)


def indices(*values: int, dtype: torch.dtype = torch.int64) -> Callable[[torch.dtype], Tensor]:
    return lambda _: torch.tensor(values, dtype=dtype)


def just(value: Any) -> Callable[[torch.dtype], Any]:
    return lambda _: value


# Arguments put in the place of valid ones, from the dtype of the operands.
MALFORMED: Final[dict[str, list[tuple[str, Callable[[torch.dtype], Any]]]]] = {
    "input": [
        ("rank 0", ones()),
        ("other hidden size", ones(4, 9)),
        ("other number of rows", ones(5, 8)),
        ("no rows", ones(0, 8)),
        ("one row without its dimension", ones(8)),
        ("integers", ones(4, 8, dtype=torch.int64)),
        ("another dtype", ones(4, 8, dtype=torch.float16)),
        ("no tensor", just([[1.0] * 8] * 4)),
        ("complex", ones(4, 8, dtype=torch.complex64)),
    ],
    "linear_weight": [
        ("rank 1", ones(8)),
        ("other hidden size", ones(6, 9)),
        ("other number of classes", ones(7, 8)),
        ("no classes", ones(0, 8)),
        ("K-dimensional", ones(6, 2, 8)),
        ("another dtype", ones(6, 8, dtype=torch.float16)),
        ("None", just(None)),
    ],
    "target": [
        ("beyond the classes", indices(0, 6, 1, 2)),
        ("negative", indices(0, 1, -1, 2)),
        ("too few", indices(0, 1, 2)),
        ("rank 2", lambda _: torch.zeros(4, 1, dtype=torch.int64)),
        ("rank 0", lambda _: torch.tensor(1)),
        ("bool", lambda _: torch.ones(4, dtype=torch.bool)),
        ("int16", indices(0, 1, 2, 3, dtype=torch.int16)),
        ("floats as indices", ones(4)),
        ("integers as probabilities", lambda _: torch.ones(4, 6, dtype=torch.int64)),
        ("probabilities of other classes", ones(4, 7)),
        ("transposed probabilities", ones(6, 4)),
        ("probabilities in float64", ones(4, 6, dtype=torch.float64)),
        ("None", just(None)),
    ],
    "linear_bias": [
        ("too long", ones(7)),
        ("rank 2", ones(6, 1)),
        ("another dtype", ones(6, dtype=torch.float16)),
        ("a number", just(1.0)),
    ],
    "weight": [
        ("too short", ones(5)),
        ("rank 2", ones(6, 1)),
        ("another dtype", ones(6, dtype=torch.float16)),
        ("integers", ones(6, dtype=torch.int64)),
        ("a list", just([1.0] * 6)),
    ],
    "reduction": [("unknown", just("max")), ("upper case", just("Mean")), ("None", just(None))],
    "label_smoothing": [
        ("negative", just(-0.1)),
        ("above 1", just(1.1)),
        ("NaN", just(float("nan"))),
        ("text", just("0.1")),
        ("None", just(None)),
    ],
    "ignore_index": [("-100", just(-100)), ("a class", just(5)), ("a fraction", just(0.5)), ("text", just("0"))],
    "options": [("a dict", just({}))],
}

# Where ours differs from torch on purpose, by what is wrong.
NO_TENSOR: Final = "torch trips over what isn't a tensor with an AttributeError; ours is a TypeError that names it"
NO_OPTIONS: Final = "torch trips over what aren't its options, where it reads them at all; ours is a TypeError"
NO_SMOOTHING: Final = "torch takes a share below 0, or NaN, as 0 in silence"
NO_INDEX: Final = "beside class probabilities torch asks first whether there is an index, ours first whether it is one"
DIFFERENCES: Final[dict[str, str]] = {
    "input: no tensor": NO_TENSOR,
    "linear_weight: None": NO_TENSOR,
    "target: None": NO_TENSOR,
    "linear_bias: a number": NO_TENSOR,
    "options: a dict": NO_OPTIONS,
    "label_smoothing: negative": NO_SMOOTHING,
    "label_smoothing: NaN": NO_SMOOTHING,
    "ignore_index: a fraction": NO_INDEX,
    "ignore_index: text": NO_INDEX,
}

# What ours takes beyond torch.
BEYOND: Final = {
    "input of any leading dimensions": {
        "input": torch.ones(2, 2, 8),
        "target": torch.tensor([[0, 5], [2, 3]]),
    },
    "uint8 targets of a K-dimensional head": {
        "linear_weight": torch.ones(6, 2, 8),
        "target": torch.ones(4, 2, dtype=torch.uint8),
        "linear_bias": None,
    },
    "targets in int32": {"target": torch.tensor([0, 5, 2, 3], dtype=torch.int32)},
    "an fp32 bias of 16-bit operands": {
        "input": torch.ones(4, 8).bfloat16(),
        "linear_weight": torch.ones(6, 8).bfloat16(),
        "linear_bias": torch.ones(6),
        "weight": torch.ones(6).bfloat16(),
    },
}


def raised(function: Callable[..., Tensor], arguments: dict[str, Any]) -> Exception | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says which options it doesn't use
            function(**arguments)
    except Exception as error:
        return error
    return None


Mistake = tuple[str, int]  # the argument, and which of MALFORMED's


def label(mistake: Mistake) -> str:
    name, choice = mistake
    return f"{name}: {MALFORMED[name][choice][0]}"


def with_mistakes(arguments: dict[str, Any], mistakes: list[Mistake]) -> dict[str, Any]:
    dtype = arguments["input"].dtype
    return {**arguments, **{name: MALFORMED[name][choice][1](dtype) for name, choice in mistakes}}


MISTAKES: Final = [(name, choice) for name, choices in MALFORMED.items() for choice in range(len(choices))]
contexts = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from([torch.float32, torch.bfloat16]),
        "dense": st.booleans(),
        "reduction": st.sampled_from(["none", "mean", "sum"]),
    }
)


def in_context(dtype: torch.dtype, dense: bool, reduction: str) -> dict[str, Any]:
    return {**valid(dtype, dense=dense), "reduction": reduction}


@pytest.mark.parametrize("mistake", MISTAKES, ids=label)
@settings(drawn, max_examples=12)
@given(context=contexts)
def test_an_error_is_that_of_torch(trained: str, mistake: Mistake, context: dict[str, Any]) -> None:
    arguments = with_mistakes(in_context(**context), [mistake])
    expected = raised(F.linear_cross_entropy, arguments)
    found = raised(linear_cross_entropy, {**arguments, "kernel": trained})
    if label(mistake) in DIFFERENCES:
        assert isinstance(found, SteadySumError) or (found is None) == (expected is None)
    elif expected is None:
        assert found is None, f"torch accepts this: {found!r}"
    else:
        assert isinstance(found, type(expected)), f"{found!r}, in torch {expected!r}"
        assert isinstance(found, SteadySumError), repr(found)


@settings(drawn, max_examples=200)
@given(
    context=contexts,
    mistakes=st.lists(
        st.sampled_from([mistake for mistake in MISTAKES if label(mistake) not in DIFFERENCES]),
        min_size=2,
        max_size=3,
        unique_by=lambda mistake: mistake[0],
    ),
)
def test_of_several_errors_one_is_raised_as_torch_would(
    trained: str, context: dict[str, Any], mistakes: list[Mistake]
) -> None:
    """Which of them is found first is nobody's promise."""
    correct = in_context(**context)
    arguments = with_mistakes(correct, mistakes)
    together = raised(F.linear_cross_entropy, arguments)
    found = raised(linear_cross_entropy, {**arguments, "kernel": trained})
    assert (found is None) == (together is None), f"{found!r}, in torch {together!r}"
    if found is not None:
        alone = [raised(F.linear_cross_entropy, with_mistakes(correct, [mistake])) for mistake in mistakes]
        allowed = tuple(type(error) for error in (together, *alone) if error is not None)
        assert isinstance(found, allowed), f"{found!r}, in torch {together!r}"
        assert isinstance(found, SteadySumError), repr(found)


@pytest.mark.parametrize("mistake", DIFFERENCES)
def test_every_listed_difference_is_one(mistake: str) -> None:
    (pair,) = (each for each in MISTAKES if label(each) == mistake)
    differs = []
    for dense in (False, True):
        arguments = with_mistakes(in_context(torch.float32, dense, "mean"), [pair])
        expected, found = raised(F.linear_cross_entropy, arguments), raised(linear_cross_entropy, arguments)
        differs.append(expected is None or not isinstance(found, type(expected)))
        assert isinstance(found, SteadySumError)
    assert any(differs)


@pytest.mark.parametrize("more", BEYOND.values(), ids=BEYOND)
def test_what_ours_takes_beyond_torch_raises_there(more: dict[str, Any]) -> None:
    arguments = {**valid(torch.float32, dense=False), **more}
    assert raised(F.linear_cross_entropy, arguments) is not None
    assert raised(linear_cross_entropy, arguments) is None
