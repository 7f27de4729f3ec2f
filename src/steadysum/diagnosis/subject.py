"""What a check runs: an operator of the form (input, weight) -> statistics, with what it promises about its bits.

A subject may wrap one of our kernels or any other callable, such as a broken one in a test.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from steadysum.maxsum import MaxSum
from steadysum.tiling import Shard


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

    def on(self, device: str) -> Operands:
        """The same on this device; no copy where they are there already."""
        return replace(self, input=self.input.to(device), weight=self.weight.to(device))


@dataclass(frozen=True)
class Subject:
    """An operator under check."""

    name: str
    call: Callable[[Tensor, Tensor], Sequence[Tensor]]  # (input [N, H], weight [V, H]) -> outputs, each [N, ...]
    promises: frozenset[str] = field(default_factory=frozenset)  # of "run-to-run", "batch", "threads", "shards"
    outputs: tuple[str, ...] = ("max", "sum_exp")  # names of the outputs, in order
    # (input, rows of the weight, where they lie in the vocabulary) -> its statistics; None: it knows no shards
    shard: Callable[[Tensor, Tensor, Shard], MaxSum] | None = None
    device: str = "cpu"  # where its operands must be; outputs are on the CPU, so that a call ends when they are known
    interpreted: str = ""  # what makes it run in an interpreter, hundreds of times slower; empty: nothing does

    def __call__(self, operands: Operands) -> tuple[Tensor, ...]:
        """One call over the whole batch."""
        return tuple(self.call(operands.input, operands.weight))
