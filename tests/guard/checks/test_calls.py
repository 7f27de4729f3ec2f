"""What a call was: its arguments by name, the linear product that it formed, and modules that aren't what they seem."""

from __future__ import annotations

import functools
import operator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from steadysum import linear_cross_entropy
from steadysum.guard.checks.calls import LinearProduct, arguments_of, linear_product
from steadysum.guard.checks.protocol import Made
from steadysum.nn import LinearCrossEntropyLoss

X = torch.arange(6.0).reshape(2, 3)
W = torch.arange(12.0).reshape(4, 3)
B = torch.arange(4.0)


def made(function: Any, *args: Any, **kwargs: Any) -> Made:
    """The call, and what it gave."""
    return Made(function, args, kwargs, function(*args, **kwargs))


def product_of(call: Made) -> LinearProduct:
    """The product; it has to be one."""
    found = linear_product(call)
    assert isinstance(found, LinearProduct), found
    return found


@pytest.mark.parametrize(
    "call",
    [
        made(F.linear, X, W),
        made(F.linear, input=X, weight=W),
        made(functools.partial(F.linear, weight=W), X),
        made(functools.partial(F.linear, X), W),
        made(torch.matmul, X, W.T),
        made(torch.mm, X, mat2=W.T),
        made(operator.matmul, X, W.T),
        made(Tensor.matmul, X, W.T),
        made(Tensor.__matmul__, X, W.T),
        made(Tensor.mm, X, W.T),
    ],
)
def test_every_spelling_of_a_product_is_known(call: Made) -> None:
    product = product_of(call)
    assert torch.equal(product.input, X)
    assert torch.equal(product.weight, W)
    assert product.bias is None
    assert torch.equal(product.output, X @ W.T)


def test_leading_dimensions_are_rows() -> None:
    product = product_of(made(F.linear, X.reshape(1, 2, 1, 3), W, B))
    assert product.input.shape == (2, 3)
    assert product.output.shape == (2, 4)
    assert product.bias is not None
    assert product_of(made(F.linear, X[0], W)).output.shape == (1, 4)
    assert product_of(made(torch.matmul, X[0], W.T)).output.shape == (1, 4)


def test_under_autocast_operands_are_those_that_are_multiplied() -> None:
    layer = nn.Linear(3, 4)
    with torch.autocast("cpu", torch.bfloat16):
        call = made(layer, X)
    assert product_of(call).operand_dtype == torch.bfloat16
    assert product_of(made(layer, X)).operand_dtype == torch.float32


class Own(nn.Linear):
    """A layer with a forward of its own."""

    def forward(self, input: Tensor) -> Tensor:
        """Twice."""
        return 2 * super().forward(input)


class Named(nn.Linear):
    """A layer with the forward that it inherits."""


def test_a_linear_layer_is_known_by_what_it_runs() -> None:
    layer = Named(3, 4)
    assert torch.equal(product_of(made(layer, X)).weight, layer.weight)
    assert torch.equal(product_of(made(layer.forward, X)).weight, layer.weight)
    assert linear_product(made(Own(3, 4), X)) == "Own has a forward of its own"
    layer.forward = lambda x: 2 * F.linear(x, layer.weight)  # type: ignore[method-assign, assignment]
    assert linear_product(made(layer, X)) == "Named has a forward of its own"


def test_layers_with_hooks_are_left_alone() -> None:
    layer = nn.Linear(3, 4)
    layer.register_forward_hook(lambda _module, _args, output: 2 * output)
    assert linear_product(made(layer, X)) == "Linear has hooks, which may change what it is given, or what it gives"
    other = nn.Linear(3, 4)
    other.register_forward_pre_hook(lambda _module, args: (2 * args[0],))
    assert "hooks" in str(linear_product(made(other, X)))


def test_a_parametrized_weight_is_left_alone() -> None:
    layer = parametrizations.spectral_norm(nn.Linear(3, 4))
    call = made(layer, X)
    before = {name: buffer.clone() for name, buffer in layer.named_buffers()}
    assert "computed anew" in str(linear_product(call))
    assert all(torch.equal(buffer, before[name]) for name, buffer in layer.named_buffers())


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (made(torch.matmul, X, W[0]), "its right operand isn't a matrix"),
        (made(torch.matmul, X[None], W.T[None]), "its right operand isn't a matrix"),
        (made(torch.sin, X), "sin isn't a linear product that is known"),
        (made(F.linear, X.int(), W.int()), "its input has the dtype torch.int32"),
        (Made(F.linear, (X, W), {}, (X,)), "its output isn't one tensor"),
        (Made(F.linear, (X, W), {}, X), "its output has the shape [2, 3], not [2, 4]"),
        (Made(F.linear, (X, W.T), {}, X), "its operands don't fit: input [2, 3], weight [3, 4]"),
        (made(F.linear, X.to("meta"), W.to("meta")), "its input holds no dense values"),
    ],
)
def test_what_is_no_known_product_has_a_reason(call: Made, reason: str) -> None:
    assert linear_product(call) == reason


def test_a_users_own_callable_is_described_by_its_operands() -> None:
    def layer(x: Tensor) -> Tensor:
        return F.linear(x, W, B)

    found = linear_product(made(layer, X), lambda call: (call.args[0], W, B))
    assert isinstance(found, LinearProduct)
    assert torch.equal(found.weight, W)


def test_arguments_have_their_names_and_defaults() -> None:
    def function(x: int, *, y: int = 2) -> int:
        return x + y

    assert arguments_of(made(function, 1)) == {"x": 1, "y": 2}
    assert arguments_of(Made(function, (1, 2), {}, None)) is None  # no such call


def test_a_loss_module_passes_its_settings() -> None:
    module = LinearCrossEntropyLoss(3, 4, softcap=5.0)
    target = torch.tensor([0, 1])
    names = arguments_of(Made(linear_cross_entropy, (X, module.linear.weight, target), {}, None))
    given = arguments_of(Made(module, (X, target), {}, None))
    assert given is not None
    assert names is not None
    assert given["softcap"] == 5.0
    assert given["linear_weight"] is module.linear.weight
    assert given.keys() <= names.keys()
