"""Ours and every other library's loss with its gradients in turn on one problem: time over three bare products, memory.

Information, without bars. Each loss is compared with the plain fp32 one, so that a peer that computes something else
shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch

from benchmarks.contenders import Contender, Work, missing
from benchmarks.peers import AGREEMENT
from benchmarks.results import Measure
from benchmarks.training.bars import (
    QUICK_ROUNDS,
    QUICK_SHAPE_OF_PEERS,
    SHAPES,
    SHAPES_OF_SLOW_PEERS,
)
from benchmarks.training.contenders import (
    CHUNKED_PEER,
    OURS,
    PEERS,
    THREE_PRODUCTS,
    bare_products,
    bound,
    forget_gradients,
    plain_loss,
    products_into_buffers,
)
from benchmarks.training.memory import peak_memory
from benchmarks.training.problems import Problem, in_dtype
from steadysum.timing import Timings, measure_in_turn

FEW_ROUNDS = 3  # where a round of all contenders takes minutes: enough for a ratio that is information
REFERENCE = f"{THREE_PRODUCTS}, fp32"  # also beside 16-bit contenders
INTO_BUFFERS = f"{THREE_PRODUCTS}, fp32, into buffers"
EVERYONE = (OURS, *PEERS)
FAST_IN_BF16 = (OURS, CHUNKED_PEER)


class Lineup(NamedTuple):
    """Who is measured together, on what."""

    problem: Problem
    contenders: Sequence[Contender]
    rounds: int | None  # None: by the rule


*_MIDDLE, _LARGEST = SHAPES
LINEUPS = (
    *(Lineup(Problem("fp32", shape), EVERYONE, None) for shape in _MIDDLE),
    Lineup(Problem("fp32", _LARGEST), EVERYONE, FEW_ROUNDS),
    Lineup(Problem("fp32", None), EVERYONE, None),
    *(Lineup(Problem("bf16", shape), FAST_IN_BF16, None) for shape in _MIDDLE),
    Lineup(Problem("bf16", _LARGEST), FAST_IN_BF16, FEW_ROUNDS),
    *(Lineup(Problem("bf16", shape), EVERYONE, FEW_ROUNDS) for shape in SHAPES_OF_SLOW_PEERS),
    Lineup(Problem("bf16", None), EVERYONE, FEW_ROUNDS),
)
QUICK = (
    Lineup(Problem("fp32", QUICK_SHAPE_OF_PEERS), EVERYONE, QUICK_ROUNDS),
    Lineup(Problem("bf16", QUICK_SHAPE_OF_PEERS), EVERYONE, QUICK_ROUNDS),
)


def measure_training_peers(quick: bool) -> Iterator[Measure]:
    """For each problem, the times of all, then their memory."""
    for lineup in QUICK if quick else LINEUPS:
        if (reason := lineup.problem.missing()) is not None:
            for contender in lineup.contenders:
                yield Measure(lineup.problem.title, contender.name, REFERENCE, None, note=reason)
            continue
        yield from _times(lineup)
        for contender in lineup.contenders:
            yield peak_memory(contender, lineup.problem, with_bar=False)


def _times(lineup: Lineup) -> Iterator[Measure]:
    """All contenders that can run, in turn in the same rounds."""
    work = lineup.problem.load()
    wide = in_dtype(work, torch.float32)
    calls: dict[str, Callable[[], object]] = {
        REFERENCE: bare_products(wide, forward=1),
        INTO_BUFFERS: products_into_buffers(wide),
    }
    torch.compiler.reset()  # a peer compiles for each dtype and rank, and gives up after eight of them
    notes = dict.fromkeys(calls, "")
    unable: dict[str, str] = {}
    plain = plain_loss(work)
    for contender in lineup.contenders:
        if (reason := missing(contender)) is not None:
            unable[contender.name] = reason
            continue
        try:
            notes[contender.name] = _agreement(contender, work, plain, lineup.problem.dtype)
        except Exception as error:  # a peer's failure is a line of the table, not the end of the benchmark
            unable[contender.name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        else:
            calls[contender.name] = bound(contender, work)
    timings = measure_in_turn(calls, lineup.rounds)
    for name, note in notes.items():
        yield _over_reference(lineup.problem, name, note, timings)
    for name, reason in unable.items():
        yield Measure(lineup.problem.title, name, REFERENCE, None, note=reason)


def _over_reference(problem: Problem, name: str, note: str, timings: Timings) -> Measure:
    seconds = timings.median(name)
    return Measure(
        work=problem.title,
        contender=name,
        against=REFERENCE,
        value=timings.ratio(name, REFERENCE),
        note=f"{seconds * 1e3:.3g} ms{note}",
        seconds={name: seconds},
        rounds=timings.rounds,
    )


def _agreement(contender: Contender, work: Work, plain: float, dtype: str) -> str:
    """Runs it once, and says if its loss isn't the plain one."""
    (value,) = contender.call(work)
    forget_gradients(work)
    loss = float(value.detach())
    if abs(loss - plain) <= AGREEMENT[dtype] * abs(plain):
        return ""
    return f"; its loss {loss:.6g} differs from the plain fp32 one, {plain:.6g}"
