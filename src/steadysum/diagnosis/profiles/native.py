"""Calls of the native kernel with faults, one at most in a call, judged by the bits of the fault-free call.

Faults are strikes (strikes.py). Times are those of the clock on the wall. Not here: the counts (campaign.py), and
faults by the ten thousand, one in each call (tools/checksum_campaign.py).
"""

from __future__ import annotations

import random
import time
from types import ModuleType
from typing import Final, NamedTuple

import torch

from steadysum.diagnosis.arguments import Shape
from steadysum.diagnosis.emulation.judge import Outcome, judge_call
from steadysum.diagnosis.operands import random_operands
from steadysum.diagnosis.profiles.campaign import Answer, Group
from steadysum.diagnosis.profiles.strikes import COVERED, MAGNITUDES, STAGES, passes_of
from steadysum.diagnosis.subject import Operands
from steadysum.errors import AccuracyError
from steadysum.maxsum import MaxSum
from steadysum.ops.statistics import linear_max_sum

__all__ = ["SHAPES", "NativeCalls"]

# One and several segments, panels that are full and that aren't, few rows: a call takes a fraction of a millisecond.
SHAPES: Final = (Shape(4, 64, 700), Shape(33, 96, 1100), Shape(16, 160, 513), Shape(1, 128, 2000))
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
        self._stages = COVERED if group is Group.COVERED else tuple(STAGES)
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
        targets = {stage: [target for target in STAGES[stage] if problem.passes[target]] for stage in self._stages}
        stage = draw.choice([stage for stage in self._stages if targets[stage]])
        target = draw.choice(targets[stage])
        flips = draw.random() < 0.5
        self._module.strike(
            self._module.TARGETS.index(target),
            after=draw.randrange(problem.passes[target]),
            index=draw.randrange(2**31),
            bit=draw.randrange(_BITS) if flips else -1,
            add=0.0 if flips else draw.choice(MAGNITUDES) * problem.sizes[target],
            unhealed=not self._heals,
        )
        return f"{stage}, {'flip' if flips else 'scale'}"


def _problem(module: ModuleType, shape: Shape, seed: int) -> _Problem:
    operands = random_operands(shape, torch.float32, seed)
    logits = operands.input @ operands.weight.T
    passes = passes_of(module, lambda: _verified(operands))
    largest = float(logits.abs().max())
    sizes = {"input": float(operands.input.abs().max()), "weight": float(operands.weight.abs().max())}
    sizes |= {"exp": 1.0, "sum": 1.0}  # at least the largest logit's own term
    sizes |= dict.fromkeys(("logit", "late_logit", "max", "partial"), largest)
    return _Problem(operands, _plain(operands), passes, sizes)


def _plain(operands: Operands) -> MaxSum:
    return linear_max_sum(operands.input, operands.weight, kernel="native")


def _verified(operands: Operands) -> MaxSum:
    return linear_max_sum(operands.input, operands.weight, kernel="native", verify="checksum")
