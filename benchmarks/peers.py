"""Ours and every other library in turn on one problem: each one's time over the bare product's.

Information, without bars. Each loss is compared with ours, so that a peer that computes something else shows.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.bars import bound
from benchmarks.contenders import ALL, LOSS, PRODUCT, Contender, Work, make_work, missing, title
from benchmarks.results import Measure
from steadysum.diagnosis.arguments import Shape
from steadysum.timing import measure_in_turn

SHAPES = (("fp32", Shape(1024, 768, 32000)), ("bf16", Shape(512, 768, 32000)))
QUICK = (("fp32", Shape(256, 256, 8192)),)
QUICK_ROUNDS = 5

# Losses of one problem agree to the rounding of the dtype that the slackest contender forms its logits in.
AGREEMENT = {"fp32": 1e-4, "bf16": 2e-2}


def measure_peers(quick: bool) -> Iterator[Measure]:
    """One measure for each contender and shape."""
    for dtype, shape in QUICK if quick else SHAPES:
        yield from side_by_side(dtype, shape, QUICK_ROUNDS if quick else None)


def side_by_side(dtype: str, shape: Shape, rounds: int | None) -> Iterator[Measure]:
    """All contenders that can run, in turn in the same rounds."""
    work = make_work(shape, dtype)
    unable = {contender.name: reason for contender in ALL if (reason := missing(contender)) is not None}
    notes: dict[str, str] = {}
    for contender in ALL:
        if contender.name not in unable:
            try:
                notes[contender.name] = _agreement(contender, work, dtype)
            except Exception as error:  # a peer's failure is a line of the table, not the end of the benchmark
                unable[contender.name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    calls = {contender.name: bound(contender, work) for contender in ALL if contender.name not in unable}
    timings = measure_in_turn(calls, rounds)
    for contender in ALL:
        if contender.name in unable:
            yield Measure(title(shape, dtype), contender.name, PRODUCT.name, None, note=unable[contender.name])
            continue
        seconds = timings.median(contender.name)
        yield Measure(
            work=title(shape, dtype),
            contender=contender.name,
            against=PRODUCT.name,
            value=timings.ratio(contender.name, PRODUCT.name),
            note=f"{seconds * 1e3:.3g} ms; {contender.computes}{notes[contender.name]}",
            seconds={contender.name: seconds},
            rounds=timings.rounds,
        )


def _agreement(contender: Contender, work: Work, dtype: str) -> str:
    """Runs it once, and says if its loss isn't ours."""
    with torch.no_grad():
        result = contender.call(work)
        if contender.computes != "loss":
            return ""
        ours, theirs = float(LOSS.call(work)), float(result)
    difference = abs(theirs - ours)
    return (
        "" if difference <= AGREEMENT[dtype] * abs(ours) else f"; its loss {theirs:.6g} differs from ours, {ours:.6g}"
    )
