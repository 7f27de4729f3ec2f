"""What a kernel can promise about its bits. Not here: which kernel promises what (each kernel's own file)."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Promise"]


class Promise(StrEnum):
    """A row of the result has the same bits ..."""

    RUN_TO_RUN = "run-to-run"  # in every run with the same operands, thread count and machine
    BATCH = "batch"  # whatever other rows are in the call
    THREADS = "threads"  # for every number of threads
    SHARDS = "shards"  # when shards of the vocabulary are computed by calls of their own, and merged
