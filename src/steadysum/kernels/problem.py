"""What a kernel is asked to compute: the operands, their description, and the statistics that come back.

Not here: checking what a user passed (ops/arguments.py), or choosing a kernel (registry.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import torch
from torch import Tensor

from steadysum.tiling import Shard

__all__ = ["FLOATS", "SIXTEEN_BIT", "Operands", "Problem", "Statistics", "statistics_dtype"]

SIXTEEN_BIT: Final = (torch.bfloat16, torch.float16)
FLOATS: Final = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

CPU: Final = torch.device("cpu")


def statistics_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of logits and statistics: fp32, or fp64 for fp64 operands."""
    return torch.float64 if dtype == torch.float64 else torch.float32


@dataclass(frozen=True)
class Problem:
    """The description of a call, without its tensors: what a kernel needs in order to say whether it can run it.

    >>> Problem(rows=4, hidden=256, vocab=512).dtype
    torch.float32
    """

    rows: int
    hidden: int
    vocab: int
    dtype: torch.dtype = torch.float32
    device: torch.device = CPU
    bias_dtype: torch.dtype | None = None
    scale: float = 1.0
    softcap: float | None = None
    has_temperature: bool = False
    valid_vocab: int | None = None  # None: all columns are real
    shard: Shard | None = None  # None: the weight is a whole vocabulary
    wants: frozenset[str] = frozenset({"max_sum"})  # see Operands.problem

    @classmethod
    def of(cls, input: Tensor, weight: Tensor) -> Problem:
        """The description of linear_max_sum(input, weight); dataclasses.replace adds options to it.

        >>> Problem.of(torch.zeros(2, 3, 8), torch.zeros(100, 8)).rows
        6
        """
        return cls(
            rows=math.prod(input.shape[:-1]),
            hidden=weight.shape[1],
            vocab=weight.shape[0],
            dtype=input.dtype,
            device=input.device,
        )


@dataclass(frozen=True, eq=False)  # eq of tensors has no truth value
class Operands:
    """The checked operands of a call, rows flattened to one dimension; the strides are the caller's."""

    input: Tensor  # [M, H]
    weight: Tensor  # [V, H], dtype of input
    bias: Tensor | None  # [V], dtype of input or fp32
    scale: float
    softcap: float | None
    temperature: Tensor | None  # [1] or [N], contiguous, statistics_dtype
    valid_vocab: int  # columns from here on are masked with -inf
    target: Tensor | None = None  # [N], int64, contiguous
    wants_weighted_sum: bool = False
    wants_ties: bool = False
    column_weight: Tensor | None = None  # [V], contiguous, statistics_dtype: class weights
    wants_column_sum: bool = False
    dense: Tensor | None = None  # [N, V], any floating dtype and strides: class probabilities, or an upstream gradient
    # The rows that take part: row i of the call (of N) is row kept[i] of input. None: all, and N = M.
    kept: Tensor | None = None  # [N], int64, ascending
    # Where these are some rows of a call of the caller's: which ones, for messages. None: they are its rows.
    numbers: Tensor | range | None = None  # [N]
    # Where the weight lies in a larger vocabulary, which decides how it is cut. Targets, class weights and the dense
    # matrix go by the weight's own columns.
    shard: Shard | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of logits and statistics."""
        return statistics_dtype(self.input.dtype)

    @property
    def size(self) -> int:
        """N, the number of rows that take part."""
        return self.input.shape[0] if self.kept is None else self.kept.shape[0]

    def problem(self, *, wants_logits: bool = False, wants_gradients: bool = False) -> Problem:
        """The description of these operands."""
        wants = {
            "max_sum": True,
            "target_logit": self.target is not None,
            "weighted_sum": self.wants_weighted_sum,
            "ties": self.wants_ties,
            "column_sum": self.wants_column_sum,
            "dense_sum": self.dense is not None,
            "logits": wants_logits,
            "gradients": wants_gradients,
        }
        return Problem(
            rows=self.size,
            hidden=self.input.shape[1],
            vocab=self.weight.shape[0],
            dtype=self.input.dtype,
            device=self.input.device,
            bias_dtype=None if self.bias is None else self.bias.dtype,
            scale=self.scale,
            softcap=self.softcap,
            has_temperature=self.temperature is not None,
            valid_vocab=self.valid_vocab,
            shard=self.shard,
            wants=frozenset(name for name, wanted in wants.items() if wanted),
        )

    def rows(self, start: int, stop: int) -> Operands:
        """The same call for rows [start, stop) of those that take part: views, no copies, unless rows are left out."""
        temperature = self.temperature
        if temperature is not None and self.temperature_per_row:
            temperature = temperature[start:stop]
        numbers = self.numbers
        if numbers is None:
            numbers = range(self.size) if self.kept is None else self.kept
        return replace(
            self,
            input=self.input[start:stop] if self.kept is None else self.input[self.kept[start:stop]],
            temperature=temperature,
            target=None if self.target is None else self.target[start:stop],
            dense=None if self.dense is None else self.dense[start:stop],
            kept=None,
            numbers=numbers[start:stop],
        )

    @property
    def temperature_per_row(self) -> bool:
        """Whether each row has a temperature of its own."""
        return self.temperature is not None and self.temperature.shape[0] == self.size


class Statistics(NamedTuple):
    """Per row [N], in statistics_dtype or wider; those that the operands ask for."""

    max: Tensor
    sum_exp: Tensor
    target_logit: Tensor | None = None  # with a target
    weighted_sum: Tensor | None = None  # wants_weighted_sum: sum of exp(z - max) * (z - max), which entropy needs
    ties: Tensor | None = None  # wants_ties: the number of logits equal to max
    # With w the column weight (1 without) and Q the dense matrix, each sum over the columns that are not masked:
    column_sum: Tensor | None = None  # wants_column_sum: sum of w (z - max), which label smoothing needs
    dense_total: Tensor | None = None  # with dense: sum of w Q
    dense_sum: Tensor | None = None  # with dense: sum of w Q (z - max)
    dense_exp: Tensor | None = None  # with dense: sum of Q exp(z - max)

    def rows(self, start: int, stop: int) -> Statistics:
        """Those of rows [start, stop)."""
        return Statistics(*(None if column is None else column[start:stop] for column in self))  # type: ignore[arg-type]
