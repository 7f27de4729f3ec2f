"""Conditions that leave the call as it is and change what goes on around it: memory, time, threads, other callers.

Each counts what it did. Not here: processes that load the machine (loads.py), and what is done to every operation that
torch makes (operations.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import random
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import torch

from steadysum.diagnosis.isolation.arranged import Acted, Operator, Surrounding, VoidError
from steadysum.diagnosis.isolation.input_changes import other_values
from steadysum.diagnosis.isolation.inputs import Call, copied
from steadysum.diagnosis.isolation.operations import sizes_of

__all__ = ["dirty_workspace", "prefilled_memory", "same_random_state", "threads", "two_callers"]

SENTINELS: Final = (0x7B, 0xC3)  # bytes: in fp32 1.3e36 and -391.5, finite in every dtype, unlike each other in all
_COPIES: Final = 4  # blocks of each size: what comes back may be any of the last freed
_MOST_BYTES: Final = 1 << 28
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h of glibc
_HELD: Final = 32 << 20  # bytes; glibc's largest threshold: larger blocks always come from the system, cleared


def prefilled_memory(operator: Operator, call: Call, values: Mapping[str, Any], acted: Acted) -> Surrounding:
    """Freed memory of the sizes that the operator takes holds one byte again and again: see it come back in an output.

    glibc gives freed memory back last in, first out. Blocks over 32 MiB come from the system, cleared: they aren't
    reached. Counted are the sizes at which a new block does hold the byte.
    """
    byte = int(values.get("byte", SENTINELS[0]))
    copy = copied(call)
    sizes = sizes_of(lambda: operator(*copy.args, **copy.kwargs))
    sizes = [size for size in sizes if 0 < size * _COPIES <= _MOST_BYTES]
    if not sizes:
        raise VoidError("the operator takes no memory through torch")

    @contextlib.contextmanager
    def around() -> Iterator[None]:
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):  # freed memory stays with the process
            libc.mallopt(_M_MMAP_THRESHOLD, _HELD)
            libc.mallopt(_M_TRIM_THRESHOLD, 1 << 30)
        yield

    def before() -> None:
        blocks = [torch.empty(size, dtype=torch.uint8).fill_(byte) for size in sizes for _ in range(_COPIES)]
        blocks.clear()
        for size in sizes:
            seen = torch.empty(size, dtype=torch.uint8)
            acted.add(int(seen[size // 2] == byte))

    return Surrounding(around(), before)


def threads(operator: Operator, call: Call, values: Mapping[str, Any], acted: Acted) -> Surrounding:  # noqa: ARG001
    """So many threads of torch's."""
    count = int(values["count"])

    @contextlib.contextmanager
    def around() -> Iterator[None]:
        before = torch.get_num_threads()
        torch.set_num_threads(count)
        yield
        torch.set_num_threads(before)

    return Surrounding(around(), lambda: acted.add(int(torch.get_num_threads() == count)))


def same_random_state(
    operator: Operator,  # noqa: ARG001 - of all surroundings alike
    call: Call,  # noqa: ARG001
    values: Mapping[str, Any],
    acted: Acted,
) -> Surrounding:
    """The random generators of torch, numpy and Python are in one state before each run."""
    seed = int(values.get("seed", 0))

    def before() -> None:
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        acted.add()

    return Surrounding(contextlib.nullcontext(), before)


def dirty_workspace(
    operator: Operator,
    call: Call,
    values: Mapping[str, Any],  # noqa: ARG001
    acted: Acted,
) -> Surrounding:
    """Before each run the operator is called with other values of the same shapes: what it leaves behind is theirs."""

    def before() -> None:
        other = other_values(call)  # anew each time: the operator may write to them
        operator(*other.args, **other.kwargs)
        acted.add()

    return Surrounding(contextlib.nullcontext(), before)


def two_callers(operator: Operator, call: Call, values: Mapping[str, Any], acted: Acted) -> Surrounding:  # noqa: ARG001
    """A second thread calls the operator all the time, with other values of the same shapes.

    With equal values its work would be the same, and mixed up with the first caller's nobody could see it. Between two
    calls it pauses for a random part of a call, so that the two don't run in step. Counted are its calls; what they
    raise isn't the first caller's.
    """
    draw = random.Random(0)
    other = other_values(call)  # now: an operator that writes to its arguments changes the first caller's
    stop = threading.Event()
    started = threading.Event()

    def disturb() -> None:
        while not stop.is_set():
            start = time.perf_counter()
            started.set()
            with contextlib.suppress(Exception):
                operator(*other.args, **other.kwargs)
                acted.add()
            time.sleep((time.perf_counter() - start) * draw.random())

    @contextlib.contextmanager
    def around() -> Iterator[None]:
        thread = threading.Thread(target=disturb, daemon=True)
        thread.start()
        started.wait()
        try:
            yield
        finally:
            stop.set()
            thread.join(10.0)

    return Surrounding(around())
