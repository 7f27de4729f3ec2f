"""The words and numbers that a command line gives for a problem, read and checked.

Not for files: operands.py.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import torch

from steadysum.errors import RangeError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
THREADS_PER_CPU = 4  # more would measure the scheduler


class Shape(NamedTuple):
    """Sizes of a problem: N rows of H numbers against V vocabulary rows."""

    rows: int
    hidden: int
    vocabulary: int


def parse_shape(text: str) -> Shape:
    """N,H,V as three positive integers.

    >>> parse_shape("1024,256,512")
    Shape(rows=1024, hidden=256, vocabulary=512)
    """
    sizes = _positive_integers(text)
    if len(sizes) != 3:
        raise RangeError("--shape", repr(text), "N,H,V: three integers > 0", "For example --shape 1024,256,512.")
    return Shape(*sizes)


def parse_dtype(text: str) -> torch.dtype:
    """fp32, bf16 or fp16."""
    if text not in DTYPES:
        raise RangeError("--dtype", repr(text), ", ".join(DTYPES), "The other dtypes have no kernel with fixed bits.")
    return DTYPES[text]


def parse_threads(text: str) -> tuple[int, ...]:
    """A list of thread counts, without repetitions, in ascending order.

    >>> parse_threads("2,1,2")
    (1, 2)
    """
    most = most_threads()
    counts = _positive_integers(text)
    if not counts or max(counts) > most:
        raise RangeError(
            "--threads", repr(text), f"integers from 1 to {most}, with commas", "For example --threads 1,2."
        )
    return tuple(sorted(set(counts)))


def parse_thread_count(text: str) -> int:
    """One thread count.

    >>> parse_thread_count("2")
    2
    """
    counts = parse_threads(text)
    if "," in text:
        raise RangeError("--threads", repr(text), "one integer here", "Run the command once for each thread count.")
    return counts[0]


def most_threads() -> int:
    """The largest accepted number of threads; at least 8, so that a report from elsewhere can be rerun."""
    return max(8, THREADS_PER_CPU * (os.cpu_count() or 1))


def _positive_integers(text: str) -> list[int]:
    """The integers > 0 of a list with commas; none at all if a part is something else."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and 0 < int(part) < 2**40 for part in parts):
        return []
    return [int(part) for part in parts]
