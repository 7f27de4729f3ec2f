"""A kernel's rounding errors in units of torch's own fp32 ones, over families of logits, each hard in its own way.

Both are measured against float64 on the same operands, as root mean squares over rows, and over columns for logits.
This is the accuracy bar of the operator, on problems of our making; the error on a user's own operands, with bounds
that hold on any CPU, is the business of accuracy.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

from steadysum import kernels
from steadysum.diagnosis.accuracy import ALLOWED_RATIO
from steadysum.kernels.problem import Operands
from steadysum.maxsum import MaxSum
from steadysum.timing import RESAMPLES, Ratio

FAMILIES: Final = ("random", "peaked", "shifted", "equal")
HIDDEN_SIZES: Final = (256, 300, 384, 512, 768, 1024, 2048, 4096, 8192)
# Rows have independent errors, so a root mean square over 400 is known to 1 / sqrt(2 * 400) = 3.5 %, and a ratio of two
# to 5 %. 1300 columns are three tiles of three segments, the last one ragged.
ROWS: Final = 400
VOCABULARY: Final = 1300

PEAK: Final = 80.0  # exp(-80) = 2e-35 is a normal fp32 number, but 1300 of them beside 1 are not seen
SHIFT: Final = 2.0**24  # where neighbouring fp32 numbers are 1 apart below, and 2 above


@dataclass(frozen=True)
class Problem:
    """Operands of one family."""

    family: str
    input: Tensor  # [N, H]
    weight: Tensor  # [V, H]
    bias: Tensor | None  # [V]

    def exact_logits(self) -> Tensor:
        """[N, V] in float64. Equal ones are computed once: torch's float64 product has other bits at a block's edge."""
        distinct = self.weight[:1] if self.family == "equal" else self.weight
        z = linear(self.input.double(), distinct.double(), None if self.bias is None else self.bias.double())
        return z.expand(-1, self.weight.shape[0])


@dataclass(frozen=True)
class RoundingError:
    """The errors of one quantity."""

    family: str
    hidden: int
    quantity: str  # "logits", "max", "sum_exp", "log(sum_exp)", "log_sum_exp"
    own_rows: Tensor  # fp64 [N], mean square error of each row, the kernel's
    torch_rows: Tensor  # the same, torch's
    one_rounding: float  # root mean square of half a unit in the last place of the exact values

    @property
    def own(self) -> float:
        """Root mean square of the kernel's errors."""
        return float(self.own_rows.mean().sqrt())

    @property
    def torch(self) -> float:
        """Root mean square of torch's errors."""
        return float(self.torch_rows.mean().sqrt())

    @property
    def allowed(self) -> float:
        """What `own` may be: 1.5 times torch's.

        Where all logits are equal, torch's error of a sum or a logarithm is that of one number, by luck anything from 0
        to half a unit in the last place. A result is an fp32 number, and the fp32 number nearest to the exact value may
        be half a unit away from it: no kernel can be asked for less than this one rounding.
        """
        least = self.one_rounding if self.family == "equal" else 0.0
        return max(ALLOWED_RATIO * self.torch, least)

    @property
    def ratio(self) -> float:
        """`own` in units of `torch`; 0 where both are 0."""
        if self.torch == 0.0:
            return math.inf if self.own else 0.0
        return self.own / self.torch

    def interval(self, seed: int = 0) -> Ratio:
        """The ratio with its 95 % bootstrap interval over rows (drawn in pairs: both err on the same rows)."""
        if self.torch == 0.0:
            return Ratio(self.ratio, self.ratio, self.ratio)
        rows = self.own_rows.numel()
        drawn = np.random.default_rng(seed).multinomial(
            rows, np.full(rows, 1 / rows), RESAMPLES
        )  # [RESAMPLES, N] counts
        squares = (drawn @ self.own_rows.numpy()) / (drawn @ self.torch_rows.numpy())
        low, high = np.percentile(np.sqrt(squares), (2.5, 97.5))
        return Ratio(self.ratio, float(low), float(high))


def make_problem(family: str, hidden: int, rows: int = ROWS, vocabulary: int = VOCABULARY, seed: int = 0) -> Problem:
    """Random operands of a family.

    Args:
        family: "random": normal logits of variance 1, so that the whole row has part in the sum. "peaked": one of them
            80 above the rest, through the product. "shifted": all by 2^24, through the bias, with variance 16, so that
            differences survive. "equal": all logits of a row equal, through equal rows of weight.
        hidden, rows, vocabulary: H, N, V.
        seed: of the operands.
    """
    generator = torch.Generator().manual_seed(seed)
    input = torch.randn(rows, hidden, generator=generator)
    weight = torch.randn(vocabulary, hidden, generator=generator) / hidden**0.5
    bias = None
    if family == "peaked":
        input[:, 0], weight[:, 0] = 8.0, 0.0
        weight[vocabulary // 2, 0] = PEAK / 8.0  # at the start of the chain: all later sums are rounded at its size
    elif family == "shifted":
        weight *= 4.0
        bias = torch.full((vocabulary,), SHIFT)
    elif family == "equal":
        weight = weight[:1].repeat(vocabulary, 1)
    elif family != "random":
        raise ValueError(f"family: got {family!r}; allowed: {', '.join(FAMILIES)}")
    return Problem(family, input, weight, bias)


def rounding_errors(kernel: str, problem: Problem) -> Iterator[RoundingError]:
    """The errors of logits and statistics on one problem."""
    own, by_torch, exact = (
        _by_kernel(kernel, problem),
        _by_torch(linear(problem.input, problem.weight, problem.bias)),
        _by_torch(problem.exact_logits()),
    )
    for quantity, values in exact.items():
        yield RoundingError(
            family=problem.family,
            hidden=problem.input.shape[1],
            quantity=quantity,
            own_rows=_mean_squares(own[quantity].double() - values),
            torch_rows=_mean_squares(by_torch[quantity].double() - values),
            one_rounding=float(_half_a_unit(values).square().mean().sqrt()),
        )


def _by_kernel(kernel: str, problem: Problem) -> dict[str, Tensor]:
    chosen = kernels.get(kernel)
    logits = torch.empty(problem.input.shape[0], problem.weight.shape[0])
    call = Operands(
        problem.input,
        problem.weight,
        problem.bias,
        scale=1.0,
        softcap=None,
        temperature=None,
        valid_vocab=logits.shape[1],
    )
    found = chosen.logits(call, logits)
    return {
        "logits": logits,
        "max": found.max,
        "sum_exp": found.sum_exp,
        "log(sum_exp)": chosen.log(found.sum_exp),
        "log_sum_exp": MaxSum(found.max, found.sum_exp).log_sum_exp,
    }


def _by_torch(logits: Tensor) -> dict[str, Tensor]:
    """By torch's operations in the dtype of the logits."""
    largest = logits.max(dim=1).values
    sum_exp = torch.exp(logits - largest[:, None]).sum(dim=1)
    return {
        "logits": logits,
        "max": largest,
        "sum_exp": sum_exp,
        "log(sum_exp)": sum_exp.log(),
        "log_sum_exp": logits.logsumexp(dim=1),
    }


def _mean_squares(errors: Tensor) -> Tensor:
    return errors.square().reshape(errors.shape[0], -1).mean(dim=1)


def _half_a_unit(exact: Tensor) -> Tensor:
    """Half of the distance between fp32 numbers around each value: the most that rounding it can cost."""
    _, exponent = torch.frexp(exact)  # |exact| in [2^(exponent - 1), 2^exponent)
    return torch.ldexp(torch.ones_like(exact), exponent - 25)
