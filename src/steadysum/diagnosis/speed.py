"""`steadysum bench` as a function: our statistics beside torch's product on the user's own shape.

The measurement itself is steadysum.timing. Not the benchmarks against other libraries: those are in benchmarks/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from rich.table import Table
from torch.nn.functional import linear

from steadysum.diagnosis.arguments import DTYPE_NAMES, Shape
from steadysum.diagnosis.environment import versions
from steadysum.diagnosis.memory import check_memory
from steadysum.diagnosis.operands import OperandSource
from steadysum.diagnosis.subject import Operands, Subject
from steadysum.tables import titled_table
from steadysum.timing import Ratio, Timings, measure_in_turn

SCHEMA = "steadysum.bench/1"
BENCH_SHAPE = Shape(1024, 768, 32000)  # the smallest LM head for which the performance contract has a bar
PRODUCT = "torch product"
PLAIN = "torch linear+logsumexp"


@dataclass(frozen=True)
class Speed:
    """One row of the speed table."""

    contender: str
    seconds: float  # median
    ratio: Ratio  # of its time to the product's
    gflops: float  # 2 N H V floating-point operations, whatever else it does
    weight_gbytes: float  # GB/s of W, read once: what bounds a call with few rows


@dataclass(frozen=True)
class SpeedReport:
    """The speed table of one problem."""

    shape: Shape
    dtype: str
    source: str
    threads: int
    rounds: int
    complete: bool  # all planned rounds ran
    speeds: tuple[Speed, ...]
    device: str = "cpu"
    interpreted: tuple[str, ...] = ()  # kernels whose times say nothing


def contenders(operands: Operands, subjects: Sequence[Subject]) -> dict[str, Callable[[], object]]:
    """What is timed in turn, the baseline first; on another device than the CPU, until the device is done."""
    input, weight = operands.input, operands.weight
    device = input.device.type

    def product() -> object:
        return linear(input, weight)

    def plain() -> object:
        return linear(input, weight).logsumexp(-1)

    def ours(subject: Subject) -> Callable[[], object]:
        return lambda: subject(operands)

    def finished(call: Callable[[], object]) -> Callable[[], object]:
        def until_done() -> None:
            call()
            torch.get_device_module(device).synchronize()

        return call if device == "cpu" else until_done

    calls = {PRODUCT: product, PLAIN: plain, **{f"steadysum {subject.name}": ours(subject) for subject in subjects}}
    return {name: finished(call) for name, call in calls.items()}


def run_bench(
    source: OperandSource,
    subjects: Sequence[Subject],
    rounds: int | None = None,  # None: the rule of steadysum.timing
    stopped: Callable[[], bool] = lambda: False,
    progressed: Callable[[], None] = lambda: None,
    planned: Callable[[int], None] = lambda _: None,
) -> Iterator[SpeedReport]:
    """Times every problem of the source, on each device that subjects need, since times compare on one device alone.

    The last report is incomplete, or missing, where it was stopped.
    """
    for operands in source.load():
        rows, _, vocabulary = operands.shape
        # torch's product, and in its logsumexp a second tensor of its size
        check_memory(
            ",".join(map(str, operands.shape)) + ", for which torch's logits take",
            2 * rows * vocabulary * operands.input.itemsize,
        )
        for device in dict.fromkeys(subject.device for subject in subjects):
            calls = 0

            def plan(count: int) -> None:
                nonlocal calls
                calls = count
                planned(count)

            here = [subject for subject in subjects if subject.device == device]
            turns = contenders(operands.on(device), here)
            timings = measure_in_turn(turns, rounds, stopped, progressed, plan)
            report = speed_report(operands, timings, complete=timings.rounds * len(turns) == calls)
            if report is not None:
                slow = tuple(subject.name for subject in here if subject.interpreted)
                yield replace(report, device=device, interpreted=slow)
            if stopped():
                return


def speed_report(operands: Operands, timings: Timings, complete: bool) -> SpeedReport | None:
    """The table's data; None if not even one round was finished."""
    if timings.rounds == 0:
        return None
    shape = Shape(*operands.shape)
    work = 2.0 * shape.rows * shape.hidden * shape.vocabulary
    weight_bytes = operands.weight.numel() * operands.weight.element_size()
    speeds = []
    for name in timings.seconds:
        seconds = timings.median(name)
        speeds.append(
            Speed(name, seconds, timings.ratio(name, PRODUCT), work / seconds / 1e9, weight_bytes / seconds / 1e9)
        )
    return SpeedReport(
        shape=shape,
        dtype=DTYPE_NAMES[operands.input.dtype],
        source=operands.source,
        threads=torch.get_num_threads(),
        rounds=timings.rounds,
        complete=complete,
        speeds=tuple(speeds),
    )


def speed_table(report: SpeedReport) -> Table:
    """The table for a terminal, from 80 columns on."""
    shape = report.shape
    heading = f"N={shape.rows} H={shape.hidden} V={shape.vocabulary} {report.dtype}, {report.source}"
    heading += "" if report.device == "cpu" else f", on {report.device}"
    rounds = f"{report.rounds} rounds in turn, {report.threads} threads{'' if report.complete else ', stopped early'}"
    slow = "".join(f"\n{name} is interpreted: its time says nothing" for name in report.interpreted)
    table = titled_table(f"{heading}\n{rounds}{slow}")
    table.add_column("contender", no_wrap=True)
    for column in ("median ms", "x product", "95 %\ninterval", "GFLOP/s", "GB/s of W"):
        table.add_column(column, justify="right", no_wrap=True)
    for speed in report.speeds:
        ratio = speed.ratio
        table.add_row(
            speed.contender,
            f"{speed.seconds * 1e3:.3g}" if speed.seconds < 1.0 else f"{speed.seconds * 1e3:.0f}",
            f"{ratio.median:.2f}",
            "-" if speed.contender == PRODUCT else f"{ratio.low:.2f}–{ratio.high:.2f}",
            f"{speed.gflops:.1f}",
            f"{speed.weight_gbytes:.1f}",
        )
    return table


def speed_document(reports: Sequence[SpeedReport], complete: bool) -> dict[str, Any]:
    """{schema, complete, environment, problems: [problem]}.

    A problem is {rows, hidden, vocabulary, dtype, source, device, interpreted, threads, rounds, complete, speeds};
    interpreted are the kernels whose times say nothing, since an interpreter ran them.
    complete is true once every problem has all its rounds; a stopped or killed run leaves its reports so far.
    A speed is {contender, seconds, ratio: {median, low, high}, gflops, weight_gbytes}.
    """
    return {
        "schema": SCHEMA,
        "complete": complete,
        "environment": versions(),
        "problems": [
            {
                **report.shape._asdict(),
                "dtype": report.dtype,
                "source": report.source,
                "device": report.device,
                "interpreted": list(report.interpreted),
                "threads": report.threads,
                "rounds": report.rounds,
                "complete": report.complete,
                "speeds": [
                    {
                        "contender": speed.contender,
                        "seconds": speed.seconds,
                        "ratio": speed.ratio._asdict(),
                        "gflops": speed.gflops,
                        "weight_gbytes": speed.weight_gbytes,
                    }
                    for speed in report.speeds
                ],
            }
            for report in reports
        ],
    }
