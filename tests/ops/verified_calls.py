"""Every public function that takes `verify`, with its gradients, for the tests of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from steadysum import (
    Call,
    fused_cross_entropy_loss_with_max_sum,
    fused_linear_cross_entropy_loss_with_max_sum_backward,
    fused_linear_online_max_sum,
    linear_cross_entropy,
    linear_logprobs,
    linear_max_sum,
    linear_softmax,
    nn,
    regroup,
)
from steadysum.compat import torch_npu


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X, HEAD, BIAS, TARGET = draw(6, 32), draw(700, 32, seed=1), draw(700, seed=2), torch.arange(6)
IGNORING = torch.tensor([3, -100, 5, -100, 7, 9])
OPTIONS: dict[str, Any] = {"bias": BIAS, "scale": 0.5, "softcap": 30.0, "temperature": 0.7, "valid_vocab": 600}


def upstream_of(result: Tensor) -> Tensor:
    return torch.linspace(-1, 2, result.numel(), dtype=result.dtype, device="cpu").view_as(result)


def with_gradients(function: Callable[..., Any], of: Sequence[Tensor] = (X, HEAD, BIAS)) -> Callable[..., list[Tensor]]:
    """The function's results, and the gradients of what in them is differentiable."""

    def run(**how: str) -> list[Tensor]:
        operands = [each.clone().requires_grad_() for each in of]
        found = function(*operands, **how)
        results = [found] if isinstance(found, Tensor) else [*found]
        sources = [each for each in results if each.requires_grad]
        upstream = [
            torch.linspace(-1, 2, each.numel(), dtype=each.dtype, device="cpu").view_as(each) for each in sources
        ]
        return [*results, *torch.autograd.grad(sources, operands, upstream)]

    return run


def loss(x: Tensor, head: Tensor, bias: Tensor, **how: Any) -> list[Tensor]:
    target = how.pop("target", IGNORING)
    value, stats = linear_cross_entropy(x, head, target, linear_bias=bias, return_stats=True, **how)
    return [value, *stats.max_sum, stats.token_loss, stats.correct]


def of_cards(**how: str) -> list[Tensor | None]:
    """The vendor's three operators, one after the other."""
    found = fused_linear_online_max_sum(X, HEAD, TARGET, 2, 702, True, **how)  # type: ignore[arg-type]
    losses = fused_cross_entropy_loss_with_max_sum(*found[:3], vocab_parallel_logits=found[5], **how)  # type: ignore[arg-type]
    rest = (torch.ones(6), X, HEAD, found.target_mask, found.masked_target)
    gradients = fused_linear_cross_entropy_loss_with_max_sum_backward(*rest, 0.0, *found[:2], **how)  # type: ignore[arg-type]
    from_softmax = fused_linear_cross_entropy_loss_with_max_sum_backward(*rest, softmax=losses.softmax, **how)  # type: ignore[arg-type]
    return [*found, *losses, *gradients, *from_softmax]


def rounding_cards(**how: str) -> list[Tensor | None]:
    x, head = X.bfloat16(), HEAD.bfloat16()
    found = fused_linear_online_max_sum(x, head, TARGET, 0, 700, round_logits=True, **how)  # type: ignore[arg-type]
    gradients = fused_linear_cross_entropy_loss_with_max_sum_backward(
        torch.ones(6),
        x,
        head,
        found.target_mask,
        found.masked_target,
        logits_max=found.logits_max,
        sum_exp_logits=found.sum_exp_logits,
        round_logits=True,
        **how,  # type: ignore[arg-type]
    )
    return [*found, *gradients]


def of_each_row(*operands: Tensor, **how: Any) -> list[Tensor]:
    return loss(*operands, reduction="none", **how)


def filtered(*operands: Tensor, **how: Any) -> list[Tensor]:
    return loss(*operands, gradient_filter=1e-3, **how)


def module(x: Tensor, head: Tensor, bias: Tensor, **how: str) -> Tensor:
    made = nn.LinearCrossEntropyLoss(32, 700, bias=True, device="meta", **how)  # type: ignore[arg-type]
    state = {"linear.weight": head, "linear.bias": bias}
    value: Tensor = torch.func.functional_call(made, state, (x, IGNORING))
    return value


FUNCTIONS: dict[str, Callable[..., Sequence[Tensor | None]]] = {
    "linear_max_sum": with_gradients(lambda x, w, b, **how: linear_max_sum(x, w, **{**OPTIONS, "bias": b}, **how)),
    "linear_softmax": with_gradients(lambda x, w, b, **how: linear_softmax(x, w, **{**OPTIONS, "bias": b}, **how)),
    "linear_softmax in 16 bits": with_gradients(
        lambda x, w, b, **how: linear_softmax(x, w, bias=b, dtype=torch.bfloat16, **how)
    ),
    "linear_logprobs": with_gradients(lambda x, w, b, **how: linear_logprobs(x, w, TARGET, bias=b, **how)),
    "linear_logprobs and entropy": with_gradients(
        lambda x, w, b, **how: linear_logprobs(x, w, TARGET, **{**OPTIONS, "bias": b}, return_entropy=True, **how)
    ),
    "linear_cross_entropy": with_gradients(loss),
    "linear_cross_entropy of each row": with_gradients(of_each_row),
    "linear_cross_entropy, smoothed": with_gradients(
        lambda *operands, **how: loss(*operands, label_smoothing=0.1, z_loss=1e-3, weight=HEAD[:, 0].exp(), **how)
    ),
    "linear_cross_entropy of probabilities": with_gradients(
        lambda *operands, **how: loss(*operands, target=draw(6, 700).softmax(1), reduction="none", **how)
    ),
    "linear_cross_entropy, filtered": with_gradients(filtered),
    "nn.LinearCrossEntropyLoss": with_gradients(module),
    "regroup": lambda **how: [
        each
        for pair in regroup([Call(X, HEAD), Call(X[:2], HEAD[:9], softcap=2.0)], **how)
        for each in pair  # type: ignore[arg-type]
    ],
    "the vendor's three": of_cards,
    "the vendor's, logits rounded": rounding_cards,
    "compat.torch_npu": lambda **how: [torch_npu.fused_linear_online_max_sum(X, HEAD.T, **how)],  # type: ignore[arg-type]
}


def assert_same(results: Sequence[Tensor | None], others: Sequence[Tensor | None]) -> None:
    for one, other in zip(results, others, strict=True):
        assert (one is None) == (other is None)
        assert one is None or other is None or torch.equal(one, other)
