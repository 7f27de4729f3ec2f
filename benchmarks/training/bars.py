"""The bars on training time: ours over bare products in fp32, and over every peer in bf16, each pair in turn.

Bars and rule are those of docs/speed.md. Timed is all of it: the values, their backward pass into fresh .grad, and
giving these back. Not here: memory, and peers as information.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch

from benchmarks.contenders import Contender, missing
from benchmarks.results import Measure
from benchmarks.training.contenders import (
    CHUNKED_PEER,
    FOUR_PRODUCTS,
    OURS,
    PEERS,
    PER_ROW,
    SCALAR,
    THREE_PRODUCTS,
    bare_products,
    bound,
)
from benchmarks.training.problems import Problem
from steadysum.diagnosis.arguments import Shape
from steadysum.timing import measure_in_turn

BAR = 1.10
PEER_BAR = 1.0  # faster

SHAPES = (Shape(2048, 768, 50304), Shape(1024, 1024, 32000), Shape(4096, 1024, 128256))
# What is measured at each shape. A pair of calls takes a minute at the largest.
PLAN = ((SHAPES[0], SCALAR, PER_ROW), (SHAPES[1], (OURS,), PER_ROW), (SHAPES[2], (OURS,), ()))
# On a CPU without 16-bit matrix units torch's bf16 product G @ W takes about 100 times the fp32 product's time, so that
# peers that use it would take minutes a call at the shapes above. Fewer rows favour them: what is done once for each
# weight, whatever the rows, weighs more.
SHAPES_OF_SLOW_PEERS = (Shape(64, 768, 50304), Shape(64, 1024, 32000), Shape(16, 1024, 128256))
SLOW_PEERS = tuple(peer for peer in PEERS if peer is not CHUNKED_PEER)  # torch's chunked loss multiplies in fp32

QUICK_SHAPE = Shape(128, 64, 4096)
QUICK_SHAPE_OF_PEERS = Shape(16, 64, 2048)
QUICK_ROUNDS = 3


def measure_training(quick: bool) -> Iterator[Measure]:
    """All bars, one measure at a time."""
    rounds = QUICK_ROUNDS if quick else None
    for shape, scalars, per_row in ((QUICK_SHAPE, SCALAR, PER_ROW),) if quick else PLAN:
        problem = Problem("fp32", shape)
        for contender in scalars:
            yield _over_products(contender, 3, problem, BAR if contender is OURS else None, rounds)
        for contender in per_row:
            yield _over_products(contender, 4, problem, BAR, rounds)
    for shape in (QUICK_SHAPE_OF_PEERS,) if quick else SHAPES[:2]:
        yield _over_peer(CHUNKED_PEER, Problem("bf16", shape), rounds)
    for shape in (QUICK_SHAPE_OF_PEERS,) if quick else SHAPES_OF_SLOW_PEERS:
        for peer in SLOW_PEERS:
            yield _over_peer(peer, Problem("bf16", shape), rounds)


def _over_products(
    contender: Contender, products: int, problem: Problem, bar: float | None, rounds: int | None
) -> Measure:
    """Ours over so many products of the same operands."""
    reference = {3: THREE_PRODUCTS, 4: FOUR_PRODUCTS}[products]
    if (reason := missing(contender)) is not None:
        return Measure(problem.title, contender.name, reference, None, bar, reason)
    work = problem.load()
    calls = {contender.name: bound(contender, work), reference: bare_products(work, forward=products - 2)}
    return _ratio(problem, contender.name, reference, calls, bar, rounds)


def _over_peer(peer: Contender, problem: Problem, rounds: int | None) -> Measure:
    """Ours over a peer's on the same operands. A peer that can't run sets no bar; the reason is reported."""
    if (reason := missing(peer)) is not None:
        return Measure(problem.title, OURS.name, peer.name, None, None, reason)
    work = problem.load()
    torch.compiler.reset()  # a peer compiles for each dtype and rank, and gives up after eight of them
    their_call = bound(peer, work)
    try:
        their_call()
    except Exception as error:
        return Measure(problem.title, OURS.name, peer.name, None, None, f"can't run: {type(error).__name__}")
    if (reason := missing(OURS)) is not None:
        return Measure(problem.title, OURS.name, peer.name, None, PEER_BAR, reason)
    calls = {OURS.name: bound(OURS, work), peer.name: their_call}
    return _ratio(problem, OURS.name, peer.name, calls, PEER_BAR, rounds)


def _ratio(
    problem: Problem,
    ours: str,
    theirs: str,
    calls: Mapping[str, Callable[[], object]],
    bar: float | None,
    rounds: int | None,
) -> Measure:
    timings = measure_in_turn(calls, rounds)
    seconds = {name: timings.median(name) for name in calls}
    note = f"{seconds[ours] * 1e3:.3g} ms against {seconds[theirs] * 1e3:.3g} ms"
    return Measure(problem.title, ours, theirs, timings.ratio(ours, theirs), bar, note, seconds, timings.rounds)
