"""The field report's own reproduction loop on the emulated device: what it would have said there.

Identical inputs, as in the report: then a slot of an earlier call holds the right value, and a stale read of it doesn't
show. The loop compares means of a softmax besides, in which most faults are lost (steadysum.diagnosis.field_loop).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import torch

from steadysum.diagnosis.digest import digest
from steadysum.diagnosis.emulation.judge import make_call
from steadysum.diagnosis.emulation.plan import EmulationPlan, device_of
from steadysum.diagnosis.field_loop import FieldLoop, run_field_loop
from steadysum.diagnosis.observe import Outputs, Recording
from steadysum.diagnosis.subject import Operands
from steadysum.errors import SteadySumError

__all__ = ["FIELD_CALLS", "LoopResult", "run_loop"]

FIELD_CALLS: Final = 100  # the report's


class LoopResult(NamedTuple):
    """What the loop says of such a device."""

    loop: FieldLoop
    raised: int  # calls that a policy refused to answer: the report's loop would have ended there


def run_loop(
    plan: EmulationPlan,
    stopped: Callable[[], bool] = lambda: False,
    progressed: Callable[[], None] = lambda: None,
) -> LoopResult:
    """Runs the loop on a fresh device of the plan: 100 calls, or as many as the plan has if that is fewer."""
    device, operands = device_of(plan, keeps_log=False), _operands(plan)
    digests: list[int] = []
    kept: dict[int, Outputs] = {}  # all of them: the loop's verdict needs every mean, and statistics are small
    raised = 0
    for _ in range(min(FIELD_CALLS, plan.calls)):
        if stopped():
            break
        outputs = make_call(device, operands)
        progressed()
        if isinstance(outputs, SteadySumError):
            raised += 1
            continue
        digests.append(digest(outputs))
        kept.setdefault(digests[-1], tuple(outputs))
    return LoopResult(run_field_loop(Recording(tuple(digests), kept), plan.shape.vocabulary), raised)


def _operands(plan: EmulationPlan) -> Operands:
    """Plain normal numbers for both, as the report draws them."""
    rows, hidden, vocabulary = plan.shape
    generator = torch.Generator().manual_seed(plan.seed)
    input = torch.randn(rows, hidden, generator=generator)
    weight = torch.randn(vocabulary, hidden, generator=generator)
    return Operands(input.to(plan.dtype), weight.to(plan.dtype))
