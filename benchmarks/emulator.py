"""The emulated device: calls a second at the report's shape on one core, and its time over eager's at an LM head.

The bars are on the virtual runner, with the log kept, as users run it. Not here: the operator itself (bars.py).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from benchmarks.bars import QUICK_ROUNDS
from benchmarks.results import Measure
from steadysum import linear_max_sum
from steadysum.cores.device import CORES, Device
from steadysum.diagnosis.arguments import Shape
from steadysum.diagnosis.operands import random_operands
from steadysum.diagnosis.probes import torch_threads
from steadysum.settings import Settings
from steadysum.sync.policies import POLICIES
from steadysum.timing import measure_in_turn, median_ratio, wall_clock

REPORT_SHAPE = Shape(1024, 256, 512)
HEAD_SHAPE = Shape(1024, 768, 32000)
SLOWEST_CALL = 20.0  # milliseconds: 50 calls a second
HEAD_BAR = 3.0
BARRED = (0, 1)  # legacy and enhanced; the other two do more than the vendor's kernel: twice the work, and checks
CALLS = 101


def measure_emulator(quick: bool) -> Iterator[Measure]:
    """A measure for each policy and shape; the bars are on `legacy` and `enhanced`."""
    with torch_threads(1):
        for policy in range(len(POLICIES)):
            yield _calls(policy, 2 * QUICK_ROUNDS if quick else CALLS)
        shape = Shape(256, 768, 8000) if quick else HEAD_SHAPE
        for policy in range(len(POLICIES)):
            yield _beside_eager(policy, shape, quick)


def _calls(policy: int, calls: int) -> Measure:
    device, operands = Device(CORES, Settings(allreduce_policy=policy)), random_operands(REPORT_SHAPE, torch.float32, 0)
    device.linear_max_sum(operands.input, operands.weight)
    seconds = [wall_clock(lambda: device.linear_max_sum(operands.input, operands.weight)) for _ in range(calls)]
    median = float(np.median(seconds))
    return Measure(
        _title(REPORT_SHAPE),
        f"device, {POLICIES[policy]}",
        "",
        1000 * median,
        SLOWEST_CALL if policy in BARRED else None,
        f"{1 / median:.0f} calls a second on one thread; {len(seconds) / sum(seconds):.0f} over all of them",
        {"device": median},
        calls,
        unit="ms",
    )


def _beside_eager(policy: int, shape: Shape, quick: bool) -> Measure:
    device, operands = Device(CORES, Settings(allreduce_policy=policy)), random_operands(shape, torch.float32, 0)
    name = f"device, {POLICIES[policy]}"
    timings = measure_in_turn(
        {
            name: lambda: device.linear_max_sum(operands.input, operands.weight),
            "eager": lambda: linear_max_sum(operands.input, operands.weight, kernel="eager"),
        },
        QUICK_ROUNDS if quick else None,
    )
    seconds = {key: np.asarray(times[: timings.rounds]) for key, times in timings.seconds.items()}
    return Measure(
        _title(shape),
        name,
        "kernel eager, one thread",
        median_ratio(seconds[name] / seconds["eager"]),
        HEAD_BAR if policy in BARRED else None,
        "",
        {key: float(np.median(times)) for key, times in seconds.items()},
        timings.rounds,
    )


def _title(shape: Shape) -> str:
    return f"{shape.rows} x {shape.hidden} x {shape.vocabulary}, {CORES} cores"
