"""Guards within torch.compile: the graph ends before them and goes on after them; nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import config as dynamo_config
from torch.nn import functional as F

from steadysum.guard.checks.checksum import Checksum
from steadysum.guard.model_protection import protect_model
from steadysum.guard.protection import protect
from steadysum.guard.safe_module import SafeModule
from steadysum.guard.tensors import same_bits


class Net(nn.Module):
    """Something before a layer, and something after it."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(torch.sin(x))) + 1  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()  # type: ignore[attr-defined]


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(6, 5)


def guarded_layer(way: str) -> tuple[Net, Any]:
    """A net whose layer is guarded in one of the ways, and that guard."""
    if way == "protect":
        layer: Any = protect(linear(), bundles=None)
        return Net(layer), layer.guard
    if way == "function":
        plain = linear()
        product = protect(
            lambda *args: F.linear(*args), checks=[Checksum(operands=lambda made: made.args)], bundles=None
        )
        return Net(lambda x: product(x, plain.weight, plain.bias)), product.guard
    if way == "safe_module":
        safe = SafeModule(linear(), bundles=None, warm_up=2)
        return Net(safe), safe.guard
    net = Net(linear())
    return net, protect_model(net, bundles=None).guards["layer"]


@pytest.mark.parametrize("way", ["protect", "function", "safe_module", "protect_model"])
def test_a_guarded_layer_in_a_compiled_model_is_checked_and_healed(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net, guard = guarded_layer(way)
    x = torch.linspace(-1, 1, 18).reshape(3, 6)
    expected = Net(linear())(x)
    compiled = torch.compile(net, backend="eager")
    assert same_bits(compiled(x).detach(), expected.detach())
    assert not guard.healings
    plain, faults = F.linear, [1]

    def faulty(*args: Any) -> Tensor:
        faults[0] -= 1
        return plain(*args) + (100.0 if faults[0] == 0 else 0.0)

    monkeypatch.setattr(F, "linear", faulty)
    output = compiled(x)
    assert same_bits(output.detach(), expected.detach())
    assert [healing.outcome for healing in guard.healings] == ["healed"]
    output.sum().backward()


@pytest.mark.parametrize("has_hooks", [False, True])
def test_a_compiled_model_may_have_any_number_of_guarded_layers(has_hooks: bool) -> None:
    layers = [nn.Linear(6, 6) for _ in range(12)]
    for layer in layers if has_hooks else []:
        layer.register_forward_hook(lambda *given: given[-1] + 1)
    net = nn.Sequential(*layers)
    x = torch.ones(2, 6)
    expected = net(x)
    with protect_model(net, bundles=None) as guards, dynamo_config.patch(fail_on_recompile_limit_hit=True):
        assert same_bits(torch.compile(net, backend="eager")(x).detach(), expected.detach())
        assert guards.healings == []


def test_a_guard_around_a_compiled_model_checks_what_it_gives() -> None:
    compiled = torch.compile(Net(linear()), backend="eager")
    guarded = protect(compiled, bundles=None)
    x = torch.ones(2, 6)
    assert same_bits(guarded(x).detach(), Net(linear())(x).detach())
    assert not guarded.guard.healings
