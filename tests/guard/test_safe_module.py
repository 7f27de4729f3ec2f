"""SafeModule: warmed up once with nothing changed, checked, retried, and in the end "accuracy check failed"."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from steadysum.errors import AccuracyError, OperandTypeError, RangeError
from steadysum.guard.checks.finite import Finite
from steadysum.guard.protection import protect
from steadysum.guard.safe_module import SafeModule
from steadysum.guard.tensors import same_bits


def safe(module: nn.Module | None = None, **options: Any) -> SafeModule:
    return SafeModule(module, **{"checks": [Finite()], "bundles": None, **options})


class Scaled(SafeModule):
    """As the report has it: a module that says itself what it computes, and what is right."""

    def __init__(self, faults: int = 0, **options: Any) -> None:
        super().__init__(checks=[Finite()], bundles=None, **options)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.faults = faults
        self.runs = 0

    def _real_forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        is_faulty = self.is_warm and self.runs > self.warm_up and self.faults > 0
        self.faults -= is_faulty
        return self.scale * x + (1000 if is_faulty else 0)

    def _check_output(self, output: Tensor) -> bool | str:
        return "" if float(output.detach().abs().max()) < 100 else "larger than anything that comes in"


def test_it_warms_up_once_and_then_computes_once_a_call() -> None:
    module = Scaled(warm_up=12)
    x = torch.ones(3)
    assert same_bits(module(x).detach(), 2 * x)
    assert module.runs == 13
    module(x)
    assert module.runs == 14


def test_a_wrong_output_is_computed_again_up_to_three_times() -> None:
    module = Scaled(faults=2, warm_up=0)
    assert same_bits(module(torch.ones(3)).detach(), torch.full((3,), 2.0))
    assert module.guard.healings[-1].reruns >= 2
    broken = Scaled(faults=99, warm_up=0)
    with pytest.raises(AccuracyError) as caught:
        broken(torch.ones(3))
    assert broken.runs == 4
    assert "accuracy check failed: Scaled: got check_output: larger than anything that comes in" in str(caught.value)


def test_keys_and_gradients_of_a_subclass_are_as_of_any_module() -> None:
    module = Scaled(warm_up=2)
    assert list(module.state_dict()) == ["scale"]
    module(torch.ones(3)).sum().backward()
    assert module.scale.grad == 3.0


def test_warming_up_changes_neither_buffers_nor_the_random_state_nor_the_arguments() -> None:
    class Draws(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(3)
            self.drop = nn.Dropout(0.5)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor, seen: list[int]) -> Tensor:
            seen.append(1)
            self.calls = self.calls + 1
            y = self.drop(self.norm(x))
            x.mul_(2)
            return y

    torch.manual_seed(0)
    plain = Draws()
    wrapped = copy.deepcopy(plain)
    module = safe(wrapped, warm_up=10)
    results = []
    for each in (plain, module):
        torch.manual_seed(1)
        x, seen = torch.linspace(-1, 1, 24).reshape(8, 3), list[int]()
        results.append([each(x, seen), x, seen, torch.rand(3)])
    assert same_bits(results[0], results[1])
    assert same_bits(dict(plain.state_dict()), dict(wrapped.state_dict()))


def test_warming_up_makes_no_graph() -> None:
    grads: list[bool] = []

    class Notes(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            grads.append(torch.is_grad_enabled())
            return super().forward(x)

    safe(Notes(2, 2), warm_up=2)(torch.ones(1, 2))
    assert grads == [False, False, True]


def test_it_wraps_a_module_whose_parameters_and_keys_it_shares() -> None:
    linear = nn.Linear(2, 3)
    module = safe(linear)
    assert list(module.state_dict()) == list(linear.state_dict())
    assert next(module.parameters()) is linear.weight
    assert same_bits(module(torch.ones(1, 2)), linear(torch.ones(1, 2)))
    assert module.guard.options.operator == "Linear"


def test_a_copy_asks_itself_what_is_right() -> None:
    module = Scaled(faults=0, warm_up=0)
    twin = copy.deepcopy(module)
    twin.faults = 1
    twin(torch.ones(2))
    assert len(twin.guard.healings) == 1
    assert len(module.guard.healings) == 0


def test_without_a_module_and_without_a_real_forward_it_says_so() -> None:
    with pytest.raises(NotImplementedError, match="SafeModule wraps no module, and has no _real_forward"):
        safe(warm_up=0)(torch.ones(1))


def test_options_that_do_not_fit_are_refused() -> None:
    with pytest.raises(RangeError, match="warm_up: got -1; allowed: at least 0"):
        safe(nn.Linear(1, 1), warm_up=-1)
    with pytest.raises(OperandTypeError, match="something that is guarded already"):
        safe(protect(nn.Linear(1, 1), checks=[Finite()], bundles=None))
    with pytest.raises(TypeError, match="no_such_option"):
        safe(nn.Linear(1, 1), no_such_option=1)


def test_arguments_that_cannot_be_copied_mean_no_warm_up_and_a_warning() -> None:
    class Holder:
        def __init__(self, tensor: Tensor) -> None:
            self.tensor = tensor

    class Sums(nn.Module):
        def forward(self, holder: Holder) -> Tensor:
            return holder.tensor.sum()

    leaf = torch.ones(2, requires_grad=True)
    with pytest.warns(RuntimeWarning, match="Sums was not warmed up: its arguments can't be copied"):
        safe(Sums())(Holder(leaf * 2))


def test_what_is_set_on_the_view_is_set_on_the_module_that_it_stands_for() -> None:
    class Scales(nn.Module):
        factor = 1.0

        def __init__(self) -> None:
            super().__init__()
            self.shift = 0.0

        def forward(self, x: Tensor) -> Tensor:
            return x * self.factor + self.shift

    for wrapped in (safe(Scales(), warm_up=0), protect(Scales(), checks=[Finite()], bundles=None)):
        wrapped.shift, wrapped.factor, wrapped.note = 3.0, 2.0, "its own"
        assert wrapped(torch.ones(1)).item() == 5.0
        assert not hasattr(wrapped.guarded, "note")
