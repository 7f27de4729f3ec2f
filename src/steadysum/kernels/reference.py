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
from steadysum.kernels.gradients import Gradients, LogitGradient, PullBack, Wanted
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
    return [statistics_of(call, logits_of(call)) for call in calls]


def logits(call: Operands, out: Tensor) -> Statistics:
    """Write the logits [N, V] and return their statistics."""
    z = logits_of(call)
    out.copy_(z)
    return statistics_of(call, z)


def softmax(call: Operands, out: Tensor) -> None:
    """Write the softmax [N, V]."""
    out.copy_(torch.softmax(logits_of(call), dim=1))


def chunk_statistics(call: Operands) -> Statistics:
    """The statistics and all sums that the call asks for; the chunk is the whole call."""
    rows = call.rows(0, call.size)
    return statistics_of(rows, logits_of(rows))


def gradients(call: Operands, pull_back: PullBack, wanted: Wanted, known: Statistics | None = None) -> Gradients:
    """The wanted gradients, from the gradient of the logits that `pull_back` describes.

    Known statistics are taken as they are: if they were rounded to fp32, the rounding of max counts as an error of the
    logits, and a logit is tied if it rounds to max.
    """
    rows = call.rows(0, call.size)
    z = logits_of(rows)
    found = statistics_of(rows, z) if known is None else known
    g = torch.zeros_like(z[:, : call.valid_vocab])
    if call.size > 0:
        terms = pull_back(found, 0, call.size)
        g = before_options(rows, z, logit_gradient(rows, z, found.max, terms))
    every_row = torch.zeros(call.input.shape, dtype=torch.float64, device=call.input.device)
    kept = slice(None) if call.kept is None else call.kept
    every_row[kept] = g @ call.weight[: call.valid_vocab].double()
    masked = (0, 0, 0, call.weight.shape[0] - call.valid_vocab)  # rows of zeros at the end
    of_weight = torch.nn.functional.pad(g.T @ rows.input.double(), masked)
    of_bias = torch.nn.functional.pad(g.sum(dim=0), masked[2:])
    return Gradients(
        every_row.to(call.dtype) if wanted.input else None,
        of_weight.to(call.dtype) if wanted.weight else None,
        of_bias.to(call.dtype) if wanted.bias else None,
    )


# ---- the definition, which sampled.py computes too, for some rows and columns of a call ----------------------------


def logits_of(call: Operands) -> Tensor:  # [N, V]
    """The logits; masked columns are -inf."""
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


def statistics_of(call: Operands, z: Tensor) -> Statistics:
    """The statistics of these logits."""
    largest = z.amax(dim=1)
    distance = z - largest[:, None]
    distance = distance.masked_fill(z == -torch.inf, -torch.inf)  # also in a row whose max is -inf
    distance = distance.masked_fill(z == torch.inf, 0.0)  # so that a row's +inf logits are counted
    terms = distance.exp()
    target_logit = None if call.target is None else z.gather(1, call.target[:, None])[:, 0]
    weighted = torch.where(terms == 0, 0.0, terms * distance).sum(dim=1) if call.wants_weighted_sum else None
    found = Statistics(largest, terms.sum(dim=1), target_logit, weighted)
    distance = (z - largest[:, None])[
        :, : call.valid_vocab
    ]  # in rows whose max is infinite NaN, as the sums are in torch
    if call.wants_ties:
        ties = (z == largest[:, None])[:, : call.valid_vocab].sum(dim=1).double()
        found = found._replace(ties=torch.where(largest.isnan(), torch.nan, ties))
    w = _column_weight(call)
    if call.wants_column_sum:
        found = found._replace(column_sum=(w * distance).sum(dim=1))
    if call.dense is not None:
        q = call.dense[:, : call.valid_vocab].double()
        found = found._replace(
            dense_total=(w * q).sum(dim=1),
            dense_sum=(w * q * distance).sum(dim=1),
            dense_exp=(q * distance.exp()).sum(dim=1),
        )
    return found


def _column_weight(call: Operands) -> Tensor:  # [valid_vocab]
    if call.column_weight is None:
        return torch.ones(call.valid_vocab, dtype=torch.float64, device=call.weight.device)
    return call.column_weight[: call.valid_vocab].double()


def logit_gradient(call: Operands, z: Tensor, largest: Tensor, terms: LogitGradient) -> Tensor:  # [N, valid_vocab]
    """The gradient of these logits, as LogitGradient writes it."""

    def rows(coefficients: Tensor | None) -> Tensor | float:
        return 0.0 if coefficients is None else coefficients.double()[:, None]

    z = z[:, : call.valid_vocab]
    d = z - largest.double()[:, None]
    e = d.exp()
    g = torch.zeros_like(z)
    if terms.exp is not None:
        g = g + e * rows(terms.exp)
    if terms.slope is not None:
        g = g + torch.where(e == 0, 0.0, e * rows(terms.slope) * d)
    w = _column_weight(call)
    q = None if call.dense is None else call.dense[:, : call.valid_vocab].double()
    if terms.center is not None:
        assert q is not None
        g = g * (q - rows(terms.center))
    if terms.keep_above is not None:
        g = torch.where(e < rows(terms.keep_above), 0.0, g)
    if q is not None:
        g = g + rows(terms.dense) * w * q
    if terms.column is not None:
        g = g + rows(terms.column) * w
    if terms.tie is not None:
        g = g + torch.where(z.to(largest.dtype) == largest[:, None], rows(terms.tie), 0.0)
    if terms.target is not None:
        assert call.target is not None
        g[torch.arange(call.size, device=g.device), call.target] += terms.target.double()
    return g


def before_options(call: Operands, z: Tensor, g: Tensor) -> Tensor:
    """From the gradient of the logits to that of product plus bias: back through temperature, softcap and scale."""
    temperature = 1.0 if call.temperature is None else call.temperature.double()[:, None]
    g = g / temperature
    if call.softcap is not None:
        t = (z[:, : call.valid_vocab] * temperature / call.softcap).clamp(-1.0, 1.0)
        g = g * (1.0 - t) * (1.0 + t)
    return g * call.scale
