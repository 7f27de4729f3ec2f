"""Reinforcement learning: a clipped policy-gradient loss with an entropy bonus, without storing the logits.

Token log-probabilities and entropies of a policy come from linear_logprobs, with their gradients; beside it stands the
plain computation, log_softmax of the logits. Both are compared with float64, in fp32 and bf16.

    python examples/reinforcement.py

The exit code is 0 if no error of ours is more than twice that of the plain computation, or one rounding of the result;
1 otherwise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor

import steadysum

SEQUENCES, LENGTH, HIDDEN, VOCAB = 8, 32, 64, 8192
TEMPERATURE: Final = 0.8  # the one that the tokens were sampled with
CLIP: Final = 0.2
ENTROPY_BONUS: Final = 0.01

Policy = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Rollout:
    """What was sampled under the old policy."""

    tokens: Tensor  # [sequences, length]
    old_logprobs: Tensor  # [sequences, length]
    advantages: Tensor  # [sequences, 1], of whole sequences
    mask: Tensor  # [sequences, length], 1 for tokens of a response, 0 for its padding


def fused(hidden: Tensor, head: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the tokens and entropies, [sequences, length] each; no logits are stored."""
    return steadysum.linear_logprobs(hidden, head, tokens, temperature=TEMPERATURE, return_entropy=True)


def plain(hidden: Tensor, head: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """The same from the logits [sequences, length, V], widened to fp32 as is customary."""
    logits = F.linear(hidden, head)
    logits = (logits if logits.dtype == torch.float64 else logits.float()) / TEMPERATURE
    logprobs = logits.log_softmax(-1)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    return logprobs.gather(-1, tokens[..., None])[..., 0], entropy


def policy_loss(policy: Policy, hidden: Tensor, head: Tensor, rollout: Rollout) -> Tensor:
    """The clipped objective of PPO (Schulman et al., arXiv 1707.06347) with an entropy bonus, over the responses."""
    logprobs, entropy = policy(hidden, head, rollout.tokens)
    ratio = (logprobs - rollout.old_logprobs).exp()
    clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
    gain = torch.minimum(ratio * rollout.advantages, clipped * rollout.advantages)
    return -((gain + ENTROPY_BONUS * entropy) * rollout.mask).sum() / rollout.mask.sum()


def sample(hidden: Tensor, head: Tensor) -> Rollout:
    """Sequences sampled under a policy, some shorter than others, with advantages as for a group of responses."""
    probabilities = steadysum.linear_softmax(hidden.flatten(0, 1), head / TEMPERATURE)
    tokens = torch.multinomial(probabilities, 1).reshape(SEQUENCES, LENGTH)
    old_logprobs, _ = fused(hidden, head, tokens)
    rewards = torch.rand(SEQUENCES, 1)
    lengths = torch.randint(LENGTH // 2, LENGTH + 1, (SEQUENCES, 1))
    return Rollout(
        tokens, old_logprobs, (rewards - rewards.mean()) / rewards.std(), (torch.arange(LENGTH) < lengths).float()
    )


def loss_and_gradients(policy: Policy, hidden: Tensor, head: Tensor, rollout: Rollout) -> list[Tensor]:
    """The loss and its gradients with respect to the hidden states and the head."""
    hidden, head = hidden.detach().requires_grad_(), head.detach().requires_grad_()
    loss = policy_loss(policy, hidden, head, rollout)
    return [loss.detach(), *torch.autograd.grad(loss, (hidden, head))]


def relative_error(value: Tensor, exact: Tensor) -> float:
    """In the Frobenius norm."""
    return float((value.double() - exact).norm() / exact.norm())


def main() -> int:
    """Sample under an old policy, move the policy a little, compare."""
    torch.manual_seed(0)
    hidden = torch.randn(SEQUENCES, LENGTH, HIDDEN)
    head = torch.randn(VOCAB, HIDDEN) / HIDDEN**0.5 * 2
    rollout = sample(hidden, head)
    head = head + 0.02 * torch.randn_like(head)

    table = Table(title="Relative error against float64", title_justify="left")
    for heading in ("dtype", "of", "ours", "plain"):
        table.add_column(heading, justify="right" if heading in ("ours", "plain") else "left")
    failures = []
    for dtype in (torch.float32, torch.bfloat16):
        operands = hidden.to(dtype), head.to(dtype)
        exact = loss_and_gradients(plain, operands[0].double(), operands[1].double(), rollout)
        ours = loss_and_gradients(fused, *operands, rollout)
        theirs = loss_and_gradients(plain, *operands, rollout)
        for name, our, their, truth in zip(("loss", "hidden.grad", "head.grad"), ours, theirs, exact, strict=True):
            error, plain_error = relative_error(our, truth), relative_error(their, truth)
            table.add_row(str(dtype).removeprefix("torch."), name, f"{error:.2e}", f"{plain_error:.2e}")
            if not error <= max(2 * plain_error, torch.finfo(our.dtype).eps):
                failures.append(f"{dtype}: the error of {name} is {error:.2e}, more than twice {plain_error:.2e}")
    console = Console(width=None if sys.stdout.isatty() else 110)
    console.print(table)
    for failure in failures:
        console.print(f"[red]{failure}[/red]")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
