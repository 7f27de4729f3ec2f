"""`steadysum bench`: how fast is the operator on your own shape, beside torch's bare product?"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.progress import TaskID

from steadysum.cli import options
from steadysum.cli.terminal import interruptible, progress_bar, stdout
from steadysum.diagnosis.arguments import parse_thread_count
from steadysum.diagnosis.checking import FIELD_SHAPE
from steadysum.diagnosis.document import write_json
from steadysum.diagnosis.probes import torch_threads
from steadysum.diagnosis.speed import BENCH_SHAPE, SpeedReport, run_bench, speed_document, speed_table
from steadysum.diagnosis.subjects import kernel_subjects

Rounds = Annotated[
    int | None,
    typer.Option(min=3, help="Calls of each contender.  [default: 21, or 7 above a second]", show_default=False),
]
Threads = Annotated[
    str | None, typer.Option(metavar="T", help="Threads of all contenders.  [default: torch's]", show_default=False)
]


def bench(
    shape: options.Shapes = None,
    dtype: options.Dtypes = None,
    rounds: Rounds = None,
    threads: Threads = None,
    weights: options.Weights = None,
    inputs: options.Inputs = None,
    kernel: options.Kernels = None,
    seed: options.Seed = 0,
    json: options.Json = None,
) -> None:
    """Time the operator beside torch's bare product, in turn.

    Ratios are medians over the rounds, with a bootstrap 95 % interval. GFLOP/s count the product's 2 N H V operations
    alone. Ctrl-C prints the rounds so far.
    """
    source = options.operand_source(shape, dtype, weights, inputs, seed, default=(FIELD_SHAPE, BENCH_SHAPE))
    subjects, _ = kernel_subjects(kernel or ())
    count = None if threads is None else parse_thread_count(threads)
    reports: list[SpeedReport] = []

    def write(complete: bool) -> None:
        if json is not None:
            write_json(speed_document(reports, complete), json)

    write(complete=False)  # before the work, so that a file that can't be written is known at once
    with torch_threads(count), interruptible() as interrupted, progress_bar() as progress:
        task: TaskID = progress.add_task("timing", total=None)

        def planned(calls: int) -> None:
            progress.reset(task, total=calls)

        for report in run_bench(source, subjects, rounds, interrupted, lambda: progress.advance(task), planned):
            reports.append(report)
            write(complete=False)
            progress.console.print()
            stdout.print(speed_table(report))
        complete = not interrupted()
    write(complete)
    raise typer.Exit(0 if complete else 2)
