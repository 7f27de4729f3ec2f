"""The bars on time: ours over torch's, each pair in turn in one process, the whole interval below the bar.

The bars and their rule are those of docs/speed.md. Not here: other libraries (peers.py), memory, imports.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch

from benchmarks.contenders import LOG_SUM_EXP, PRODUCT, STATISTICS, Contender, Work, make_work, title
from benchmarks.results import Measure
from steadysum.diagnosis.arguments import Shape
from steadysum.diagnosis.probes import torch_threads
from steadysum.timing import measure_in_turn, median_ratio

FP32_BAR = 1.05
SIXTEEN_BIT_BAR = 1.10 * FP32_BAR  # of the fp32 product's time
REPORT_BAR = 1.0
DECODING_BAR = 1.15
SCALING_BAR = 1 / 0.98  # our time with 2 threads over 1, divided by the product's

FP32_SHAPES = (
    Shape(1024, 768, 32000),
    Shape(2048, 768, 50304),
    Shape(1024, 1024, 32000),
    Shape(1024, 4096, 32000),
)
SIXTEEN_BIT_SHAPES = (Shape(1024, 768, 32000), Shape(1024, 1024, 32000))
REPORT_SHAPE = Shape(1024, 256, 512)
DECODING_SHAPES = (*(Shape(rows, 1024, 32000) for rows in range(1, 9)), Shape(1, 4096, 32000), Shape(8, 4096, 32000))
SCALING_SHAPE = Shape(1024, 768, 32000)
QUICK_SHAPE = Shape(256, 768, 32000)
QUICK_ROUNDS = 5
# What a check costs is less than two calls differ by, on a machine that others use too: more pairs than the rule's 21
# narrow the interval.
PAIRS_NEAR_A_BAR = 101

# One timing lasts at least this long: shorter calls are repeated, so that a timer tick or an interrupt weighs little.
SHORTEST_SECONDS = 0.05


def measure_bars(quick: bool) -> Iterator[Measure]:
    """All bars, one measure at a time."""
    rounds = QUICK_ROUNDS if quick else None
    for shape in (QUICK_SHAPE,) if quick else FP32_SHAPES:
        yield against(STATISTICS, PRODUCT, shape, "fp32", FP32_BAR, rounds)
    for shape in (QUICK_SHAPE,) if quick else SIXTEEN_BIT_SHAPES:
        for dtype in ("bf16", "fp16"):
            yield sixteen_bit(shape, dtype, rounds)
    yield against(STATISTICS, LOG_SUM_EXP, REPORT_SHAPE, "fp32", REPORT_BAR, rounds)
    for shape in DECODING_SHAPES[:1] if quick else DECODING_SHAPES:
        for dtype in ("fp32", "bf16"):
            yield against(STATISTICS, PRODUCT, shape, dtype, DECODING_BAR, rounds)
    if torch.get_num_threads() >= 2:
        yield scaling(QUICK_SHAPE if quick else SCALING_SHAPE, rounds)
    else:
        yield Measure("2 threads against 1", STATISTICS.name, PRODUCT.name, None, SCALING_BAR, "torch has 1 thread")


def against(
    ours: Contender, theirs: Contender, shape: Shape, dtype: str, bar: float | None, rounds: int | None
) -> Measure:
    """Ours over theirs on the same operands."""
    work = make_work(shape, dtype)
    calls = {contender.name: bound(contender, work) for contender in (ours, theirs)}
    return _measure(title(shape, dtype), ours.name, theirs.name, calls, bar, rounds)


def sixteen_bit(shape: Shape, dtype: str, rounds: int | None) -> Measure:
    """Ours on 16-bit operands over torch's product of the same values in fp32."""
    narrow = make_work(shape, dtype)
    wide = Work(narrow.input.float(), narrow.weight.float(), narrow.target)
    reference = f"{PRODUCT.name}, fp32"
    calls = {STATISTICS.name: bound(STATISTICS, narrow), reference: bound(PRODUCT, wide)}
    return _measure(title(shape, dtype), STATISTICS.name, reference, calls, SIXTEEN_BIT_BAR, rounds)


def scaling(shape: Shape, rounds: int | None) -> Measure:
    """How much our time shrinks from 1 thread to 2, over how much the product's does: the ratio of the ratios."""
    work = make_work(shape, "fp32")
    calls = {
        f"{contender.name}, {threads}": with_threads(threads, bound(contender, work))
        for contender in (STATISTICS, PRODUCT)
        for threads in (1, 2)
    }
    timings = measure_in_turn(calls, rounds)
    seconds = {name: np.asarray(times[: timings.rounds]) for name, times in timings.seconds.items()}
    ours, theirs = (
        seconds[f"{contender.name}, 2"] / seconds[f"{contender.name}, 1"] for contender in (STATISTICS, PRODUCT)
    )
    return Measure(
        work=f"2 threads against 1, {title(shape, 'fp32')}",
        contender=STATISTICS.name,
        against=PRODUCT.name,
        value=median_ratio(ours / theirs),
        bar=SCALING_BAR,
        note=f"2 threads take {np.median(ours):.3f} of the time of 1; the product {np.median(theirs):.3f}",
        seconds={name: timings.median(name) for name in calls},
        rounds=timings.rounds,
    )


def bound(contender: Contender, work: Work) -> Callable[[], object]:
    """The call on these operands."""

    def call() -> object:
        with torch.no_grad():
            return contender.call(work)

    return call


def with_threads(threads: int, call: Callable[[], object]) -> Callable[[], object]:
    """The call, under this number of threads."""

    def limited() -> object:
        with torch_threads(threads):
            return call()

    return limited


def repeated(times: int, call: Callable[[], object]) -> Callable[[], object]:
    """The call, so many times."""

    def several() -> None:
        for _ in range(times):
            call()

    return several


def _measure(
    work: str,
    ours: str,
    theirs: str,
    calls: Mapping[str, Callable[[], object]],
    bar: float | None,
    rounds: int | None,
) -> Measure:
    trial = measure_in_turn(calls, rounds=2)
    quickest = min(min(seconds) for seconds in trial.seconds.values())
    times = math.ceil(SHORTEST_SECONDS / quickest)  # equal for both, so that the ratio is one of calls
    timings = measure_in_turn({name: repeated(times, call) for name, call in calls.items()}, rounds)
    medians = {name: timings.median(name) / times for name in calls}
    note = f"{medians[ours] * 1e3:.3g} ms against {medians[theirs] * 1e3:.3g} ms"
    return Measure(work, ours, theirs, timings.ratio(ours, theirs), bar, note, medians, timings.rounds)
