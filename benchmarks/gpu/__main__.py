"""python -m benchmarks.gpu [--quick] [--interpret] [--out FOLDER]: measure, print tables, write JSON.

Exit code 0: measured, and no bar missed; 1: a bar was missed in a full run; 2: there is no GPU, or no triton.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from rich.console import Console

from benchmarks.gpu.bits import measure_bits
from benchmarks.gpu.device import Device
from benchmarks.gpu.memory import measure_memory
from benchmarks.gpu.times import measure_forward, measure_training
from benchmarks.results import FOLDER, Measure, environment, save, show
from steadysum.diagnosis.arguments import Shape
from steadysum.diagnosis.environment import NEEDS
from steadysum.kernels import triton

COULD_NOT_RUN = 2
QUICK_ROUNDS = 5
INTERPRETED_ROUNDS = 2

# LM heads: Llama 3 8B, Gemma 2 2B (the problem of the cut-cross-entropy paper), Llama 2 7B, GPT-2.
PROBLEMS = (
    ("bf16", Shape(8192, 4096, 128256)),
    ("bf16", Shape(8192, 2304, 256000)),
    ("bf16", Shape(4096, 4096, 32000)),
    ("fp16", Shape(4096, 4096, 32000)),
    ("bf16", Shape(2048, 768, 50304)),
    ("fp32", Shape(2048, 768, 50304)),
)
QUICK_PROBLEMS = (("bf16", Shape(2048, 768, 50304)),)
INTERPRETED_PROBLEMS = (("bf16", Shape(6, 16, 600)),)


def main(arguments: list[str] | None = None) -> int:
    """Measure all parts."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description="Kernel triton on a GPU beside peers."
    )
    parser.add_argument("--quick", action="store_true", help="one problem and few rounds: a look, no verdict")
    parser.add_argument(
        "--interpret",
        action="store_true",
        help="tiny problems in Triton's interpreter on the CPU: shows that this script works, measures nothing",
    )
    parser.add_argument(
        "--out", type=Path, help=f"folder of the JSON files (full: {FOLDER}; otherwise build/benchmarks)"
    )
    options = parser.parse_args(arguments)
    if options.interpret:
        os.environ["TRITON_INTERPRET"] = "1"  # nothing has imported triton yet
    elif not torch.cuda.is_available():
        print(
            f"no GPU: torch {torch.__version__} sees no CUDA or ROCm device, so nothing was measured.", file=sys.stderr
        )
        print("--interpret runs tiny problems on the CPU, to show that this script works.", file=sys.stderr)
        return COULD_NOT_RUN
    if (reason := triton.missing()) is not None:
        print(f"kernel triton can't run: {reason}. {NEEDS['triton']}", file=sys.stderr)
        return COULD_NOT_RUN
    warnings.filterwarnings("ignore", category=UserWarning, module="torch")  # peers' own, once a call
    device = Device(triton.interpreted())
    facts = device.facts()
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print("  ".join(f"{key}: {value}" for key, value in {**facts, **environment()}.items()), highlight=False)
    folder = options.out or (Path("build/benchmarks") if options.quick or options.interpret else FOLDER)
    missed = 0
    for name, (heading, measure) in _parts(device, options.quick).items():
        measures = list(measure())
        show(console, f"{heading}: {facts['card']}", measures)
        path = save(f"gpu-{_slug(facts['card'])}-{name}", measures, folder, facts)
        console.print(f"written: {path}", style="dim", highlight=False)
        missed += sum(each.verdict in ("FAIL", "not measured") for each in measures)
    if missed:
        console.print(f"{missed} bar(s) missed" + (", in a quick run" if options.quick else ""))
    return 1 if missed and not options.quick else 0


def _parts(device: Device, quick: bool) -> dict[str, tuple[str, Callable[[], Iterator[Measure]]]]:
    problems = INTERPRETED_PROBLEMS if device.interpreted else QUICK_PROBLEMS if quick else PROBLEMS
    rounds = INTERPRETED_ROUNDS if device.interpreted else QUICK_ROUNDS if quick else None

    def each(measure: Callable[[Device, Shape, str], Iterator[Measure]]) -> Callable[[], Iterator[Measure]]:
        def all_problems() -> Iterator[Measure]:
            for dtype, shape in problems:
                yield from measure(device, shape, dtype)
                device.free()

        return all_problems

    return {
        "forward": ("Forward: time over the bare product", each(lambda *work: measure_forward(*work, rounds))),
        "training": (
            "Loss and gradients: time over three products",
            each(lambda *work: measure_training(*work, rounds)),
        ),
        "memory": ("Peak extra memory", each(measure_memory)),
        "bits": ("Bits: comparisons that failed", each(measure_bits)),
    }


def _slug(card: str) -> str:
    """A card's name as part of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", card.partition(":")[0].lower()).strip("-")


if __name__ == "__main__":
    sys.exit(main())
