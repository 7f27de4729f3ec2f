"""What a caller may do with results of differentiable functions, what they cost, and what the filter leaves alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import steadysum
from steadysum.errors import RangeError

FUNCTIONS: dict[str, Callable[[Tensor, Tensor, Tensor, str], Tensor]] = {
    "losses": lambda x, w, t, k: steadysum.linear_cross_entropy(x, w, t, reduction="none", kernel=k),
    "losses, some ignored": lambda x, w, t, k: steadysum.linear_cross_entropy(
        x, w, t.where(t != t[1], -100), reduction="none", kernel=k
    ),
    "log-probabilities": lambda x, w, t, k: steadysum.linear_logprobs(x, w, t, kernel=k),
    "softmax": lambda x, w, _t, k: steadysum.linear_softmax(x, w, kernel=k),
}


def problem(*leading: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(*leading, 8, generator=generator).requires_grad_()
    return x, torch.randn(50, 8, generator=generator).requires_grad_(), torch.randint(50, leading, generator=generator)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("leading", [(6,), (2, 3)], ids=str)
def test_results_may_be_multiplied_in_place(name: str, leading: tuple[int, ...], kernel: str) -> None:
    x, w, t = problem(*leading)
    t = t if len(leading) == 1 else t.flatten().view(leading)
    function = FUNCTIONS[name] if len(leading) == 1 else FUNCTIONS[name.split(",")[0]]

    def gradients(scale: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...]:
        return torch.autograd.grad(scale(function(x, w, t, kernel)).sum(), (x, w))

    for seen, expected in zip(gradients(lambda y: y.mul_(0.5)), gradients(lambda y: y * 0.5), strict=True):
        assert torch.equal(seen, expected)


def test_statistics_that_backward_needs_say_so_when_they_were_overwritten(kernel: str) -> None:
    x, w, _ = problem(6)
    stats = steadysum.linear_max_sum(x, w, kernel=kernel)
    doubled = stats.sum_exp.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        doubled.sum().backward()


def test_statistics_share_no_memory_with_the_loss(kernel: str) -> None:
    x, w, t = problem(6)
    loss, stats = steadysum.linear_cross_entropy(x, w, t, reduction="none", return_stats=True, kernel=kernel)
    before = loss.detach().clone()
    stats.token_loss.zero_()
    assert torch.equal(loss, before)
    loss.sum().backward()


def test_the_filter_keeps_what_comes_from_probabilities_as_targets(kernel: str) -> None:
    x, w, t = problem(6)
    one_hot = torch.nn.functional.one_hot(t, 50).float()

    def gradients(target: Tensor) -> tuple[Tensor, ...]:
        loss = steadysum.linear_cross_entropy(x, w, target, gradient_filter=0.01, kernel=kernel)
        return torch.autograd.grad(loss, (x, w))

    for seen, expected in zip(gradients(one_hot), gradients(t), strict=True):
        torch.testing.assert_close(seen, expected)


def test_an_ignore_index_beyond_64_bits_is_refused() -> None:
    with pytest.raises(RangeError, match="ignore_index: got 1180591620717411303424"):
        steadysum.linear_cross_entropy(*problem(6), ignore_index=2**70)


@pytest.mark.usefixtures("needs_native")
def test_one_ignored_row_costs_no_memory() -> None:
    """In a process of its own, since its high-water mark is what is measured."""
    program = """
import resource, torch, steadysum
x, w, t = torch.randn(512, 8), torch.randn(128256, 8), torch.randint(128256, (512,))
steadysum.linear_cross_entropy(x[:4], w, t[:4], reduction="none")
t[3] = -100
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
steadysum.linear_cross_entropy(x, w, t, reduction="none")
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert int(ran.stdout) < 64  # MiB, the bar; a chunk's logits are 128 MiB
