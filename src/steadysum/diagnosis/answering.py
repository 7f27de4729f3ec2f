"""A first answer from the evidence: does it deviate, and is that rounding? Names no cause."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from steadysum.diagnosis.probing.catalogue import EXACT_INPUTS, FLOAT64, REFERENCE, RERUN, SAME_RANDOM_STATE
from steadysum.diagnosis.records import Answer, Evidence, Outcome

__all__ = ["Answered", "answer_of"]

_ROUNDING: Final = 1e-5  # of the largest number: fp32 sums of 2^14 terms of random signs are nearer than that


class Answered(NamedTuple):
    """The answer, with its sentence."""

    answer: Answer
    verdict: str


def answer_of(evidence: Sequence[Evidence]) -> Answered:
    """Weighs what deviates.

    >>> answer_of([]).verdict
    'No probe has ended.'
    """
    told = [one for one in evidence if one.outcome is not Outcome.VOID]
    if not told:
        return Answered(Answer.NOT_DECIDED, "No probe has ended.")
    if any("failed_in_all_runs" in one.facts for one in told if one.probe == RERUN.name):
        return Answered(Answer.FAILED, "It fails in every plain run.")
    unlike = [one for one in told if one.outcome is not Outcome.SAME]
    faults = [one for one in unlike if _is_fault(one)]
    if faults:
        first = faults[0]
        how = "fails" if first.outcome is Outcome.FAILED else "gives a result that rounding doesn't explain"
        return Answered(Answer.FAULT, f"It {how}: {first.probe}, {first.deviating} of {first.runs} runs.")
    changed = [one for one in unlike if one.probe not in (FLOAT64.name, REFERENCE.name, EXACT_INPUTS.name)]
    if not changed:
        unasked = len(evidence) - len(told)
        left_out = f"; {unasked} probes say nothing" if unasked else ""
        seen = f"Nothing deviates in {told[0].runs} plain runs and {len(told) - 1} probes{left_out}."
        return Answered(Answer.CLEAN if len(told) > unasked else Answer.NOT_DECIDED, seen)
    names = ", ".join(one.probe for one in changed[:4])
    return Answered(Answer.HARMLESS, f"Its bits change as rounding in another order does: {names}.")


def _is_fault(one: Evidence) -> bool:
    if one.probe == SAME_RANDOM_STATE.name:
        return False
    if one.outcome is Outcome.FAILED or "beyond_rounding" in one.facts:
        return True
    if one.pattern is None or one.compared_with in (FLOAT64.compared_with, REFERENCE.compared_with):
        return False
    return not one.pattern.relative_error <= _ROUNDING
