"""Kernel `triton`: CUDA and ROCm GPUs, for fp32, bf16 and fp16; and, for tests, Triton's interpreter on the CPU.

Not here: the code that runs on the device (triton_code/), which is imported where it is used, since triton is an extra
and takes a while to import. Tiles and the order of every sum are fixed by the problem, so that a row's bits depend
neither on the other rows nor on where it lies. No sizes are tuned at run time: another size would be other bits.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Final

import torch
from torch import Tensor

from steadysum.kernels.derived import entropy as entropy
from steadysum.kernels.derived import log as log
from steadysum.kernels.derived import logprobs as logprobs
from steadysum.kernels.gradients import Gradients, PullBack, Wanted
from steadysum.kernels.problem import SIXTEEN_BIT, Operands, Problem, Statistics
from steadysum.kernels.promise import Promise
from steadysum.maxsum import MaxSum, merge_by_torch, merges_on

name: Final = "triton"
promises: Final = frozenset(Promise)

LEAST_VERSION: Final = (3, 4)  # has triton.knobs; compiled with 3.4, 3.5 and 3.9


def interpreted() -> bool:
    """Whether the kernels run in Triton's interpreter: TRITON_INTERPRET as it was when they were first used.

    >>> interpreted() in (True, False)
    True
    """
    if find_spec("triton") is None:
        return False
    if "triton" not in sys.modules and not os.environ.get("TRITON_INTERPRET"):
        return False  # not worth importing triton for
    from steadysum.kernels.triton_code.mode import INTERPRETED

    return INTERPRETED


def missing() -> str | None:
    """Why it can't run on this machine at all."""
    if find_spec("triton") is None:
        return "triton isn't installed: pip install 'steadysum[triton]'"
    installed = _version()
    if installed is not None and installed < LEAST_VERSION:
        seen, least = (".".join(map(str, each)) for each in (installed, LEAST_VERSION))
        return f"triton {seen} is installed, which is older than {least}"
    if not torch.cuda.is_available() and not interpreted():
        return "there is no CUDA or ROCm device; with TRITON_INTERPRET=1 Triton's interpreter runs it here, for tests"
    return None


def supports(problem: Problem) -> str | None:
    """Problems in fp32, bf16 or fp16 on a CUDA or ROCm device, which torch calls "cuda" both.

    The first question about a device, a dtype, and gradients compiles the kernels for them, and tries them.
    """
    reason = missing()
    if reason is not None:
        return reason
    if problem.device.type != "cuda" and not (problem.device.type == "cpu" and interpreted()):
        return f"triton runs on CUDA and ROCm devices, not on {problem.device}"
    if problem.dtype not in (torch.float32, *SIXTEEN_BIT):
        return f"triton computes float32, bfloat16 and float16, not {problem.dtype}"
    if interpreted() or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
        return None  # while a graph is captured there can be no trial
    from steadysum.kernels.triton_code.trial import trial

    return trial(problem.device, problem.dtype, "gradients" in problem.wants)


def statistics(calls: Sequence[Operands]) -> list[Statistics]:
    """max, sum_exp, and what else each call asks for."""
    return [_statistics(call, None) for call in calls]


def logits(call: Operands, out: Tensor) -> Statistics:
    """Write the logits [N, V] and return their statistics."""
    return _statistics(call, out)


def softmax(call: Operands, out: Tensor) -> None:
    """Write the softmax [N, V], using `out` for the logits."""
    from steadysum.kernels.triton_code import mode, softmax, statistics

    with mode.launching(call.input.device):
        found = statistics.statistics(statistics.plain(call), out)
        if call.size > 0:
            softmax.softmax_(out, found)


def chunk_statistics(call: Operands) -> Statistics:
    """The statistics with every sum that the call asks for, storing the logits of one chunk of rows at a time."""
    from steadysum.kernels.triton_code import gradients, mode, statistics

    with mode.launching(call.input.device):
        return gradients.chunk_statistics(statistics.plain(call))


def gradients(call: Operands, pull_back: PullBack, wanted: Wanted, known: Statistics | None = None) -> Gradients:
    """The wanted gradients, from the gradient of the logits that `pull_back` describes chunk by chunk.

    The logits of one chunk of rows are stored in fp32, and overwritten with their gradient.
    """
    from steadysum.kernels.triton_code import gradients, mode, statistics

    with mode.launching(call.input.device):
        return gradients.gradients(statistics.plain(call), pull_back, wanted, known)


def merge(first: MaxSum, second: MaxSum) -> MaxSum:
    """The statistics of two sets of columns as those of their union, with the bits of this kernel's own fold.

    Shards that are nodes of the fold's tree, computed by calls of their own and merged by that tree, have the bits of
    the whole vocabulary (Promise.SHARDS).

    Args:
        first, second: MaxSum of equal shapes, fp32, on one device that the kernel runs on; the first is of the columns
            that come first.
    """
    from steadysum.kernels.triton_code import fold, mode

    with mode.launching(first.max.device):
        return fold.merge(first, second)


def _version() -> tuple[int, ...] | None:
    """Of the installed Triton, without importing it; None if its packager gave it another name."""
    try:
        return tuple(int(part) for part in version("triton").split(".")[:2])
    except (PackageNotFoundError, ValueError):
        return None


def _merge_if_there(first: MaxSum, second: MaxSum) -> MaxSum:
    return merge(first, second) if missing() is None else merge_by_torch(first, second)


merges_on["cuda"] = _merge_if_there


def _statistics(call: Operands, out: Tensor | None) -> Statistics:
    from steadysum.kernels.triton_code import mode, statistics

    with mode.launching(call.input.device):
        return statistics.statistics(statistics.plain(call), out)
