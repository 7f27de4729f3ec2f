"""Time over the bare product: statistics and losses forward, and losses with gradients over three bare products.

All contenders run in turn in the same rounds, timed by the device's own clock; the rule is that of docs/speed.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch

from benchmarks.bars import SHORTEST_SECONDS, repeated
from benchmarks.contenders import PRODUCT, Contender, Work, missing, title
from benchmarks.gpu.contenders import FORWARD, LOSSES, OURS, STATISTICS, TRAINING
from benchmarks.gpu.device import Device
from benchmarks.peers import AGREEMENT
from benchmarks.results import Measure
from benchmarks.training.contenders import THREE_PRODUCTS, bare_products, bound, forget_gradients
from steadysum.diagnosis.arguments import Shape
from steadysum.timing import measure_in_turn

FORWARD_BAR = 1 / 0.90  # 16-bit statistics: at least 0.90 of the speed of the bare product in the same dtype
WARM_CALLS = 3  # compilation, autotuning of peers, the allocator's first blocks


def measure_forward(device: Device, shape: Shape, dtype: str, rounds: int | None) -> Iterator[Measure]:
    """Statistics and losses, without gradients."""
    work = device.work(shape, dtype)

    def call(contender: Contender) -> Callable[[], object]:
        def forward() -> None:
            with torch.no_grad():
                contender.call(work)

        return forward

    bars = {STATISTICS.name: FORWARD_BAR} if dtype != "fp32" else {}
    for measure in _side_by_side(device, title(shape, dtype), FORWARD, call, {}, PRODUCT.name, bars, rounds):
        yield replace(measure, note=measure.note + _disagreement(measure, work, dtype))


def measure_training(device: Device, shape: Shape, dtype: str, rounds: int | None) -> Iterator[Measure]:
    """The mean loss with its gradients."""
    work = device.work(shape, dtype)
    products = {THREE_PRODUCTS: bare_products(work, forward=1)}

    def call(contender: Contender) -> Callable[[], object]:
        return bound(contender, work)

    yield from _side_by_side(
        device, f"{title(shape, dtype)}, with gradients", TRAINING, call, products, THREE_PRODUCTS, {}, rounds
    )
    forget_gradients(work)


def _disagreement(measure: Measure, work: Work, dtype: str) -> str:
    """Says if a loss isn't ours, so that a peer that computes something else shows."""
    loss = next((each for each in LOSSES if each.name == measure.contender), None)
    if loss is None or measure.value is None:
        return ""
    with torch.no_grad():
        theirs, ours = (float(each.call(work, "mean")) for each in (loss, OURS))
    if abs(theirs - ours) <= AGREEMENT.get(dtype, AGREEMENT["bf16"]) * abs(ours):
        return ""
    return f"; its loss {theirs:.6g} differs from ours, {ours:.6g}"


def _side_by_side(
    device: Device,
    what: str,
    contenders: Sequence[Contender],
    bind: Callable[[Contender], Callable[[], object]],
    baselines: dict[str, Callable[[], object]],
    against: str,
    bars: dict[str, float],
    rounds: int | None,
) -> Iterator[Measure]:
    calls, unable = dict(baselines), dict[str, str]()
    for contender in contenders:
        call = bind(contender)
        reason = missing(contender) or failure(call, device)
        if reason is None:
            calls[contender.name] = call
        else:
            unable[contender.name] = reason
    computes = {contender.name: contender.computes for contender in contenders}
    if against in calls:
        quickest = min(device.seconds(call) for call in calls.values())
        times = 1 if device.interpreted else math.ceil(SHORTEST_SECONDS / quickest)
        turns = {name: repeated(times, call) for name, call in calls.items()}
        timings = measure_in_turn(turns, rounds, clock=device.seconds)
        for name in calls:
            seconds = timings.median(name) / times
            yield Measure(
                work=what,
                contender=name,
                against=against,
                value=timings.ratio(name, against),
                bar=None if device.interpreted else bars.get(name),
                note=f"{seconds * 1e3:.3g} ms; {computes.get(name, 'products')}",
                seconds={name: seconds},
                rounds=timings.rounds,
            )
    for name, reason in unable.items():
        yield Measure(what, name, against, None, bars.get(name), note=reason)


def failure(call: Callable[[], object], device: Device) -> str | None:
    """Warms a call up; why it can't run, if it can't: a line of the table, not the end of the benchmark."""
    try:
        for _ in range(1 if device.interpreted else WARM_CALLS):
            call()
    except Exception as error:
        device.free()
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    return None
