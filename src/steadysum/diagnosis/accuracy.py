"""The error of a kernel's statistics against float64, beside that of torch's plain fp32 computation on the same rows.

The bound: a kernel may have 1.5 times the root-mean-square error of torch's own computation, or one rounding of the
exact result where torch's happens to be more exact than that. Root mean square of *errors*, which one wrong row does
move; not a comparison of norms, which it doesn't.

Two root mean squares over few rows differ by chance. The answer is more rows, not a wider bound: a batch with fewer
than LEAST_ROWS gets rows of its own kind beside it, which the kernel computes in one more call.
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
# Root mean squares over R rows of independent errors are each known to 1/sqrt(2 R), so their ratio to 1/sqrt(R), 9 %
# here: a kernel as accurate as torch stays below 1.5 by more than four standard deviations.
LEAST_ROWS = 128
SHORT_ROW = 16  # has 65536 choices of signs: of LEAST_ROWS rows one in eight batches repeats one
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
    bound: float  # what `error` may be
    largest: float  # the largest error of a row
    largest_row: int | None  # in the batch; None: a row beside it
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

    rows: int  # of the batch, compared
    of_rows: int  # in the batch
    extra_rows: int  # compared beside it
    finite_rows: int  # compared, with statistics that are finite in float64
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
    """The float64 statistics of R rows of the batch and E rows beside it, and torch's fp32 ones."""

    rows: Tensor  # [R] row numbers
    of_rows: int  # N
    extra: Tensor  # [E, H]
    exact: dict[str, Tensor]  # statistic -> fp64 [R + E]
    plain: dict[str, Tensor]  # statistic -> fp32 [R + E]


def sample_rows(operands: Operands, seed: int) -> Tensor:
    """The rows to compare: all, or as many as MOST_WORK allows, LEAST_ROWS at least, drawn at random, ascending."""
    rows, hidden, vocabulary = operands.shape
    affordable = max(LEAST_ROWS, int(MOST_WORK / (hidden * vocabulary)))
    if affordable >= rows:
        return torch.arange(rows)
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(rows, generator=generator)[:affordable].sort().values


def extra_rows(
    operands: Operands,
    rows: Tensor,  # [R] row numbers
    seed: int,
) -> Tensor:  # [E, H]
    """Rows that bring the finite ones among `rows` up to LEAST_ROWS: these same rows, with other signs at random.

    That leaves the sizes of the products, and so of their rounding errors. Rows so short that signs would soon repeat
    them differ by up to a quarter of their elements as well. Without a finite row there are none.
    """
    picked = operands.input[rows]
    finite = picked[picked.isfinite().all(1)]
    count = LEAST_ROWS - finite.shape[0] if finite.shape[0] else 0
    if count <= 0:
        return picked[:0]
    generator = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, (count, finite.shape[1]), generator=generator) * 2 - 1
    factors = signs.to(finite.dtype)
    if finite.shape[1] < SHORT_ROW:
        factors = factors * (0.75 + 0.5 * torch.rand(signs.shape, generator=generator)).to(finite.dtype)
    return finite[torch.arange(count) % finite.shape[0]] * factors


def consult(
    operands: Operands,
    rows: Tensor,  # [R] row numbers
    reference: Callable[[Tensor, Tensor], MaxSum],  # in float64: (input [r, H], weight [v, H]) -> fp64 [r]
    extra: Tensor | None = None,  # [E, H]; None: no rows beside the batch
) -> Oracle:
    """Computes the rows in float64, a slice of the vocabulary at a time, and by torch's plain fp32 operations."""
    extra = operands.input[:0] if extra is None else extra
    picked = torch.cat((operands.input[rows], extra))
    exact = _exact(picked, operands.weight, reference)
    plain = _plain(picked, operands.weight)
    names = ("max", "sum_exp", "log_sum_exp")
    return Oracle(
        rows=rows,
        of_rows=operands.input.shape[0],
        extra=extra,
        exact=dict(zip(names, (exact.max, exact.sum_exp, exact.log_sum_exp), strict=True)),
        plain=dict(zip(names, plain, strict=True)),
    )


def measure_accuracy(
    outputs: Sequence[Tensor],  # max and sum_exp, each fp32 [N]
    oracle: Oracle,
    extra: Sequence[Tensor] | None = None,  # the same for the oracle's extra rows, each fp32 [E]; None if it has none
) -> Accuracy:
    """The errors of a kernel's statistics on the oracle's rows."""
    parts = [[output[oracle.rows] for output in outputs[:2]], *([] if extra is None else [extra[:2]])]
    statistics = MaxSum(*(torch.cat(column) for column in zip(*parts, strict=True)))
    seen = {"max": statistics.max, "sum_exp": statistics.sum_exp, "log_sum_exp": statistics.log_sum_exp}
    return Accuracy(
        rows=oracle.rows.numel(),
        of_rows=oracle.of_rows,
        extra_rows=oracle.extra.shape[0],
        finite_rows=int(oracle.exact["log_sum_exp"].isfinite().sum()),
        statistics=tuple(_statistic_error(name, values, oracle) for name, values in seen.items()),
    )


def _statistic_error(
    name: str,
    seen: Tensor,  # fp32 [R + E]
    oracle: Oracle,
) -> StatisticError:
    exact = oracle.exact[name]
    errors = absolute_deviation(seen, exact)
    plain = _rms(absolute_deviation(oracle.plain[name], exact))
    # Storing the right result rounds it once, also where the plain computation happens to be exact.
    bound = max(ALLOWED_RATIO * plain, UNIT_ROUNDOFF * _rms(_finite(exact)))
    worst = int(errors.argmax())
    return StatisticError(
        statistic=name,
        error=_rms(errors),
        plain=plain,
        bound=bound,
        largest=float(errors[worst]),
        largest_row=int(oracle.rows[worst]) if worst < oracle.rows.numel() else None,
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
) -> tuple[Tensor, ...]:
    """Max, sum of exponentials and log-sum-exp, by torch's fp32 operations, rows at a time."""
    wide_weight = weight.float()
    parts = []
    for chunk in torch.split(picked.float(), max(1, 2 * MOST_LOGITS // weight.shape[0])):
        logits = linear(chunk, wide_weight)
        largest = logits.amax(1)
        parts.append((largest, (logits - largest[:, None]).exp_().sum(1), logits.logsumexp(1)))
    return tuple(torch.cat(pieces) for pieces in zip(*parts, strict=True))


def _finite(values: Tensor) -> Tensor:
    return values[values.isfinite()]


def _rms(values: Tensor) -> float:
    return float(values.double().square().mean().sqrt()) if values.numel() else 0.0
