"""Peak extra memory: the high-water mark of a fresh process above the operands and results, one contender each.

Run as a module with --one NAME N H V DTYPE it is that process, and prints one JSON line. Linux only (/proc).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.contenders import (
    ALL,
    LOSS,
    PRODUCT_INTO_BUFFER,
    STATISTICS,
    Contender,
    by_name,
    make_work,
    missing,
    title,
)
from benchmarks.results import Measure
from steadysum.diagnosis.arguments import Shape

BAR_MIB = 64.0
SHAPE = Shape(4096, 1024, 128256)
QUICK_SHAPE = Shape(512, 256, 32000)
WARM_SHAPE = Shape(64, 64, 1024)  # loads libraries, starts threads and compiles before the mark is set
TIMEOUT_SECONDS = 600.0
MIB = 2**20


def measure_memory(quick: bool) -> Iterator[Measure]:
    """Ours with the bar, and every peer as information."""
    shape = QUICK_SHAPE if quick else SHAPE
    for contender in (contender for contender in ALL if contender is not PRODUCT_INTO_BUFFER):
        yield extra_memory(contender, shape, "fp32", BAR_MIB if contender in (STATISTICS, LOSS) else None)
    yield extra_memory(STATISTICS, shape, "bf16", BAR_MIB)


def extra_memory(contender: Contender, shape: Shape, dtype: str, bar: float | None) -> Measure:
    """Measured in a process of its own."""
    against = "above operands and results"
    if (reason := missing(contender)) is not None:
        return Measure(title(shape, dtype), contender.name, against, None, bar, reason)
    sizes = map(str, shape)
    command = [sys.executable, "-m", "benchmarks.memory", "--one", contender.name, *sizes, dtype]
    try:
        finished = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return Measure(title(shape, dtype), contender.name, against, None, bar, f"took over {TIMEOUT_SECONDS:.0f} s")
    if finished.returncode != 0:
        last = (finished.stderr.strip().splitlines() or [f"exit code {finished.returncode}"])[-1]
        return Measure(title(shape, dtype), contender.name, against, None, bar, last)
    measured = json.loads(finished.stdout.strip().splitlines()[-1])
    note = f"operands {measured['operands'] / MIB:.0f} MiB, results {measured['results'] / MIB:.0f} MiB"
    return Measure(title(shape, dtype), contender.name, against, measured["extra"] / MIB, bar, note)


def run_one(name: str, shape: Shape, dtype: str) -> dict[str, int]:
    """Bytes: extra memory at the peak, operands, results. For a fresh process only."""
    import torch

    contender = by_name(name)
    with torch.no_grad():
        contender.call(make_work(WARM_SHAPE, dtype))
        work = make_work(shape, dtype)
        _reset_high_water_mark()
        before = _status("VmRSS")
        result = contender.call(work)
        peak = _status("VmHWM")
    operands = sum(_bytes(tensor) for tensor in (work.input, work.weight, work.target))
    results = sum(_bytes(tensor) for tensor in (result if isinstance(result, tuple) else (result,)))
    return {"extra": peak - before - results, "operands": operands, "results": results}


def _reset_high_water_mark() -> None:
    """Let VmHWM start again at the present size. Where that is forbidden the older mark stays: an upper bound."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError as error:
        print(f"VmHWM can't be reset ({error}); the figure is an upper bound", file=sys.stderr)


def _status(key: str) -> int:
    """A size in /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {key}: memory can be measured on Linux only")


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


if __name__ == "__main__":
    marker, name, *sizes, dtype = sys.argv[1:]
    assert marker == "--one"
    print(json.dumps(run_one(name, Shape(*map(int, sizes)), dtype)))
