"""Operators with a planted fault, beside a right one, for the tests of probes, verdicts and whole checks.

Operands are small integers, for which every order of summation gives the same logits: equality needs no tolerance.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from steadysum.diagnosis.subject import Operands, Subject
from steadysum.maxsum import MaxSum

ALL = frozenset({"run-to-run", "batch", "threads"})
ROWS, HIDDEN, VOCABULARY = 24, 16, 64

Fault = Callable[[Tensor, Tensor, MaxSum], None]  # (input, weight, right result): changes the result in place


def right(input: Tensor, weight: Tensor) -> MaxSum:
    """The statistics by their definition, in float64, rounded once; no operation here wakes torch's threads."""
    logits = (input.double()[:, None] * weight.double()).sum(2)
    largest = logits.amax(1)
    terms = torch.from_numpy(np.exp((logits - largest[:, None]).numpy()))  # torch's own exp shares out even this much
    return MaxSum(largest.float(), terms.sum(1).float())


def one_ulp_up(values: Tensor, rows: Tensor | slice | int) -> None:
    values[rows] = torch.nextafter(values[rows], torch.tensor(torch.inf))


COUNT = """
calls = 0

def count():
    global calls
    calls += 1
    return calls
"""


@pytest.fixture
def user_file(tmp_path: Path) -> Callable[[str], Path]:
    """Writes operators to a file, as a user's would be; count() in it says which call of its process it is."""

    def write(operators: str) -> Path:
        path = tmp_path / "operators.py"
        path.write_text(COUNT + operators)
        return path

    return write


@pytest.fixture
def operands() -> Operands:
    generator = torch.Generator().manual_seed(0)
    draw = torch.randint(-3, 4, (ROWS + VOCABULARY, HIDDEN), generator=generator).float()
    return Operands(draw[:ROWS].contiguous(), draw[ROWS:].contiguous(), "small integers")


@pytest.fixture
def subject() -> Subject:
    """An operator without a fault."""
    return Subject("right", right, ALL)


@pytest.fixture
def broken() -> Callable[[Fault], Subject]:
    """Makes an operator that promises everything, with a fault."""

    def make(fault: Fault, promises: frozenset[str] = ALL) -> Subject:
        def call(input: Tensor, weight: Tensor) -> MaxSum:
            result = right(input, weight)
            fault(input, weight, result)
            return result

        return Subject("broken", call, promises)

    return make


@pytest.fixture
def faults() -> dict[str, Fault]:
    """Faults by name; those that remember earlier calls are made anew for each test."""
    generator = torch.Generator().manual_seed(1)
    calls = [0]

    def random_row(input: Tensor, weight: Tensor, result: MaxSum) -> None:
        """In 10 % of calls, a row lacks the second half of the vocabulary: a partial that was read too early."""
        if torch.rand((), generator=generator) < 0.1:
            row = int(torch.randint(input.shape[0], (), generator=generator))
            stale = right(input[row : row + 1], weight[: weight.shape[0] // 2])
            result.max[row], result.sum_exp[row] = stale.max[0], stale.sum_exp[0] * 0.5

    def every_second_call(input: Tensor, weight: Tensor, result: MaxSum) -> None:
        calls[0] += 1
        if calls[0] % 2 == 0:
            result.sum_exp[-1] *= 2.0

    def alone(input: Tensor, weight: Tensor, result: MaxSum) -> None:
        if input.shape[0] == 1:
            one_ulp_up(result.sum_exp, slice(None))

    def place(input: Tensor, weight: Tensor, result: MaxSum) -> None:
        """Rows in the first places are rounded another way, where the batch is whole."""
        if input.shape[0] == ROWS:
            one_ulp_up(result.sum_exp, slice(0, 4))

    def threads(input: Tensor, weight: Tensor, result: MaxSum) -> None:
        if torch.get_num_threads() == 3:
            one_ulp_up(result.max, 2)

    def always(input: Tensor, weight: Tensor, result: MaxSum) -> None:
        """The second half of the vocabulary is never seen."""
        stale = right(input, weight[: weight.shape[0] // 2])
        result.max.copy_(stale.max)
        result.sum_exp.copy_(stale.sum_exp)

    def nan(input: Tensor, weight: Tensor, result: MaxSum) -> None:
        calls[0] += 1
        if calls[0] == 5:
            result.max[3] = torch.nan

    def raises_alone(input: Tensor, weight: Tensor, result: MaxSum) -> None:
        if input.shape[0] == 1:
            raise RuntimeError("no tiles for one row")

    named = (random_row, every_second_call, alone, place, threads, always, nan, raises_alone)
    return {fault.__name__: fault for fault in named}
