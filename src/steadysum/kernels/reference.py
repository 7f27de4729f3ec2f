"""Kernel `reference`: float64, the definition, on one page.

Not for speed or memory: it holds all logits in float64. It never runs unless it is named. Rounding to the caller's
precision happens once, at the end of the public function.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from steadysum.kernels.derived import entropy as entropy
from steadysum.kernels.derived import log as log
from steadysum.kernels.derived import logprobs as logprobs
from steadysum.kernels.problem import FLOATS, Operands, Problem, Statistics
from steadysum.kernels.promise import Promise

name: Final = "reference"
promises: Final = frozenset({Promise.RUN_TO_RUN})


def missing() -> str | None:
    """It runs wherever torch does."""
    return None


def supports(problem: Problem) -> str | None:
    """Any floating-point problem."""
    return None if problem.dtype in FLOATS else f"reference computes floating-point operands, not {problem.dtype}"


def statistics(calls: Sequence[Operands]) -> list[Statistics]:
    """max, sum_exp, and what else each call asks for."""
    return [_statistics(call, _logits(call)) for call in calls]


def logits(call: Operands, out: Tensor) -> Statistics:
    """Write the logits [N, V] and return their statistics."""
    z = _logits(call)
    out.copy_(z)
    return _statistics(call, z)


def softmax(call: Operands, out: Tensor) -> None:
    """Write the softmax [N, V]."""
    out.copy_(torch.softmax(_logits(call), dim=1))


def _logits(call: Operands) -> Tensor:
    z = call.input.double() @ call.weight.double().T
    if call.bias is not None:
        z = z + call.bias.double()
    z = z * call.scale
    if call.softcap is not None:
        z = call.softcap * torch.tanh(z / call.softcap)
    if call.temperature is not None:
        z = z / call.temperature.double()[:, None]
    z[:, call.valid_vocab :] = -torch.inf
    return z


def _statistics(call: Operands, z: Tensor) -> Statistics:
    largest = z.amax(dim=1)
    distance = z - largest[:, None]
    distance = distance.masked_fill(z == -torch.inf, -torch.inf)  # also in a row whose max is -inf
    distance = distance.masked_fill(z == torch.inf, 0.0)  # so that a row's +inf logits are counted
    terms = distance.exp()
    target_logit = None if call.target is None else z.gather(1, call.target[:, None])[:, 0]
    weighted = torch.where(terms == 0, 0.0, terms * distance).sum(dim=1) if call.wants_weighted_sum else None
    return Statistics(largest, terms.sum(dim=1), target_logit, weighted)
