"""What is measured: our functions, torch's, and those of other libraries, on one problem, forward, without gradients.

Not here: how it is measured. A peer that isn't installed is reported with the reason, never left out in silence.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import steadysum
from steadysum.diagnosis.arguments import DTYPES, Shape
from steadysum.diagnosis.operands import random_operands


@dataclass(frozen=True)
class Work:
    """One problem's operands."""

    input: Tensor  # [N, H]
    weight: Tensor  # [V, H]
    target: Tensor  # [N]


@dataclass(frozen=True)
class Contender:
    """A function under measurement."""

    name: str
    computes: str  # "product", "statistics" or "loss"
    call: Callable[[Work], Any]
    needs: str = "torch"  # MODULE or MODULE:ATTRIBUTE, without which it can't be measured


def make_work(shape: Shape, dtype: str, seed: int = 0) -> Work:
    """The operands that `steadysum bench` takes for this shape, and random targets."""
    operands = random_operands(shape, DTYPES[dtype], seed)
    target = torch.randint(shape.vocabulary, (shape.rows,), generator=torch.Generator().manual_seed(seed + 1))
    return Work(operands.input, operands.weight, target)


def title(shape: Shape, dtype: str) -> str:
    """A problem in few words."""
    return f"{dtype} {shape.rows} x {shape.hidden} x {shape.vocabulary}"


def _chunked(work: Work) -> Tensor:
    options = torch.nn.LinearCrossEntropyOptions()
    return F.linear_cross_entropy(work.input, work.weight, work.target, options=options)


def _cut_cross_entropy(work: Work) -> Tensor:
    from cut_cross_entropy import linear_cross_entropy

    loss: Tensor = linear_cross_entropy(work.input, work.weight, work.target, impl="torch_compile")
    return loss


def _liger(work: Work) -> Tensor:
    from liger_kernel.ops.fused_linear_scaled_cross_entropy import LigerFusedLinearScaledCrossEntropyFunction

    rows: Tensor = LigerFusedLinearScaledCrossEntropyFunction.apply(work.input, work.weight, work.target)
    return rows.mean()


@functools.lru_cache(maxsize=1)
def _buffer(rows: int, vocabulary: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(rows, vocabulary, dtype=dtype)


def _product_into_buffer(work: Work) -> Tensor:
    buffer = _buffer(len(work.input), len(work.weight), work.input.dtype)
    return torch.mm(work.input, work.weight.T, out=buffer)


PRODUCT = Contender("torch product", "product", lambda work: work.input @ work.weight.T)
PRODUCT_INTO_BUFFER = Contender(  # what the product costs without fresh memory for its result
    "torch product into a buffer", "product", _product_into_buffer
)
STATISTICS = Contender(
    "steadysum.linear_max_sum", "statistics", lambda work: steadysum.linear_max_sum(work.input, work.weight)
)
LOSS = Contender(
    "steadysum.linear_logprobs",
    "loss",
    lambda work: -steadysum.linear_logprobs(work.input, work.weight, work.target).mean(),
)
LOG_SUM_EXP = Contender(
    "F.linear + logsumexp", "statistics", lambda work: torch.logsumexp(F.linear(work.input, work.weight), dim=-1)
)
PLAIN = Contender(
    "F.cross_entropy of F.linear",
    "loss",
    lambda work: F.cross_entropy(F.linear(work.input, work.weight).float(), work.target),
)
TORCH_PLAIN = Contender(
    "F.linear_cross_entropy",
    "loss",
    lambda work: F.linear_cross_entropy(work.input, work.weight, work.target),
    "torch.nn.functional:linear_cross_entropy",
)
TORCH_CHUNKED = Contender(
    "F.linear_cross_entropy, chunked", "loss", _chunked, "torch.nn.functional:linear_cross_entropy"
)
CUT_CROSS_ENTROPY = Contender("cut-cross-entropy, torch_compile", "loss", _cut_cross_entropy, "cut_cross_entropy")
LIGER = Contender("liger-kernel, torch fallback", "loss", _liger, "liger_kernel")

ALL = (
    PRODUCT,
    PRODUCT_INTO_BUFFER,
    STATISTICS,
    LOSS,
    LOG_SUM_EXP,
    PLAIN,
    TORCH_PLAIN,
    TORCH_CHUNKED,
    CUT_CROSS_ENTROPY,
    LIGER,
)


def by_name(name: str) -> Contender:
    """The contender of this name."""
    return next(contender for contender in ALL if contender.name == name)


def missing(contender: Contender) -> str | None:
    """Why it can't be measured here, or None."""
    module, _, attribute = contender.needs.partition(":")
    if importlib.util.find_spec(module) is None:
        return f"{module} isn't installed (pip install 'steadysum[bench]')"
    if attribute and not hasattr(importlib.import_module(module), attribute):
        return f"{module} has no {attribute}"
    return None
