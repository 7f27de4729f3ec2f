"""Peak extra memory of one call: the high-water mark of a fresh process above its operands and results.

The process is `python -m MODULE --one ...`: it makes its operands, asks `extra_memory` here, and prints the sizes as
one JSON line. Not here: what is called. Linux only (/proc).
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from benchmarks.results import Measure

TIMEOUT_SECONDS = 600.0
MIB = 2**20
AGAINST = "above operands and results"


class Sizes(NamedTuple):
    """Bytes."""

    extra: int
    operands: int
    results: int


def measure_elsewhere(
    module: str, arguments: Sequence[str], work: str, contender: str, bar: float | None, note: str = ""
) -> Measure:
    """Runs `python -m module --one arguments` and reads the sizes that it prints.

    Args:
        module, arguments: the process.
        work, contender, bar: of the measure; the bar in MiB.
        note: goes before the sizes.
    """
    command = [sys.executable, "-m", module, "--one", *arguments]
    try:
        finished = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return Measure(work, contender, AGAINST, None, bar, f"took over {TIMEOUT_SECONDS:.0f} s")
    if finished.returncode != 0:
        last = (finished.stderr.strip().splitlines() or [f"exit code {finished.returncode}"])[-1]
        return Measure(work, contender, AGAINST, None, bar, last)
    sizes = Sizes(**json.loads(finished.stdout.strip().splitlines()[-1]))
    note += f"operands {sizes.operands / MIB:.0f} MiB, results {sizes.results / MIB:.0f} MiB"
    return Measure(work, contender, AGAINST, sizes.extra / MIB, bar, note)


def extra_memory(call: Callable[[], Iterable[Tensor]], operands: Iterable[Tensor]) -> Sizes:
    """The sizes of a call that returns its results. For a fresh process only."""
    _give_back_free_memory()
    _reset_high_water_mark()
    before = _status("VmRSS")
    results = sum(_bytes(tensor) for tensor in call())
    peak = _status("VmHWM")
    return Sizes(peak - before - results, sum(_bytes(tensor) for tensor in operands), results)


def show_sizes(sizes: Sizes) -> None:
    """Prints the line that `measure_elsewhere` reads."""
    print(json.dumps(sizes._asdict()))


def _give_back_free_memory() -> None:
    """Memory that was freed but is still held by the C library would hide as much of the call's own."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except AttributeError:
        print("this C library has no malloc_trim; the figure may be too small", file=sys.stderr)


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


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
