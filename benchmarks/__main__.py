"""python -m benchmarks [--quick] [PART ...]: run the parts, print their tables, write JSON to benchmarks/results/.

Exit code 1 if a bar is missed in a full run; a quick run only looks.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from benchmarks.accuracy import measure_errors
from benchmarks.bars import measure_bars
from benchmarks.emulator import measure_emulator
from benchmarks.guard import measure_guard
from benchmarks.imports import measure_imports
from benchmarks.memory import measure_memory
from benchmarks.peers import measure_peers
from benchmarks.results import FOLDER, Measure, environment, save, show
from benchmarks.training.accuracy import measure_training_errors
from benchmarks.training.bars import measure_training
from benchmarks.training.gradient_filter import measure_gradient_filter
from benchmarks.training.memory import measure_training_memory
from benchmarks.training.peers import measure_training_peers
from benchmarks.verification import measure_verification

PARTS: dict[str, tuple[str, Callable[[bool], Iterator[Measure]]]] = {
    "bars": ("Statistics: time over torch's", measure_bars),
    "verification": ("verify=: time over statistics that aren't verified", measure_verification),
    "guard": ("Guarded layers: time over unguarded ones", measure_guard),
    "emulator": ("The emulated device: seconds a call, and time over the eager kernel", measure_emulator),
    "imports": ("Import", measure_imports),
    "accuracy": ("Accuracy: error over torch's", measure_errors),
    "memory": ("Peak extra memory, forward", measure_memory),
    "peers": ("Side by side: time over the bare product", measure_peers),
    "training": ("Loss and gradients: time over bare products, and over peers", measure_training),
    "training-memory": ("Loss and gradients: peak extra memory", measure_training_memory),
    "training-accuracy": ("Loss and gradients: relative error", measure_training_errors),
    "training-filter": ("Loss and gradients with a filter, on the real head", measure_gradient_filter),
    "training-peers": (
        "Loss and gradients side by side: time over three bare products, memory",
        measure_training_peers,
    ),
}


def main() -> int:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Benchmarks beside torch and other libraries."
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; none: all")
    parser.add_argument("--quick", action="store_true", help="small shapes and few rounds: a look, no verdict")
    parser.add_argument("--out", type=Path, help=f"folder of the JSON files (full: {FOLDER}; quick: build/benchmarks)")
    arguments = parser.parse_args()
    unknown = [part for part in arguments.parts if part not in PARTS]
    if unknown:
        parser.error(f"no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    warnings.filterwarnings("ignore", category=UserWarning, module="torch")  # peers' own, once a call
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print("  ".join(f"{key}: {value}" for key, value in environment().items()), style="dim", highlight=False)
    folder = arguments.out or (Path("build/benchmarks") if arguments.quick else FOLDER)
    missed = []
    for part in arguments.parts or PARTS:
        title, measure = PARTS[part]
        measures, stopped = _run(console, title, measure(arguments.quick))
        show(console, title, measures)
        console.print(f"written: {save(part, measures, folder)}", style="dim", highlight=False)
        missed += [measure for measure in measures if measure.verdict in ("FAIL", "not measured")]
        if stopped:
            console.print("stopped; the table holds the measures so far")
            return 1
    if missed:
        console.print(f"{len(missed)} bar(s) missed" + (", in a quick run" if arguments.quick else ""))
    return 1 if missed and not arguments.quick else 0


def _run(console: Console, title: str, measures: Iterator[Measure]) -> tuple[list[Measure], bool]:
    done: list[Measure] = []
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title)
        try:
            for measure in measures:
                done.append(measure)
                progress.update(task, description=f"{title}: {len(done)} done, last {measure.work} {measure.contender}")
        except KeyboardInterrupt:
            return done, True
    return done, False


if __name__ == "__main__":
    sys.exit(main())
