"""What a check runs: an operator of the form (input, weight) -> statistics, with what it promises about its bits.

A subject may wrap one of our kernels or any other callable, such as a broken one in a test.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class Operands:
    """The inputs that every call of a check gets: made or loaded once, and never written."""

    input: Tensor  # [N, H]
    weight: Tensor  # [V, H], dtype as input
    source: str = "random normal"  # where they come from, for the report

    @property
    def shape(self) -> tuple[int, int, int]:
        """(N, H, V)."""
        return self.input.shape[0], self.input.shape[1], self.weight.shape[0]


@dataclass(frozen=True)
class Subject:
    """An operator under check."""

    name: str
    call: Callable[[Tensor, Tensor], Sequence[Tensor]]  # (input [N, H], weight [V, H]) -> outputs, each [N, ...]
    promises: frozenset[str] = field(default_factory=frozenset)  # of "run-to-run", "batch", "threads", "shards"
    outputs: tuple[str, ...] = ("max", "sum_exp")  # names of the outputs, in order

    def __call__(self, operands: Operands) -> tuple[Tensor, ...]:
        """One call over the whole batch."""
        return tuple(self.call(operands.input, operands.weight))
