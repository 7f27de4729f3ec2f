"""Time to import steadysum over the time to import torch, each in fresh interpreters, in turn."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import numpy as np

from benchmarks.results import Measure
from steadysum.timing import ROUNDS, median_ratio

BAR = 1.2
QUICK_ROUNDS = 5
PROGRAM = "import time; start = time.perf_counter(); import {}; print(time.perf_counter() - start)"


def measure_imports(quick: bool) -> Iterator[Measure]:
    """One measure. The time is taken inside the interpreter: its own start is no part of it."""
    seconds: dict[str, list[float]] = {"steadysum": [], "torch": []}
    order = list(seconds)
    for module in order:
        _import_seconds(module)  # the disk cache and the compiled files
    for _ in range(QUICK_ROUNDS if quick else ROUNDS):
        for module in order:
            seconds[module].append(_import_seconds(module))
        order.reverse()
    medians = {f"import {module}": float(np.median(times)) for module, times in seconds.items()}
    yield Measure(
        work="import",
        contender="import steadysum",
        against="import torch",
        value=median_ratio(np.asarray(seconds["steadysum"]) / np.asarray(seconds["torch"])),
        bar=BAR,
        note=" against ".join(f"{value:.2f} s" for value in medians.values()),
        seconds=medians,
        rounds=len(seconds["torch"]),
    )


def _import_seconds(module: str) -> float:
    command = [sys.executable, "-c", PROGRAM.format(module)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
