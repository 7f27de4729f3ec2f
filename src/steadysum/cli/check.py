"""`steadysum check`: does the operator give the bits it promises, and how near is it to float64?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from steadysum.cli import options
from steadysum.cli.terminal import Watcher, interruptible, progress_bar, stdout
from steadysum.diagnosis.arguments import parse_threads
from steadysum.diagnosis.checking import (
    FIELD_SHAPE,
    INTERPRETED_RUNS,
    RUNS,
    THREADS,
    CheckReport,
    default_shapes,
    run_check,
)
from steadysum.diagnosis.document import check_document, write_json
from steadysum.diagnosis.probes import Plan
from steadysum.diagnosis.report import render
from steadysum.diagnosis.subjects import device_subjects, kernel_subjects

DEFAULT_THREADS = ",".join(map(str, THREADS))

Runs = Annotated[
    int | None,
    typer.Option(
        min=2,
        help=f"Calls for each probe of a promise. {RUNS} see a fault of 5 % with 95 % chance.  "
        f"[default: {RUNS}; {INTERPRETED_RUNS} of an interpreted kernel]",
        show_default=False,
    ),
]
Device = Annotated[
    str | None,
    typer.Option(metavar="emulated", help="Check this in place of kernels: the emulated device.", show_default=False),
]
Threads = Annotated[str, typer.Option(metavar="T,T,...", help="Thread counts that must give the same bits.")]


def check(
    shape: options.Shapes = None,
    dtype: options.Dtypes = None,
    runs: Runs = None,
    threads: Threads = DEFAULT_THREADS,
    weights: options.Weights = None,
    inputs: options.Inputs = None,
    kernel: options.Kernels = None,
    device: Device = None,
    policy: options.Policy = None,
    load: options.Load = None,
    cores: options.Cores = None,
    fault: options.Faults = None,
    seed: options.Seed = 0,
    json: options.Json = None,
) -> None:
    """Run the operator again and again, and compare bits and error.

    Every available kernel is called with the same inputs, with several thread counts, and with the batch cut in
    several ways. Bits count against a kernel only where it promises them; its error is measured against float64.
    The default is a small shape with many rows, and an LM head; smaller ones where a kernel is interpreted. The triton
    kernel, where TRITON_INTERPRET=1 lets it run interpreted on the CPU, is checked only if it is named.

    With --device emulated the emulated many-core device is checked instead, with --policy, --load, --cores and --fault
    as `steadysum emulate` has them; its default has the field's fault, and deviates.

    Exit code: 0 no deviation seen, 1 some kernel deviates, 2 could not run, or was stopped (Ctrl-C) before it found
    any; what was found until then is printed and written.
    """
    emulated = options.given(policy=policy, load=load, cores=cores, fault=fault)
    if device is None:
        options.refuse_without_device(emulated)
        subjects, missing = kernel_subjects(kernel or ())
        default = default_shapes(subjects)
    else:
        subjects, missing = device_subjects(device, kernel or (), seed, **emulated), {}
        default = (FIELD_SHAPE,)
    source = options.operand_source(shape, dtype, weights, inputs, seed, default=default)
    plan = Plan(runs or RUNS, parse_threads(threads), seed, None if runs else INTERPRETED_RUNS)
    with interruptible() as interrupted, progress_bar() as progress:
        report = run_check(source, subjects, plan, missing, _Watcher(progress, interrupted, json))
    stdout.print(render(report))
    raise typer.Exit(report.exit_code)


class _Watcher(Watcher):
    """Names the probe beside the progress, and writes the JSON file after each finding."""

    def __init__(self, progress: Progress, interrupted: Callable[[], bool], json: Path | None) -> None:
        super().__init__(progress, interrupted)
        self._json = json
        self._problem = ""

    def begins(self, what: str, calls: int) -> None:
        self._problem = what
        super().begins(what, calls)

    def probing(self, what: str) -> None:
        self.describe(f"{self._problem.partition(',')[0]}  {what}")

    def found(self, report: CheckReport) -> None:
        if self._json is not None:
            write_json(check_document(report), self._json)
