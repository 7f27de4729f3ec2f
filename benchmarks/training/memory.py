"""Peak memory of values and gradients above the operands, the values and the gradients, each in a process of its own.

Run as a module with --one NAME (N,H,V or real) DTYPE it is that process.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch

from benchmarks.contenders import Contender, missing
from benchmarks.high_water import AGAINST, MIB, Sizes, extra_memory, measure_elsewhere, show_sizes
from benchmarks.memory import WARM_SHAPE
from benchmarks.results import Measure
from benchmarks.training.bars import QUICK_SHAPE, SHAPES
from benchmarks.training.contenders import OURS, PER_ROW, SCALAR, by_name, forget_gradients, gradients
from benchmarks.training.problems import Problem, parse_problem
from steadysum.diagnosis.arguments import Shape

BAR_MIB = 64.0
BAR_OF_EACH_COLUMN = 1024 / MIB  # only where gradients are formed in the forward pass
FP32_BYTES = 4


def measure_training_memory(quick: bool) -> Iterator[Measure]:
    """Ours with its bars, one measure at a time."""
    shapes: tuple[Shape | None, ...] = (QUICK_SHAPE,) if quick else (*SHAPES, None)
    for shape in shapes:
        for contender in (*SCALAR, *PER_ROW):
            yield peak_memory(contender, Problem("fp32", shape), with_bar=True)
        yield peak_memory(OURS, Problem("bf16", shape), with_bar=True)


def peak_memory(contender: Contender, problem: Problem, with_bar: bool) -> Measure:
    """Measured in a process of its own.

    Args:
        contender: what is called once.
        problem: on which operands.
        with_bar: whether `contender` is one of ours and has a bar.
    """
    if (reason := problem.missing()) is not None:
        return Measure(problem.title, contender.name, AGAINST, None, None, reason)
    bar = _bar(contender, problem) if with_bar else None
    if (reason := missing(contender)) is not None:
        return Measure(problem.title, contender.name, AGAINST, None, bar, reason)
    arguments = (contender.name, *problem.arguments)
    return measure_elsewhere("benchmarks.training.memory", arguments, problem.title, contender.name, bar)


def _bar(contender: Contender, problem: Problem) -> float:
    """In MiB."""
    if contender in PER_ROW:
        return BAR_MIB
    rows, hidden, vocabulary = problem.sizes()
    bar = BAR_MIB + BAR_OF_EACH_COLUMN * vocabulary
    if contender is not OURS:
        bar += FP32_BYTES * (rows + vocabulary) * hidden / MIB  # one more copy of the gradients
    if problem.dtype != "fp32":
        bar += FP32_BYTES * vocabulary * hidden / MIB  # the accumulator of the weight gradient
    return bar


def run_one(name: str, problem: Problem) -> Sizes:
    """In a fresh process."""
    contender = by_name(name)
    warm = Problem(problem.dtype, WARM_SHAPE).load()
    contender.call(warm)
    forget_gradients(warm)
    work = problem.load()

    def call() -> tuple[torch.Tensor, ...]:
        values: tuple[torch.Tensor, ...] = contender.call(work)
        return (*values, *gradients(work))

    return extra_memory(call, (work.input, work.weight, work.target))


if __name__ == "__main__":
    marker, name, sizes, dtype = sys.argv[1:]
    assert marker == "--one"
    show_sizes(run_one(name, parse_problem(sizes, dtype)))
