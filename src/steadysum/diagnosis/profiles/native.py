"""Calls of the native kernel with faults, one at most in a call, judged by the bits of the fault-free call.

Faults are strikes: one value, in the memory or the registers of a verified call, flips a bit or is moved by a part of
its surroundings' size. The shipped extension has no such hook; the build with traps has (`make traps`). Times are those
of the clock on the wall. Not here: the counts (campaign.py), and faults by the ten thousand, one in each call
(tools/checksum_campaign.py).
"""

from __future__ import annotations

import importlib.util
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple

import torch

from steadysum import _extension
from steadysum.diagnosis.arguments import Shape
from steadysum.diagnosis.emulation.judge import Outcome, judge_call
from steadysum.diagnosis.operands import random_operands
from steadysum.diagnosis.profiles.campaign import Answer, Group
from steadysum.diagnosis.subject import Operands
from steadysum.errors import AccuracyError
from steadysum.maxsum import MaxSum
from steadysum.ops.statistics import linear_max_sum

__all__ = ["BUILD", "SHAPES", "NativeCalls", "build_with_traps", "missing_build"]

BUILD: Final = "STEADYSUM_TRAPS_BUILD"  # names the folder; else build/traps
# One and several segments, panels that are full and that aren't, few rows: a call takes a fraction of a millisecond.
SHAPES: Final = (Shape(4, 64, 700), Shape(33, 96, 1100), Shape(16, 160, 513), Shape(1, 128, 2000))
# What a strike falls on, by the stage that it belongs to.
_STAGES: Final = {
    "operand": ("input", "weight"),
    "logit": ("logit", "late_logit"),
    "partial": ("partial",),
    "exp": ("exp",),
    "sum": ("sum", "max"),
}
_COVERED: Final = ("operand", "logit", "partial")
_MAGNITUDES: Final = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)  # of a value that is moved, of its surroundings' size
_BITS: Final = 32
_CLEAN_EVERY: Final = 8  # calls between two clean ones that are timed: the machine's speed changes


class _Problem(NamedTuple):
    """Operands, what they come to, and how often a verified call passes by each target."""

    operands: Operands
    expected: MaxSum
    passes: dict[str, int]
    sizes: dict[str, float]  # of the values that a target has


class NativeCalls:
    """Makes calls with faults, verified by checksums.

    Args:
        module: the build with traps, in the place of the shipped one.
        group: which stages are struck.
        rate: the share of calls, repeats among them, that are.
        seed: of all that is drawn.
        heals: False: what the checks find is ignored, as if there were none.
    """

    def __init__(self, module: ModuleType, group: Group, rate: float, seed: int, *, heals: bool = True) -> None:
        self._module = module
        self._stages = _COVERED if group is Group.COVERED else tuple(_STAGES)
        self._rate = rate
        self._heals = heals
        self._draw = random.Random(f"{seed}/{rate}")
        self._problems = [_problem(module, shape, seed + number) for number, shape in enumerate(SHAPES)]
        self._clean: list[float | None] = [None] * len(SHAPES)

    def answer(self, number: int) -> Answer:
        """The call of this number, or its repeat."""
        problem = self._problems[number % len(SHAPES)]
        stage = self._strike(problem) if self._draw.random() < self._rate else None
        start = time.perf_counter()
        try:
            seen: MaxSum | AccuracyError = _verified(problem.operands)
        except AccuracyError as error:
            seen = error
        taken = time.perf_counter() - start
        acted = self._module.struck() > 0
        self._module.strike(0, unhealed=not self._heals)
        outcome = Outcome.RAISED if isinstance(seen, AccuracyError) else judge_call(problem.expected, seen).outcome
        return Answer(outcome, taken, stage if acted else None, stage is not None and not acted)

    def clean_seconds(self, number: int) -> float:
        """What the call takes without verification."""
        which = number % len(SHAPES)
        known = self._clean[which]
        if known is None or number // len(SHAPES) % _CLEAN_EVERY == 0:
            start = time.perf_counter()
            _plain(self._problems[which].operands)
            known = self._clean[which] = time.perf_counter() - start
        return known

    def _strike(self, problem: _Problem) -> str:
        draw = self._draw
        # A call of few rows reads its operands where they lie: nothing is packed that could be struck.
        targets = {stage: [target for target in _STAGES[stage] if problem.passes[target]] for stage in self._stages}
        stage = draw.choice([stage for stage in self._stages if targets[stage]])
        target = draw.choice(targets[stage])
        flips = draw.random() < 0.5
        self._module.strike(
            self._module.TARGETS.index(target),
            after=draw.randrange(problem.passes[target]),
            index=draw.randrange(2**31),
            bit=draw.randrange(_BITS) if flips else -1,
            add=0.0 if flips else draw.choice(_MAGNITUDES) * problem.sizes[target],
            unhealed=not self._heals,
        )
        return f"{stage}, {'flip' if flips else 'scale'}"


def missing_build() -> str | None:
    """Why there is no build with traps, and how to get one; None: there is."""
    if _extension.module is None:
        return f"the native extension is missing: {_extension.reason}"
    if hasattr(_extension.module, "strike") or len(list(_folder().glob("_native*.so"))) == 1:
        return None
    return (
        f"{_folder()} holds no build of the extension with traps, and the shipped one can't be struck; "
        f"`make traps` in a checkout makes one, and {BUILD} can name its folder"
    )


@contextmanager
def build_with_traps() -> Iterator[ModuleType]:
    """Inside, kernel `native` runs on the build with traps; nothing is struck at the end."""
    shipped, threads = _extension.module, torch.get_num_threads()
    module = shipped if shipped is not None and hasattr(shipped, "strike") else _load(_folder())
    _extension.module = module
    torch.set_num_threads(1)  # calls are small
    try:
        yield module
    finally:
        module.strike(0)
        _extension.module = shipped
        torch.set_num_threads(threads)


@lru_cache  # its types can't be registered twice
def _load(folder: Path) -> ModuleType:
    (library,) = folder.glob("_native*.so")
    spec = importlib.util.spec_from_file_location("_native", library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _folder() -> Path:
    return Path(os.environ.get(BUILD) or "build/traps").resolve()


def _problem(module: ModuleType, shape: Shape, seed: int) -> _Problem:
    operands = random_operands(shape, torch.float32, seed)
    logits = operands.input @ operands.weight.T
    passes = {}
    for target in (target for targets in _STAGES.values() for target in targets):
        module.strike(module.TARGETS.index(target), after=2**62)  # never
        _verified(operands)
        passes[target] = module.strike_passes()
    module.strike(0)
    largest = float(logits.abs().max())
    sizes = {"input": float(operands.input.abs().max()), "weight": float(operands.weight.abs().max())}
    sizes |= {"exp": 1.0, "sum": 1.0}  # at least the largest logit's own term
    sizes |= dict.fromkeys(("logit", "late_logit", "max", "partial"), largest)
    return _Problem(operands, _plain(operands), passes, sizes)


def _plain(operands: Operands) -> MaxSum:
    return linear_max_sum(operands.input, operands.weight, kernel="native")


def _verified(operands: Operands) -> MaxSum:
    return linear_max_sum(operands.input, operands.weight, kernel="native", verify="checksum")
