"""Peak extra memory, forward and without gradients, each contender in a process of its own.

Run as a module with --one NAME N,H,V DTYPE it is that process.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch

from benchmarks.contenders import (
    ALL,
    LOSS,
    PRODUCT_INTO_BUFFER,
    STATISTICS,
    Contender,
    by_name,
    make_work,
    missing,
    title,
)
from benchmarks.high_water import AGAINST, Sizes, extra_memory, measure_elsewhere, show_sizes
from benchmarks.results import Measure
from steadysum.diagnosis.arguments import Shape, parse_shape

BAR_MIB = 64.0
SHAPE = Shape(4096, 1024, 128256)
QUICK_SHAPE = Shape(512, 256, 32000)
# Loads libraries, starts threads and compiles before the mark is set. No two sizes are equal: a compiler would take
# that for a rule, and compile again.
WARM_SHAPE = Shape(96, 64, 1024)


def measure_memory(quick: bool) -> Iterator[Measure]:
    """Ours with the bar, and every peer as information."""
    shape = QUICK_SHAPE if quick else SHAPE
    for contender in (contender for contender in ALL if contender is not PRODUCT_INTO_BUFFER):
        yield _measure(contender, shape, "fp32", BAR_MIB if contender in (STATISTICS, LOSS) else None)
    yield _measure(STATISTICS, shape, "bf16", BAR_MIB)


def _measure(contender: Contender, shape: Shape, dtype: str, bar: float | None) -> Measure:
    if (reason := missing(contender)) is not None:
        return Measure(title(shape, dtype), contender.name, AGAINST, None, bar, reason)
    arguments = (contender.name, ",".join(map(str, shape)), dtype)
    return measure_elsewhere("benchmarks.memory", arguments, title(shape, dtype), contender.name, bar)


def run_one(name: str, shape: Shape, dtype: str) -> Sizes:
    """In a fresh process."""
    contender = by_name(name)
    with torch.no_grad():
        contender.call(make_work(WARM_SHAPE, dtype))
        work = make_work(shape, dtype)

        def call() -> tuple[torch.Tensor, ...]:
            result = contender.call(work)
            return result if isinstance(result, tuple) else (result,)

        return extra_memory(call, (work.input, work.weight, work.target))


if __name__ == "__main__":
    marker, name, sizes, dtype = sys.argv[1:]
    assert marker == "--one"
    show_sizes(run_one(name, parse_shape(sizes), dtype))
