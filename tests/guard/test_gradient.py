"""Gradients of a linear layer are checked when backward computes them, and a wrong one is computed again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from steadysum.errors import AccuracyError
from steadysum.guard.checks.checksum import Checksum
from steadysum.guard.protection import GuardedModule, protect
from steadysum.guard.tensors import same_bits
from steadysum.notices import Notice, listen


class Faults(TorchDispatchMode):
    """Damages one element of the products number `at` and following, `times` of them, of those that it sees."""

    def __init__(self, at: int, times: int = 1) -> None:
        super().__init__()
        self.at, self.times, self.seen = at, times, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.mm.default and not _is_checking():
            self.seen += 1
            if self.at <= self.seen < self.at + self.times:
                output[0, 1] += 100.0
        return output


def _is_checking() -> bool:
    from steadysum.guard.attempt import is_unguarded

    return is_unguarded()


def layer(**options: Any) -> GuardedModule:
    torch.manual_seed(0)
    return protect(nn.Linear(6, 5), checks=[Checksum()], bundles=None, **options)


def gradients(module: nn.Module, x: Tensor, faults: Faults | None = None) -> list[Tensor]:
    x = x.detach().clone().requires_grad_()
    loss = module(x).square().sum()
    if faults is None:
        loss.backward()
    else:
        with faults:
            loss.backward()
    found = [x.grad, *(parameter.grad for parameter in module.parameters())]
    module.zero_grad()
    return [each for each in found if each is not None]


@pytest.mark.parametrize("shape", [(7, 6), (2, 3, 6)])
@pytest.mark.parametrize("at", [1, 2])
def test_a_wrong_gradient_is_healed_to_the_bits_of_a_clean_backward(shape: tuple[int, ...], at: int) -> None:
    module = layer()
    x = torch.randn(shape)
    expected = gradients(module.guarded, x)  # type: ignore[arg-type]
    assert same_bits(gradients(module, x), expected)
    heard: list[Notice] = []
    with listen(heard.append):
        assert same_bits(gradients(module, x, Faults(at)), expected)
    outcomes = {notice.labels["operator"]: notice.labels["outcome"] for notice in heard if notice.kind == "call"}
    assert sorted(outcomes) == ["Linear", "Linear.input_gradient", "Linear.weight_gradient"]
    assert sorted(outcomes.values()) == ["clean", "clean", "healed"]
    assert module.guard.healings[-1].verdict.attribution == "transient"


def test_a_gradient_that_stays_wrong_is_an_error() -> None:
    module = layer(max_retries=2)
    with pytest.raises(AccuracyError, match=r"accuracy check failed: Linear\.\w+_gradient"):
        gradients(module, torch.randn(7, 6), Faults(1, times=99))


def test_gradients_under_autocast_are_checked_and_healed_in_its_dtype() -> None:
    module = layer()
    x = torch.randn(7, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = gradients(module.guarded, x)  # type: ignore[arg-type]
        assert same_bits(gradients(module, x), expected)
    faulty = Faults(1)
    x = x.requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = module(x).square().sum()
    with faulty:
        loss.backward()
    assert len(module.guard.healings) == 1
    assert same_bits([x.grad, *(each.grad for each in module.parameters())], expected)


def test_a_function_of_the_form_of_a_linear_product_is_checked_in_backward_too() -> None:
    linear = protect(F.linear, checks=[Checksum()], bundles=None)
    x, w = torch.randn(4, 6, requires_grad=True), torch.randn(5, 6, requires_grad=True)
    with Faults(2):
        linear(x, w).sum().backward()
    assert len(linear.guard.healings) == 1


def test_a_gradient_of_a_gradient_keeps_its_graph() -> None:
    module = layer()
    x = torch.randn(3, 6)

    def penalty(run: Callable[[Tensor], Tensor]) -> Tensor:
        given = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(run(given).square().sum(), given, create_graph=True)
        (second,) = torch.autograd.grad(slope.square().sum(), given)
        return second

    assert same_bits(penalty(module), penalty(module.guarded))  # type: ignore[arg-type]


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_activation_checkpointing_works_and_where_gradients_are_not_checked_it_is_said(use_reentrant: bool) -> None:
    module = layer()
    x = torch.randn(3, 6, requires_grad=True)
    expected = gradients(module.guarded, x)  # type: ignore[arg-type]

    def run(x: Tensor) -> Tensor:
        return checkpoint(module, x, use_reentrant=use_reentrant)  # type: ignore[no-any-return]

    if use_reentrant:
        run(x).square().sum().backward()
    else:
        with pytest.warns(RuntimeWarning, match="Linear wasn't checked: hooks save its operands"):
            run(x).square().sum().backward()
    assert same_bits([x.grad, *(each.grad for each in module.parameters())], expected)


def test_frozen_weights_and_inputs_without_gradients_are_no_obstacle() -> None:
    module = layer()
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    x = torch.randn(3, 6, requires_grad=True)
    module(x).sum().backward()
    assert x.grad is not None
    module(torch.randn(3, 6))
