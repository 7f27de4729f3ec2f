"""Conditions that load the machine while the operator runs: processes that compute, or that move memory.

Counted is the processor time that they had, in ticks of the system's clock (10 ms on Linux).
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from steadysum.diagnosis.isolation.arranged import Acted, Operator, Surrounding, VoidError
from steadysum.diagnosis.isolation.inputs import Call

__all__ = ["cpu_load", "memory_load"]

_START_S: Final = 10.0  # for the processes to have had some processor time
# They end with the process that started them, however it ends.
_LOOP: Final = "import os\nparent = os.getppid()\n{first}\nwhile os.getppid() == parent:\n    {work}\n"
_COMPUTE: Final = _LOOP.format(first="", work="sum(range(100000))")
# 64 MiB are more than most caches hold.
_COPY: Final = _LOOP.format(first="a = bytearray(1 << 26); b = bytearray(1 << 26)", work="b[:] = a")


def cpu_load(operator: Operator, call: Call, values: Mapping[str, Any], acted: Acted) -> Surrounding:  # noqa: ARG001
    """So many processes that compute."""
    return Surrounding(_around(_COMPUTE, int(values.get("processes", 2)), acted))


def memory_load(operator: Operator, call: Call, values: Mapping[str, Any], acted: Acted) -> Surrounding:  # noqa: ARG001
    """So many processes that copy memory."""
    return Surrounding(_around(_COPY, int(values.get("processes", 1)), acted))


@contextlib.contextmanager
def _around(program: str, count: int, acted: Acted) -> Iterator[None]:
    # -S and -I: nothing of the user's environment is imported
    processes = [subprocess.Popen([sys.executable, "-I", "-S", "-c", program]) for _ in range(count)]
    try:
        _wait_until_working([process.pid for process in processes])
        yield
        acted.add(sum(_ticks(process.pid) for process in processes if process.poll() is None))
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def _wait_until_working(pids: list[int]) -> None:
    deadline = time.monotonic() + _START_S
    while not all(_ticks(pid) > 1 for pid in pids):
        if time.monotonic() > deadline:
            raise VoidError(f"the processes that load the machine had no processor time in {_START_S:g} s")
        time.sleep(0.01)


def _ticks(pid: int) -> int:
    """User and system time, fields 14 and 15 of proc(5)'s stat; the second, in parentheses, may hold anything."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])
