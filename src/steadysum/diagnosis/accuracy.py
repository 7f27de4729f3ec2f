"""The error of a kernel's statistics against float64, beside the errors of plain fp32 computations on the same rows.

The bound is derived, not tuned: a kernel may have 1.5 times the root-mean-square error of a plain computation, which is
torch's own, or one chain of fused multiply-adds over H, whichever is larger. Torch's alone would not do: its product
cuts H differently on each CPU, so that its error at H = 256 differs by a factor of 2 between machines. Root mean square
of *errors*, which one wrong row does move; not a comparison of norms, which it doesn't.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear

from steadysum.diagnosis.compare import absolute_deviation, ulp_distance
from steadysum.diagnosis.subject import Operands
from steadysum.maxsum import MaxSum, identity, merge

ALLOWED_RATIO = 1.5  # of a plain computation's error: the accuracy bar of the operator
UNIT_ROUNDOFF = 2.0**-24  # fp32: storing a right result may cost this much of its size
# Work and memory of the oracle: 2e10 multiply-adds take about a second in float64 on two cores; 64 MiB of logits.
MOST_WORK = 2e10
MOST_LOGITS = 1 << 23


@dataclass(frozen=True)
class StatisticError:
    """The error of one statistic, over the rows that were compared."""

    statistic: str  # "max", "sum_exp" or "log_sum_exp"
    error: float  # root mean square of the kernel's errors
    plain: float  # root mean square of the errors of torch's fp32 computation
    chain: float  # the same, of what one chain of fp32 fused multiply-adds gives for the row's largest logit
    bound: float  # what `error` may be
    largest: float  # the largest error of a row
    largest_row: int
    ulps: int  # the largest distance from the rounded float64 value

    @property
    def within(self) -> bool:
        """Whether the error is within its bound."""
        return self.error <= self.bound

    @property
    def used(self) -> float:
        """The share of the bound that the error takes; at most 1 where it is within."""
        if self.error == 0.0 or math.isinf(self.bound):
            return 0.0
        return self.error / self.bound if self.bound else math.inf


@dataclass(frozen=True)
class Accuracy:
    """The errors of a kernel's statistics."""

    rows: int  # compared
    of_rows: int  # in the batch
    statistics: tuple[StatisticError, ...]

    @property
    def within(self) -> bool:
        """Whether all statistics are within their bounds."""
        return all(statistic.within for statistic in self.statistics)

    @property
    def worst(self) -> StatisticError:
        """The statistic that takes most of its bound."""
        return max(self.statistics, key=lambda statistic: statistic.used)


@dataclass(frozen=True)
class Oracle:
    """The float64 statistics of some rows, and torch's fp32 ones."""

    rows: Tensor  # [R] row numbers
    of_rows: int  # N
    exact: dict[str, Tensor]  # statistic -> fp64 [R]
    plain: dict[str, Tensor]  # statistic -> fp32 [R]
    chain: dict[str, Tensor]  # statistic -> absolute error of a chain, fp64 [R]


def sample_rows(operands: Operands, seed: int) -> Tensor:
    """The rows to compare: all, or as many as MOST_WORK allows, drawn at random, in ascending order."""
    rows, hidden, vocabulary = operands.shape
    affordable = max(1, int(MOST_WORK / (hidden * vocabulary)))
    if affordable >= rows:
        return torch.arange(rows)
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(rows, generator=generator)[:affordable].sort().values


def consult(
    operands: Operands,
    rows: Tensor,  # [R] row numbers
    reference: Callable[[Tensor, Tensor], MaxSum],  # in float64: (input [r, H], weight [v, H]) -> fp64 [r]
) -> Oracle:
    """Computes the rows in float64, a slice of the vocabulary at a time, and by torch's plain fp32 operations."""
    picked = operands.input[rows]
    exact = _exact(picked, operands.weight, reference)
    *plain, largest = _plain(picked, operands.weight)
    chain = _chain_error(picked, operands.weight[largest])
    # An error d of the largest logit moves the sum's other terms by -d, and max + log(sum) by its probability, 1 / s.
    chains = (chain, chain * (exact.sum_exp - 1.0), chain / exact.sum_exp)
    names = ("max", "sum_exp", "log_sum_exp")
    return Oracle(
        rows=rows,
        of_rows=operands.input.shape[0],
        exact=dict(zip(names, (exact.max, exact.sum_exp, exact.log_sum_exp), strict=True)),
        plain=dict(zip(names, plain, strict=True)),
        chain=dict(zip(names, chains, strict=True)),
    )


def measure_accuracy(
    outputs: Sequence[Tensor],  # max and sum_exp, each fp32 [N]
    oracle: Oracle,
) -> Accuracy:
    """The errors of a kernel's statistics on the oracle's rows."""
    statistics = MaxSum(outputs[0][oracle.rows], outputs[1][oracle.rows])
    seen = {"max": statistics.max, "sum_exp": statistics.sum_exp, "log_sum_exp": statistics.log_sum_exp}
    return Accuracy(
        rows=oracle.rows.numel(),
        of_rows=oracle.of_rows,
        statistics=tuple(_statistic_error(name, values, oracle) for name, values in seen.items()),
    )


def _statistic_error(
    name: str,
    seen: Tensor,  # fp32 [R]
    oracle: Oracle,
) -> StatisticError:
    exact = oracle.exact[name]
    errors = absolute_deviation(seen, exact)
    plain = _rms(absolute_deviation(oracle.plain[name], exact))
    chain = _rms(_finite(oracle.chain[name]))
    # Two root mean squares over R rows are each known to 1/sqrt(2 R), so their ratio to 1/sqrt(R): allow three of that.
    chance = 1.0 + 3.0 / math.sqrt(max(1, seen.numel()))
    # Storing the right result rounds it once, also where the plain computations happen to be exact.
    bound = chance * max(ALLOWED_RATIO * plain, ALLOWED_RATIO * chain, UNIT_ROUNDOFF * _rms(_finite(exact)))
    worst = int(errors.argmax())
    return StatisticError(
        statistic=name,
        error=_rms(errors),
        plain=plain,
        chain=chain,
        bound=bound,
        largest=float(errors[worst]),
        largest_row=int(oracle.rows[worst]),
        ulps=int(ulp_distance(seen.float(), exact.float()).max()),
    )


def _exact(
    picked: Tensor,  # [R, H]
    weight: Tensor,  # [V, H]
    reference: Callable[[Tensor, Tensor], MaxSum],
) -> MaxSum:
    """Folds float64 partials over slices of the vocabulary, so that neither logits nor W exist whole in float64."""
    step = max(1, MOST_LOGITS // max(picked.shape[0], weight.shape[1]))
    total = identity(picked.shape[:1], dtype=torch.float64)
    for start in range(0, weight.shape[0], step):
        total = merge(total, reference(picked, weight[start : start + step]))
    return total


def _plain(
    picked: Tensor,  # [R, H]
    weight: Tensor,  # [V, H]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Max, sum of exponentials, log-sum-exp and the column of the max, by torch's fp32 operations, rows at a time."""
    wide_weight = weight.float()
    parts = []
    for chunk in torch.split(picked.float(), max(1, 2 * MOST_LOGITS // weight.shape[0])):
        logits = linear(chunk, wide_weight)
        largest, column = logits.max(1)
        parts.append((largest, (logits - largest[:, None]).exp_().sum(1), logits.logsumexp(1), column))
    largest, sums, log_sums, columns = (torch.cat(pieces) for pieces in zip(*parts, strict=True))
    return largest, sums, log_sums, columns


def _chain_error(
    input: Tensor,  # [R, H]
    weight: Tensor,  # [R, H], one vocabulary row for each row of input
) -> Tensor:
    """The absolute error of one chain of fp32 fused multiply-adds over H, emulated: fp64 holds each product exactly."""
    terms = (input.double() * weight.double()).T.contiguous()  # [H, R]
    total = torch.zeros(terms.shape[1], dtype=torch.float64)
    for term in terms:
        total = (total + term).float().double()
    return (total - terms.sum(0)).abs()


def _finite(values: Tensor) -> Tensor:
    return values[values.isfinite()]


def _rms(values: Tensor) -> float:
    return float(values.double().square().mean().sqrt()) if values.numel() else 0.0
