"""What a guarded layer costs: protect(layer) over the layer as it is, in turn, in one thread.

The bar is on a linear layer under Checksum, forward, its weight's checksums kept, as in inference; what a new version
of the weight costs, as in training, is shown beside it. Not here: what is seen for that price (docs/checks.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.bars import PAIRS_NEAR_A_BAR, QUICK_ROUNDS
from benchmarks.results import Measure
from steadysum import linear_max_sum
from steadysum.diagnosis.probes import torch_threads
from steadysum.guard import protect
from steadysum.guard.checks import Check, Checksum, EmbeddingGather, Finite, MaxSumInvariants, SampledRows
from steadysum.timing import measure_in_turn, median_ratio

BAR = 1.05
ROWS, HIDDEN, WIDTH = 4096, 1024, 4096
QUICK_ROWS = 512
VOCAB = 32000


def measure_guard(quick: bool) -> Iterator[Measure]:
    """A measure for each check and layer; the bar is on Checksum in fp32."""
    rows = QUICK_ROWS if quick else ROWS
    rounds = QUICK_ROUNDS if quick else None
    with torch_threads(1), torch.no_grad():
        yield _linear(Checksum(), torch.float32, rows, rounds or PAIRS_NEAR_A_BAR, BAR)
        yield _linear(Checksum(), torch.bfloat16, rows, rounds, None)
        yield _new_weight(rows, rounds)
        yield _linear(Finite(), torch.float32, rows, rounds, None)
        yield _linear(SampledRows(), torch.float32, rows, rounds, None)
        yield _embedding(rows, rounds)
        yield _statistics(rows // 4, rounds)


def _linear(check: Check, dtype: torch.dtype, rows: int, rounds: int | None, bar: float | None) -> Measure:
    layer = nn.Linear(HIDDEN, WIDTH, bias=False, dtype=dtype)
    x = torch.randn(rows, HIDDEN).to(dtype)
    guarded = protect(layer, checks=[check], bundles=None)
    work = f"Linear {rows} x {HIDDEN} x {WIDTH}, {str(dtype).removeprefix('torch.')}"
    return _measure(work, check.name, lambda: guarded(x), lambda: layer(x), rounds, bar)


def _new_weight(rows: int, rounds: int | None) -> Measure:
    layer = nn.Linear(HIDDEN, WIDTH, bias=False)
    x = torch.randn(rows, HIDDEN)
    guarded = protect(layer, checks=[Checksum()], bundles=None)

    def of_new_weight(call: Callable[[Tensor], Tensor]) -> Callable[[], Tensor]:
        def run() -> Tensor:
            layer.weight.mul_(1)  # a new version
            return call(x)

        return run

    work = f"Linear {rows} x {HIDDEN} x {WIDTH}, float32, new weight"
    return _measure(work, Checksum().name, of_new_weight(guarded), of_new_weight(layer), rounds, None)


def _embedding(rows: int, rounds: int | None) -> Measure:
    layer = nn.Embedding(VOCAB, HIDDEN)
    ids = torch.randint(VOCAB, (rows,))
    guarded = protect(layer, checks=[EmbeddingGather()], bundles=None)
    work = f"Embedding {rows} of {VOCAB} x {HIDDEN}"
    return _measure(work, EmbeddingGather().name, lambda: guarded(ids), lambda: layer(ids), rounds, None)


def _statistics(rows: int, rounds: int | None) -> Measure:
    x, w = torch.randn(rows, HIDDEN), torch.randn(VOCAB, HIDDEN)
    guarded = protect(linear_max_sum, checks=[MaxSumInvariants()], bundles=None)
    work = f"linear_max_sum {rows} x {HIDDEN} x {VOCAB}"
    return _measure(work, MaxSumInvariants().name, lambda: guarded(x, w), lambda: linear_max_sum(x, w), rounds, None)


def _measure(
    work: str,
    check: str,
    guarded: Callable[[], object],
    plain: Callable[[], object],
    rounds: int | None,
    bar: float | None,
) -> Measure:
    timings = measure_in_turn({check: guarded, "unguarded": plain}, rounds)
    seconds = {key: np.asarray(times[: timings.rounds]) for key, times in timings.seconds.items()}
    return Measure(
        work,
        f"protect, {check}",
        "unguarded, one thread",
        median_ratio(seconds[check] / seconds["unguarded"]),
        bar,
        "",
        {key: float(np.median(times)) for key, times in seconds.items()},
        timings.rounds,
    )
