"""What autograd may ask of a differentiable function: retained graphs, any upstream gradient, accumulation, gradient
checkpointing, AMP, torch.compile, torch.func, second derivatives; and what it may not find: cycles, copies, mutations.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from steadysum import errors, kernels, linear_cross_entropy, linear_logprobs, linear_max_sum, linear_softmax

N, H, V = 5, 6, 9
Results = tuple[Tensor, ...]
Function = Callable[[Tensor, Tensor, Tensor], Results]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, HEAD, BIAS = draw(N, H), draw(V, H, seed=1), draw(V, seed=2)
TARGET = torch.tensor([3, 0, -100, V - 2, 3])
INSIDE = TARGET.clamp(min=0)
OPTIONS: dict[str, Any] = {"scale": 0.7, "softcap": 3.0, "valid_vocab": V - 1}
TEMPERATURE = draw(N, seed=3).exp()
CLASS_WEIGHT = draw(V, seed=4).exp()
PROBABILITIES = draw(N, V, seed=5).softmax(-1)


def loss(reduction: str, target: Tensor = TARGET, **options: Any) -> Function:
    def call(x: Tensor, head: Tensor, bias: Tensor) -> Results:
        weight = CLASS_WEIGHT.to(x.dtype) if options.get("weighted") else None
        given = {name: value for name, value in options.items() if name != "weighted"}
        value = linear_cross_entropy(
            x, head, target, linear_bias=bias, reduction=reduction, weight=weight, **OPTIONS, **given
        )
        return (value,)

    return call


FUNCTIONS: dict[str, Function] = {
    "mean": loss("mean", weighted=True, label_smoothing=0.1, z_loss=0.2),
    "sum": loss("sum"),
    "sum of probabilities": loss("sum", PROBABILITIES, weighted=True, label_smoothing=0.1),
    "per token": loss("none", weighted=True, label_smoothing=0.1, z_loss=0.2),
    "per token of probabilities": loss("none", PROBABILITIES),
    "max_sum": lambda x, head, bias: linear_max_sum(x, head, bias=bias, temperature=0.6, **OPTIONS),
    "logprobs": lambda x, head, bias: (linear_logprobs(x, head, INSIDE, bias=bias, **OPTIONS),),
    "logprobs and entropy": lambda x, head, bias: linear_logprobs(
        x, head, INSIDE, bias=bias, temperature=TEMPERATURE.to(x.dtype), return_entropy=True, **OPTIONS
    ),
    "softmax": lambda x, head, bias: (linear_softmax(x, head, bias=bias, **OPTIONS),),
}
differentiable = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)


def leaves(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    x, head, bias = (operand.to(dtype, copy=True).requires_grad_() for operand in (X, HEAD, BIAS))
    return x, head, bias


def scalar(results: Results) -> Tensor:
    """A scalar to which every result, and each of its elements, has another gradient."""
    parts = [
        (result * torch.linspace(1, 2 + index, result.numel(), dtype=result.dtype).view_as(result)).sum()
        for index, result in enumerate(results)
    ]
    return torch.stack(parts).sum()


def gradients(function: Function, operands: Results, **options: Any) -> Results:
    return torch.autograd.grad(scalar(function(*operands)), operands, **options)


def assert_equal(one: Results, other: Results) -> None:
    assert [each.dtype for each in one] == [each.dtype for each in other]
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


# ---- first derivatives -----------------------------------------------------------------------------------------------


@differentiable
def test_gradients_are_the_slopes(function: Function) -> None:
    assert gradcheck(function, leaves())


@differentiable
def test_a_retained_graph_gives_the_same_again_and_saved_values_are_unchanged(function: Function) -> None:
    operands = leaves(torch.float32)
    before = [operand.detach().clone() for operand in operands]
    results = function(*operands)
    first = torch.autograd.grad(scalar(results), operands, retain_graph=True)
    kept = [each.clone() for each in first]
    for each in first:
        each.fill_(7.0)  # what was handed out is the caller's own
    doubled = torch.autograd.grad(scalar(results) * 2, operands, retain_graph=True)
    assert_equal(tuple(doubled), tuple(2 * each for each in kept))
    last = torch.autograd.grad(scalar(results), operands)
    assert_equal(tuple(last), tuple(kept))
    assert_equal(tuple(operand.detach() for operand in operands), tuple(before))


@differentiable
def test_a_freed_graph_says_so(function: Function) -> None:
    operands = leaves()
    results = function(*operands)
    torch.autograd.grad(scalar(results), operands)
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        torch.autograd.grad(results[0].sum(), operands)


@differentiable
def test_an_operand_written_to_before_backward_is_noticed(function: Function) -> None:
    x, head, bias = leaves()
    value = scalar(function(x, head, bias))
    with torch.no_grad():
        head.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.backward()


@differentiable
def test_only_gradients_that_are_needed_are_computed(function: Function, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    run = kernels.get("eager").gradients

    def spy(call: Any, pull_back: Any, wanted: Any, known: Any = None) -> Any:
        asked.append(tuple(wanted))
        return run(call, pull_back, wanted, known)

    monkeypatch.setattr(kernels.get("eager"), "gradients", spy)
    everything = gradients(function, leaves())
    for position in range(3):
        operands = [operand.detach() for operand in leaves()]
        operands[position].requires_grad_()
        asked.clear()
        (found,) = torch.autograd.grad(scalar(function(*operands)), operands[position])
        assert set(asked) == {tuple(index == position for index in range(3))}
        assert torch.equal(found, everything[position])


@differentiable
def test_without_grad_mode_no_gradient_is_formed(function: Function, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("gradients were formed")

    monkeypatch.setattr(kernels.get("eager"), "gradients", refuse)
    with torch.no_grad():
        assert not any(result.requires_grad for result in function(*leaves()))
    with torch.inference_mode():
        function(X, HEAD, BIAS)
    assert not any(result.requires_grad for result in function(X, HEAD, BIAS))


def test_each_tokens_own_upstream_gradient_counts() -> None:
    x, head, bias = leaves()
    tokens = FUNCTIONS["per token"](x, head, bias)[0]
    for row in range(N):
        (of_row,) = torch.autograd.grad(tokens[row], x, retain_graph=True)
        others = torch.arange(N) != row
        assert of_row[others].eq(0).all()
        assert of_row[row].ne(0).all() if TARGET[row] >= 0 else of_row[row].eq(0).all()
    upstream = torch.tensor([0.5, -2.0, 3.0, 0.0, 1e-3], dtype=torch.float64)
    (weighted,) = torch.autograd.grad(tokens, head, upstream, retain_graph=True)
    separate = [torch.autograd.grad(tokens[row], head, retain_graph=True)[0] for row in range(N)]
    torch.testing.assert_close(weighted, sum(u * each for u, each in zip(upstream, separate, strict=True)))


@pytest.mark.parametrize("name", ["mean", "per token", "max_sum"])
def test_gradients_accumulate_into_those_that_are_there(name: str) -> None:
    operands = leaves()
    wanted = [2 * each for each in gradients(FUNCTIONS[name], operands)]
    for _ in range(2):
        scalar(FUNCTIONS[name](*operands)).backward()
    for operand, each in zip(operands, wanted, strict=True):
        assert torch.equal(operand.grad, each)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("name", ["mean", "per token", "logprobs and entropy", "softmax"])
def test_gradient_checkpointing_gives_the_same(name: str, reentrant: bool) -> None:
    def run(x: Tensor, head: Tensor, bias: Tensor) -> Tensor:
        return scalar(FUNCTIONS[name](x.sin(), head, bias))

    plain, checkpointed = leaves(torch.float32), leaves(torch.float32)
    run(*plain).backward()
    checkpoint(run, *checkpointed, use_reentrant=reentrant).backward()
    assert_equal(tuple(each.grad for each in plain), tuple(each.grad for each in checkpointed))


# ---- memory ----------------------------------------------------------------------------------------------------------


def test_gradients_formed_in_the_forward_pass_become_grad_without_a_copy() -> None:
    x, head, bias = leaves(torch.float32)
    value = linear_cross_entropy(x, head, TARGET, linear_bias=bias)
    formed = {each.data_ptr() for each in value.grad_fn.saved_tensors}  # type: ignore[union-attr]
    value.backward()
    assert {operand.grad.data_ptr() for operand in (x, head, bias)} <= formed


def test_a_scaled_loss_needs_no_second_buffer() -> None:
    x, head, _ = leaves(torch.float32)
    (exact,) = torch.autograd.grad(linear_cross_entropy(x, head, TARGET), head)
    value = linear_cross_entropy(x, head, TARGET)
    formed = {each.data_ptr() for each in value.grad_fn.saved_tensors}  # type: ignore[union-attr]
    (value * 0.3).backward()
    assert head.grad.data_ptr() in formed
    assert torch.equal(head.grad, exact * torch.tensor(0.3))


def test_a_hook_on_saved_tensors_sees_no_change_of_them() -> None:
    seen: list[tuple[Tensor, Tensor]] = []

    def pack(tensor: Tensor) -> Tensor:
        seen.append((tensor, tensor.detach().clone()))
        return tensor

    operands = leaves(torch.float32)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        value = linear_cross_entropy(*operands[:2], TARGET)
    (value * 0.3).backward()
    assert len(seen) > 2
    assert all(torch.equal(tensor, before) for tensor, before in seen)


@differentiable
def test_no_cycle_of_references_holds_a_graph(function: Function) -> None:
    operands = leaves()
    gc.collect()
    gc.disable()
    try:
        results = function(*operands)
        nodes = [weakref.ref(results[0])]
        del results
        assert all(node() is None for node in nodes)  # freed without backward, without the collector
        value = function(*operands)[0]
        node = weakref.ref(value)
        value.sum().backward()
        del value
        assert node() is None
    finally:
        gc.enable()


# ---- AMP -------------------------------------------------------------------------------------------------------------


def test_a_scaled_loss_under_autocast_trains_like_the_plain_one() -> None:
    losses = {}
    for name, function in {"ours": linear_cross_entropy, "torch": F.linear_cross_entropy}.items():
        x, head = X.float(), torch.nn.Parameter(HEAD.float())
        optimizer = torch.optim.SGD([head], lr=0.5)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        for _ in range(5):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                value = function(x, head, TARGET)
            scaler.scale(value).backward()
            scaler.step(optimizer)
            scaler.update()
        losses[name] = value.item()
    # torch's plain path rounds each logit, up to 8 in size, to bf16: by 2^-9 of it at most
    assert losses["ours"] == pytest.approx(losses["torch"], abs=8 * 2.0**-9)


# ---- torch.compile ---------------------------------------------------------------------------------------------------


def assert_compiled_has_the_bits(function: Function, backend: str) -> None:
    operands = leaves(torch.float32)
    torch.compiler.reset()  # torch limits how often one function is compiled
    compiled = torch.compile(function, fullgraph=True, backend=backend)
    plain, again = function(*operands), compiled(*operands)
    assert_equal(again, plain)
    upstream = [torch.linspace(1, 2, each.numel()).view_as(each) for each in plain]
    assert_equal(torch.autograd.grad(again, operands, upstream), torch.autograd.grad(plain, operands, upstream))


@differentiable
def test_compiled_forward_and_backward_have_the_bits_of_eager_code(function: Function, kernel: str) -> None:
    with kernels.use(kernel):
        assert_compiled_has_the_bits(function, "aot_eager")


@pytest.mark.parametrize("name", ["mean", "per token"])
def test_inductors_code_has_the_bits_of_eager_code(name: str) -> None:
    assert_compiled_has_the_bits(FUNCTIONS[name], "inductor")


def test_a_compiled_loss_takes_new_shapes() -> None:
    compiled = torch.compile(
        lambda x, head, target: linear_cross_entropy(x, head, target, reduction="none"),
        fullgraph=True,
        backend="aot_eager",
        dynamic=True,
    )
    for rows in (5, 3, 1, 4):
        x, head, _ = leaves(torch.float32)
        found = torch.autograd.grad(compiled(x[:rows], head, TARGET[:rows]).sum(), head)
        wanted = torch.autograd.grad(linear_cross_entropy(x[:rows], head, TARGET[:rows], reduction="none").sum(), head)
        assert_equal(found, wanted)


def test_k_dimensional_loss_compiles() -> None:
    head = torch.stack([HEAD, 2 * HEAD], 1).requires_grad_()
    target = torch.stack([TARGET, INSIDE], 1)

    def run(x: Tensor, head: Tensor) -> Tensor:
        return linear_cross_entropy(x, head, target, z_loss=0.1)

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(torch.autograd.grad(compiled(X, head), head), torch.autograd.grad(run(X, head), head))


# ---- torch.func ------------------------------------------------------------------------------------------------------


def ours(x: Tensor, head: Tensor) -> Tensor:
    return linear_cross_entropy(x, head, TARGET, label_smoothing=0.1)


def torchs(x: Tensor, head: Tensor) -> Tensor:
    return F.linear_cross_entropy(x, head, TARGET, label_smoothing=0.1)


HEADS = torch.stack([HEAD, 2 * HEAD])
TRANSFORMS: dict[str, Callable[[Callable[[Tensor, Tensor], Tensor]], Any]] = {
    "grad": lambda f: torch.func.grad(f, (0, 1))(X, HEAD),
    "vmap of grad": lambda f: torch.func.vmap(torch.func.grad(f, (0, 1)), (None, 0))(X, HEADS),
    "grad of vmap": lambda f: torch.func.grad(lambda x: torch.func.vmap(lambda head: f(x, head))(HEADS).sum())(X),
    "grad of grad": lambda f: torch.func.grad(lambda x: torch.func.grad(f, 1)(x, HEAD).square().sum())(X),
    "jacrev of jacrev": lambda f: torch.func.jacrev(torch.func.jacrev(f, 1), 0)(X, HEAD),
    "vjp": lambda f: torch.func.vjp(f, X, HEAD)[1](torch.tensor(3.0, dtype=torch.float64)),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_torch_func_works(transform: Callable[[Callable[[Tensor, Tensor], Tensor]], Any]) -> None:
    torch.testing.assert_close(transform(ours), transform(torchs))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@differentiable
def test_torch_func_gives_the_same_gradients(function: Function) -> None:
    found = torch.func.grad(lambda *operands: scalar(function(*operands)), (0, 1, 2))(X, HEAD, BIAS)
    torch.testing.assert_close(found, gradients(function, leaves()))


def test_grad_of_grad_by_native_is_refused_rather_than_wrong(needs_native: object) -> None:
    x, head = X.float(), HEAD.float()

    def inner(x: Tensor) -> Tensor:
        return torch.func.grad(lambda head: linear_cross_entropy(x, head, TARGET, kernel="native"))(head).square().sum()

    assert inner(x).isfinite()
    with pytest.raises(errors.GradientError, match="gradients of gradients: got kernel 'native'"):
        torch.func.grad(inner)(x)


@differentiable
def test_forward_mode_is_refused_rather_than_zero(function: Function) -> None:
    with pytest.raises(errors.GradientError, match="input with a tangent of forward-mode differentiation"):
        torch.func.jvp(lambda x: function(x, HEAD, BIAS)[0], (X,), (X,))


# ---- second derivatives ----------------------------------------------------------------------------------------------


@differentiable
def test_second_derivatives_through_eager_are_the_slopes_of_the_first(function: Function) -> None:
    assert gradgradcheck(function, leaves(), fast_mode=True)


def test_third_derivatives_too() -> None:
    def third(loss: Callable[..., Tensor]) -> Results:
        x, head, _ = leaves()
        (first,) = torch.autograd.grad(loss(x * x, head, TARGET), x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x, create_graph=True)
        return torch.autograd.grad(second.square().sum(), (x, head))

    torch.testing.assert_close(third(linear_cross_entropy), third(F.linear_cross_entropy))


@differentiable
def test_gradients_under_create_graph_are_the_same(function: Function) -> None:
    operands = leaves(torch.float32)
    plain = gradients(function, operands)
    with_graph = gradients(function, operands, create_graph=True)
    assert_equal(tuple(each.detach() for each in with_graph), plain)


@differentiable
def test_second_derivatives_by_native_are_refused(function: Function, needs_native: object) -> None:
    operands = leaves(torch.float32)
    with kernels.use("native"):
        results = function(*operands)
    # The kernel is that of the forward pass, wherever backward runs.
    first = torch.autograd.grad(scalar(results), operands, create_graph=True)
    with pytest.raises(errors.GradientError, match="allowed: kernel='eager' or 'reference'"):
        torch.autograd.grad(first[1].sum(), operands)


def test_filtered_gradients_have_no_derivative() -> None:
    x, head, _ = leaves()
    value = linear_cross_entropy(x, head, TARGET, gradient_filter=1e-3)
    (first,) = torch.autograd.grad(value, x, create_graph=True)
    with pytest.raises(errors.GradientError, match=r"gradients of gradients: got gradient_filter=0\.001"):
        torch.autograd.grad(first.sum(), head)
