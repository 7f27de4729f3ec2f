"""What is measured on a GPU: ours by kernel `triton`, torch's, and those of other libraries, each in its usual form.

Every loss is given as one function of a reduction; forward pass, gradients and losses of rows are made from it here.
Not here: how it is measured. A peer that isn't installed or fails is a line of the table with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

import steadysum
from benchmarks.contenders import PRODUCT, Contender, Work
from benchmarks.training.contenders import with_gradients

KERNEL: Final = "triton"
NEEDS_TORCH_LOSS: Final = "torch.nn.functional:linear_cross_entropy"


@dataclass(frozen=True)
class Loss:
    """A library's fused loss."""

    name: str
    call: Callable[[Work, str], Tensor]  # (work, reduction) -> [] or [N]
    needs: str = "torch"
    has_rows: bool = True  # whether reduction="none" runs the same code as "mean"

    @property
    def forward(self) -> Contender:
        """The mean loss."""
        return Contender(self.name, "loss", lambda work: self.call(work, "mean"), self.needs)

    @property
    def with_gradients(self) -> Contender:
        """The mean loss with its gradients, which are left in .grad."""
        return with_gradients(self.forward)


def _ours(work: Work, reduction: str) -> Tensor:
    loss: Tensor = steadysum.linear_cross_entropy(
        work.input, work.weight, work.target, reduction=reduction, kernel=KERNEL
    )
    return loss


def _plain(work: Work, reduction: str) -> Tensor:
    return F.cross_entropy(F.linear(work.input, work.weight).float(), work.target, reduction=reduction)


def _chunked(work: Work, reduction: str) -> Tensor:
    options = torch.nn.LinearCrossEntropyOptions()
    return F.linear_cross_entropy(work.input, work.weight, work.target, reduction=reduction, options=options)


def _cut_cross_entropy(work: Work, reduction: str) -> Tensor:
    from cut_cross_entropy import linear_cross_entropy

    loss: Tensor = linear_cross_entropy(work.input, work.weight, work.target, reduction=reduction, impl="cce")
    return loss


def _liger(work: Work, reduction: str) -> Tensor:
    from liger_kernel.transformers.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyLoss

    loss: Tensor = LigerFusedLinearCrossEntropyLoss(reduction=reduction)(work.weight, work.input, work.target)
    return loss


OURS: Final = Loss(f"steadysum.linear_cross_entropy, {KERNEL}", _ours)
LOSSES: Final = (
    OURS,
    Loss("F.cross_entropy of F.linear", _plain),
    Loss("F.linear_cross_entropy, chunked", _chunked, NEEDS_TORCH_LOSS, has_rows=False),
    Loss("cut-cross-entropy, cce", _cut_cross_entropy, "cut_cross_entropy"),
    Loss("liger-kernel, FusedLinearCrossEntropy", _liger, "liger_kernel", has_rows=False),
)

STATISTICS: Final = Contender(
    f"steadysum.linear_max_sum, {KERNEL}",
    "statistics",
    lambda work: steadysum.linear_max_sum(work.input, work.weight, kernel=KERNEL),
)
LOG_SUM_EXP: Final = Contender(
    "F.linear + logsumexp", "statistics", lambda work: (torch.logsumexp(F.linear(work.input, work.weight), dim=-1),)
)
FORWARD: Final = (PRODUCT, STATISTICS, LOG_SUM_EXP, *(loss.forward for loss in LOSSES))
TRAINING: Final = tuple(loss.with_gradients for loss in LOSSES)


def tensors(result: Any) -> tuple[Tensor, ...]:
    """A contender's results."""
    return tuple(result) if isinstance(result, tuple) else (result,)
