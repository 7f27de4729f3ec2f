"""Whether bits repeat: in runs of the same call, and of rows when the batch is computed in pieces.

Counted are the comparisons (torch.equal of the raw bits) that failed. Ours has a bar of 0; the others' counts are
information: they promise nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from benchmarks.contenders import Contender, Work, missing, title
from benchmarks.gpu.contenders import LOSSES, OURS, STATISTICS, Loss, tensors
from benchmarks.gpu.device import Device
from benchmarks.results import Measure
from benchmarks.training.contenders import forget_gradients, gradients
from steadysum.diagnosis.arguments import Shape
from steadysum.diagnosis.compare import bits_equal

RUNS = 10
INTERPRETED_RUNS = 2
RUN_TO_RUN = "each other, run to run"
SPLIT = "the batch in pieces"
PIECES = (1 / 7, 1 / 2)  # cuts at these shares of the rows: at no multiple of a power of two for most batches


def measure_bits(device: Device, shape: Shape, dtype: str) -> Iterator[Measure]:
    """Statistics; then every loss with its gradients."""
    runs = INTERPRETED_RUNS if device.interpreted else RUNS
    work = device.work(shape, dtype)
    yield from _statistics(title(shape, dtype), work, runs)
    for loss in LOSSES:
        yield from _loss(f"{title(shape, dtype)}, with gradients", loss, work, runs)


def pieces(work: Work) -> list[Work]:
    """The rows in pieces; each piece's operands are leaves of their own."""
    rows = len(work.input)
    bounds = sorted({0, *(max(1, int(share * rows)) for share in PIECES), rows})
    return [
        Work(work.input.detach()[start:stop].clone().requires_grad_(), work.weight, work.target[start:stop])
        for start, stop in pairwise(bounds)
    ]


def unequal(first: tuple[Tensor, ...], others: list[tuple[Tensor, ...]]) -> int:
    """How many of the others differ from the first in any bit."""
    return sum(not all(map(bits_equal, first, other)) for other in others)


def _statistics(what: str, work: Work, runs: int) -> Iterator[Measure]:
    with torch.no_grad():
        first, *others = (tensors(STATISTICS.call(work)) for _ in range(runs))
        parts = [tensors(STATISTICS.call(piece)) for piece in pieces(work)]
    yield _measure(what, STATISTICS, RUN_TO_RUN, unequal(first, others), len(others), 0.0)
    yield _measure(what, STATISTICS, SPLIT, unequal(first, [_joined(parts)]), 1, 0.0)


def _loss(what: str, loss: Loss, work: Work, runs: int) -> Iterator[Measure]:
    contender, bar = loss.with_gradients, 0.0 if loss is OURS else None
    reason = missing(contender)
    try:
        if reason is None:
            first, *others = (_mean(loss, work) for _ in range(runs))
            yield _measure(what, contender, RUN_TO_RUN, unequal(first, others), len(others), bar)
            if loss.has_rows:
                parts = [_rows(loss, piece) for piece in pieces(work)]
                yield _measure(what, contender, SPLIT, unequal(_rows(loss, work), [_joined(parts)]), 1, bar)
    except Exception as error:  # a peer's failure is a line of the table, not the end of the benchmark
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    finally:
        forget_gradients(work)
    if reason is not None:
        yield Measure(what, contender.name, RUN_TO_RUN, None, bar, note=reason)


def _mean(loss: Loss, work: Work) -> tuple[Tensor, ...]:
    """The mean loss and all gradients."""
    forget_gradients(work)
    values = tensors(loss.with_gradients.call(work))
    return (*(each.detach() for each in values), *gradients(work))


def _rows(loss: Loss, work: Work) -> tuple[Tensor, ...]:
    """The rows' losses and gradients of input, which no other row has part in."""
    forget_gradients(work)
    losses = loss.call(work, "none")
    losses.backward(torch.ones_like(losses))  # type: ignore[no-untyped-call]
    of_rows, _ = gradients(work)
    return losses.detach(), of_rows


def _joined(parts: list[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))


def _measure(what: str, contender: Contender, against: str, count: int, of: int, bar: float | None) -> Measure:
    return Measure(what, contender.name, against, float(count), bar, f"{count} of {of} comparisons", unit="unequal")
