"""A program that compiles the triton kernels for a GPU that need not be there, and prints what came out as JSON.

    python compile_triton.py cuda:90 few

Calls go through the kernel's own functions, on the CPU; Triton's driver is replaced by one that names the target, and
every launch by a compilation. Triton's compilers for CUDA (with ptxas) and ROCm come with its package.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)

import torch
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from steadysum.kernels import triton as kernel
from steadysum.kernels.gradients import LogitGradient, PullBack, Wanted
from steadysum.kernels.problem import Operands

ROWS, HIDDEN, VOCAB = 40, 256, 1300
MANY = 300_000  # rows: more than 65535 blocks of any size that is in use
EVERY = Wanted(input=True, weight=True, bias=True)


class Compiler:
    """Takes the place of Triton's driver and of its launches."""

    def __init__(self, target: GPUTarget) -> None:
        self.target = target
        self.compiled: dict[int, Any] = {}
        self.widest: dict[int, int] = {}  # of each variant the most programs along a grid's second or third dimension
        launch: Callable[..., Any] = JITFunction.run

        def compile_only(function: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
            variant = launch(function, *arguments, grid=grid, warmup=True, **options)
            self.compiled[id(variant)] = variant
            self.widest[id(variant)] = max(self.widest.get(id(variant), 1), *grid[1:], 1)
            return variant

        JITFunction.run = compile_only
        driver.set_active(self)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int) -> int:
        return 0


def call(dtype: torch.dtype, rows: int = ROWS, vocab: int = VOCAB, **options: Any) -> Operands:
    plain = {"bias": None, "scale": 1.0, "softcap": None, "temperature": None, "valid_vocab": vocab}
    input = torch.zeros(1, HIDDEN, dtype=dtype).expand(rows, HIDDEN)
    weight = torch.zeros(1, HIDDEN, dtype=dtype).expand(vocab, HIDDEN)
    return Operands(input, weight, **{**plain, **options})


def coefficients(*names: str) -> PullBack:
    return lambda found, *_: LogitGradient(**{name: torch.ones_like(found.max) for name in names})


def targets() -> Tensor:
    return torch.zeros(ROWS, dtype=torch.int64)


def few() -> None:
    """What training in bf16 needs, and the softmax."""
    kernel.statistics([call(torch.bfloat16, target=targets())])
    kernel.gradients(call(torch.bfloat16, target=targets()), coefficients("exp", "target"), EVERY)
    kernel.softmax(call(torch.bfloat16), torch.empty(ROWS, VOCAB))
    kernel.softmax(call(torch.bfloat16, MANY, 4), torch.empty(MANY, 4))


def every() -> None:
    """Every kernel with everything in it, and with nothing, for each dtype."""
    options = {"bias": torch.zeros(VOCAB), "scale": 0.5, "softcap": 2.0, "temperature": torch.ones(ROWS)}
    sums = {"dense": torch.zeros(ROWS, VOCAB), "column_weight": torch.ones(VOCAB), "wants_column_sum": True}
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        kernel.statistics([call(dtype), call(dtype, wants_ties=True)])
        kernel.statistics([call(dtype, target=targets(), wants_weighted_sum=True, **options)])
        kernel.softmax(call(dtype), torch.empty(ROWS, VOCAB))
        full = call(dtype, target=targets(), **options, **sums)
        kernel.chunk_statistics(full)
        kernel.gradients(full, coefficients(*LogitGradient._fields), EVERY)
        kernel.gradients(call(dtype, target=targets()), coefficients("exp", "target"), EVERY)


def main() -> None:
    backend, _, name = sys.argv[1].partition(":")
    target = GPUTarget(backend, int(name), 32) if backend == "cuda" else GPUTarget(backend, name, 64)
    if backend == "hip":
        torch.version.hip = "6.4"  # what the kernel asks, to know which one it runs on
    compiler = Compiler(target)
    {"few": few, "every": every}[sys.argv[2]]()
    variants = [
        {
            "name": variant.metadata.name,
            "shared": variant.metadata.shared,
            "widest": compiler.widest[key],
            "code": sorted(variant.asm),
            "matrix_units": any(re.search(word, variant.asm.get(code, "")) for code, word in MATRIX_UNITS),
            "atomics": any(re.search(word, variant.asm.get(code, "")) for code, word in ATOMICS),
        }
        for key, variant in compiler.compiled.items()
    ]
    print(json.dumps(variants))


# Instructions, by the assembly language that has them.
MATRIX_UNITS = (("ptx", r"\bwgmma\."), ("ptx", r"\bmma\.sync"), ("amdgcn", r"\bv_mfma_"))
ATOMICS = (("ptx", r"\batom\."), ("ptx", r"\bred\."), ("amdgcn", r"_atomic_"))

if __name__ == "__main__":
    main()
