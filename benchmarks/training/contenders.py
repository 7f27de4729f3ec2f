"""What is measured: the loss and its gradients by ours, torch's and other libraries' functions; and the bare products.

A contender is called with operands that want gradients. It returns its values and leaves the gradients in .grad, which
must be empty before. Not here: how it is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

import steadysum
from benchmarks.contenders import CUT_CROSS_ENTROPY, LIGER, PLAIN, TORCH_CHUNKED, Contender, Work

GRADIENTS: Final = "values and gradients"
NEEDS_OURS: Final = "steadysum:linear_cross_entropy"
LOSS_SCALE: Final = 1024.0  # an upstream gradient other than 1, as mixed-precision training has it

THREE_PRODUCTS: Final = "three bare products"
FOUR_PRODUCTS: Final = "four bare products"


def bare_products(work: Work, forward: int) -> Callable[[], None]:
    """The products that loss and gradients are made of, as a program writes them with torch, and nothing else.

    Args:
        work: X [N, H], W [V, H].
        forward: how often to compute X @ W.T [N, V]; G @ W [N, H] and G.T @ X [V, H] are computed once. The logits
            stand in for G, since values don't change the time.
    """
    x, w = work.input.detach(), work.weight.detach()

    def call() -> None:
        for _ in range(forward):
            logits = x @ w.T
        _ = logits @ w, logits.T @ x

    return call


def products_into_buffers(work: Work) -> Callable[[], None]:
    """Three products into buffers that exist already: what they cost without fresh memory for their results."""
    x, w = work.input.detach(), work.weight.detach()
    logits = x.new_empty(len(x), len(w))
    input_gradient, weight_gradient = torch.empty_like(x), torch.empty_like(w)

    def call() -> None:
        torch.mm(x, w.T, out=logits)
        torch.mm(logits, w, out=input_gradient)
        torch.mm(logits.T, x, out=weight_gradient)

    return call


def bound(contender: Contender, work: Work) -> Callable[[], object]:
    """The call on these operands. Its time includes giving the gradients back, so that every call's are fresh."""

    def call() -> None:
        contender.call(work)
        forget_gradients(work)

    return call


def forget_gradients(work: Work) -> None:
    """As an optimizer's zero_grad does."""
    work.input.grad = work.weight.grad = None


def gradients(work: Work) -> tuple[Tensor, Tensor]:
    """What a contender left."""
    assert work.input.grad is not None
    assert work.weight.grad is not None
    return work.input.grad, work.weight.grad


def with_gradients(forward: Contender) -> Contender:
    """A contender that returns a loss, followed by its backward pass."""

    def call(work: Work) -> tuple[Tensor, ...]:
        loss: Tensor = forward.call(work)
        loss.backward()  # type: ignore[no-untyped-call]
        return (loss,)

    return Contender(forward.name, GRADIENTS, call, forward.needs)


def filtered(eps: float) -> Contender:
    """Ours with a gradient filter."""

    return _ours(
        f"linear_cross_entropy, gradient_filter={eps:g}", lambda work: _backward(_loss(work, gradient_filter=eps))
    )


def _loss(work: Work, **options: Any) -> Tensor:
    loss: Tensor = steadysum.linear_cross_entropy(work.input, work.weight, work.target, **options)
    return loss


def _backward(*values: Tensor, retain_graph: bool = False) -> tuple[Tensor, ...]:
    """From upstream gradients of 1 for a scalar, and different ones for each row of a vector."""
    upstream = [torch.linspace(0.5, 1.5, len(value)) if value.ndim else torch.ones_like(value) for value in values]
    torch.autograd.backward(values, upstream, retain_graph=retain_graph)
    return values


def _per_token(work: Work) -> tuple[Tensor, ...]:
    return _backward(_loss(work, reduction="none"))


def _logprobs(work: Work) -> tuple[Tensor, ...]:
    return _backward(steadysum.linear_logprobs(work.input, work.weight, work.target))


def _logprobs_and_entropy(work: Work) -> tuple[Tensor, ...]:
    return _backward(*steadysum.linear_logprobs(work.input, work.weight, work.target, return_entropy=True))


def _statistics(work: Work) -> tuple[Tensor, ...]:
    return _backward(*steadysum.linear_max_sum(work.input, work.weight))


def _ours(name: str, call: Callable[[Work], tuple[Tensor, ...]], needs: str = NEEDS_OURS) -> Contender:
    return Contender(f"steadysum.{name}", GRADIENTS, call, needs)


OURS = _ours("linear_cross_entropy", lambda work: _backward(_loss(work)))
RETAINED = _ours("linear_cross_entropy, graph retained", lambda work: _backward(_loss(work), retain_graph=True))
SCALED = _ours(f"linear_cross_entropy, loss times {LOSS_SCALE:g}", lambda work: _backward(_loss(work) * LOSS_SCALE))
PER_TOKEN = _ours('linear_cross_entropy, reduction="none"', _per_token)
LOGPROBS = _ours("linear_logprobs", _logprobs, needs="steadysum")
LOGPROBS_AND_ENTROPY = _ours("linear_logprobs, with entropy", _logprobs_and_entropy, needs="steadysum")
STATISTICS = _ours("linear_max_sum", _statistics, needs="steadysum")

SCALAR: Final[Sequence[Contender]] = (OURS, RETAINED, SCALED)  # gradients formed in the forward pass
PER_ROW: Final[Sequence[Contender]] = (
    PER_TOKEN,
    LOGPROBS,
    LOGPROBS_AND_ENTROPY,
    STATISTICS,
)  # and in the backward pass

PEERS: Final[Sequence[Contender]] = tuple(
    with_gradients(peer) for peer in (PLAIN, TORCH_CHUNKED, CUT_CROSS_ENTROPY, LIGER)
)
PLAIN_PEER, CHUNKED_PEER, *_ = PEERS


def plain_loss(work: Work) -> float:
    """The loss of the same operands in fp32, by torch."""
    with torch.no_grad():
        return float(F.cross_entropy(F.linear(work.input.float(), work.weight.float()), work.target))


def by_name(name: str) -> Contender:
    """The contender of this name."""
    return next(contender for contender in (*SCALAR, *PER_ROW, *PEERS) if contender.name == name)
