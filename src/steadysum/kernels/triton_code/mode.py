"""Whether Triton interprets the kernels here, the context of a launch, and the compiler's options.

Not here: the sizes of blocks (blocks.py). triton.jit reads TRITON_INTERPRET where it decorates a function: it is read
here once, before the first of them, and holds for the rest of the process.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import torch
import triton
import triton.language as tl

__all__ = ["INTERPRETED", "IS_INTERPRETED", "launching", "options"]

INTERPRETED: Final[bool] = bool(triton.knobs.runtime.interpret)
IS_INTERPRETED: Final = tl.constexpr(INTERPRETED)  # for the kernels, which see no other globals


def options(warps: int = 8) -> dict[str, Any]:
    """The compiler's options.

    enable_fp_fusion: contraction would differ between variants of one kernel (z - max, with z = product * scale, would
    become one fused operation where nothing else needs z), and a logit must have the same bits in all of them.
    num_stages: with three, 96 KiB of shared memory hold the blocks of both operands (128 bytes x 256 rows x 3), which
    fits every device with tensor cores for bf16; two where ROCm has 64 KiB.
    """
    return {"num_warps": warps, "num_stages": 2 if torch.version.hip else 3, "enable_fp_fusion": False}


@contextlib.contextmanager
def launching(device: torch.device) -> Iterator[None]:
    """The context in which kernels are launched: on the operands' device; the interpreter's numpy reports no NaNs."""
    with contextlib.ExitStack() as stack:
        if device.type == "cuda":
            stack.enter_context(torch.cuda.device(device))
        if INTERPRETED:
            stack.enter_context(np.errstate(all="ignore"))
            stack.enter_context(warnings.catch_warnings(action="ignore", category=RuntimeWarning))  # rows of NaN
        yield
