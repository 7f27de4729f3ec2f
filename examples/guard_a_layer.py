"""Guards at work: a layer that goes wrong once, one that stays wrong, and a whole model, with what is told of each.

Faults are made here by replacing torch's linear product for some calls; the guards know nothing of that.
"""

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from steadysum.errors import AccuracyError
from steadysum.guard import protect, protect_model, read_bundle
from steadysum.notices import Notice, listen

LINEAR = nn.functional.linear


@contextmanager
def wrong_in_calls(is_wrong: Callable[[int], bool]) -> Iterator[None]:
    """Inside, one element of each linear product whose number is_wrong has 3 added to it."""
    number = 0

    def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        nonlocal number
        number += 1
        output = LINEAR(input, weight, bias)
        if not is_wrong(number):
            return output
        damage = torch.zeros_like(output)
        damage[..., 5, 7] = 3.0
        return output + damage

    nn.functional.linear = linear
    try:
        yield
    finally:
        nn.functional.linear = LINEAR


def a_fault_that_passes(layer: nn.Module, x: Tensor, right: Tensor, bundles: Path) -> bool:
    """The guard computes the result again, and leaves a bundle."""
    guarded = protect(layer, bundles=bundles)
    with wrong_in_calls(lambda number: number == 1):
        output = guarded(x)
    healing = guarded.guard.healings[-1]
    print(f"Wrong once: {healing.outcome}, {healing.verdict.attribution}, rows at fault {healing.verdict.rows}.")
    print(f"  {healing.findings[0].summary}")
    assert healing.bundle is not None
    saved = ", ".join(read_bundle(healing.bundle).outputs)
    print(f"  The bundle {healing.bundle.name} has these results: {saved}.")
    return torch.equal(output, right)


def a_fault_that_stays(layer: nn.Linear, x: Tensor, right: Tensor) -> bool:
    """A fallback helps, and is told of; without one there is an error."""

    def another_way(x: Tensor) -> Tensor:
        return torch.addmm(layer.bias, x, layer.weight.T)

    guarded = protect(layer, fallback=another_way, bundles=None)
    with wrong_in_calls(lambda number: True):  # noqa: ARG005
        output = guarded(x)
        verdict = guarded.guard.healings[-1].verdict
        print(f"Wrong always: {verdict.attribution}: {verdict.reason}.")
        try:
            protect(layer, bundles=None)(x)
        except AccuracyError as error:
            print(f"  Without a fallback: {type(error).__name__}, {error.attribution}.")
    return torch.allclose(output, right, rtol=0, atol=1e-5)


def a_whole_model(x: Tensor) -> bool:
    """All layers of a model, where they are; a training step whose 2nd product is wrong."""
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    model(x).square().sum().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    heard: list[Notice] = []
    with protect_model(model, bundles=None) as guards, listen(heard.append):
        with wrong_in_calls(lambda number: number == 2):
            model(x).square().sum().backward()
        print(f"A model: layers {', '.join(guards.guards)} guarded; healed: {[name for name, _ in guards.healings]}.")
    checks = [notice for notice in heard if notice.kind == "check"]
    print(f"  {len(checks)} checks in this step, gradients' included.")
    return all(
        parameter.grad is not None and torch.equal(parameter.grad, right)
        for parameter, right in zip(model.parameters(), expected, strict=True)
    )


def main() -> int:
    """Run all three; 1 if any result isn't what it should be."""
    torch.manual_seed(0)
    layer, x = nn.Linear(64, 64), torch.randn(32, 64)
    with torch.no_grad():
        right = layer(x)
        with tempfile.TemporaryDirectory() as folder:
            results = [a_fault_that_passes(layer, x, right, Path(folder)), a_fault_that_stays(layer, x, right)]
    results.append(a_whole_model(x))
    print("Every result is right." if all(results) else "A result is wrong.")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
