"""A probe's runs beside the plain ones, as evidence: what deviates, how often, and whether more often than without it.

Not here: how the runs were made (session.py), and what the evidence means for a cause (causes/).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final, NamedTuple

from steadysum.diagnosis.isolation.conditions import INPUT_CHANGES, WAYS
from steadysum.diagnosis.isolation.kept import Outputs, read_outputs
from steadysum.diagnosis.probing.catalogue import PROBES, Probe
from steadysum.diagnosis.probing.comparing import read_all
from steadysum.diagnosis.probing.outline import outline
from steadysum.diagnosis.probing.tally import Tally
from steadysum.diagnosis.records import Evidence, Outcome, Pattern
from steadysum.diagnosis.statistics.anytime import anytime_interval
from steadysum.diagnosis.statistics.difference import Counts, p_value_if_no_higher
from steadysum.diagnosis.statistics.several import confidence_of_each

__all__ = ["Control", "evidence_of", "first_calls", "judged", "pattern_of"]

_MOST_ITERATIONS: Final = 256
_LEAST_TO_ALTERNATE: Final = 6  # runs: by chance, at a rate of one half, 1 in 32 would


class Control(NamedTuple):
    """The plain runs that probes are held against."""

    tally: Tally
    right: str | None  # the digest of the plain result; None: no run gave one
    outputs: Outputs | None  # of it


def evidence_of(
    probe: Probe,
    tally: Tally,
    planned: int,
    control: Control,
    confidence: float,
    right: str | None = None,  # compared with this digest rather than with the plain result
) -> Evidence:
    """The evidence of one probe's runs, its pattern included."""
    expected = control.right if right is None else right
    iterations = tally.unlike(expected)
    outcome, note = _outcome(probe, tally, len(iterations), control)
    is_said = outcome in (Outcome.DEVIATES, Outcome.FAILED)
    plain = len(control.tally.unlike(control.right))
    return Evidence(
        probe=probe.name,
        question=probe.question,
        compared_with=probe.compared_with,
        outcome=outcome,
        conditions=probe.conditions,
        planned=planned,
        runs=tally.runs,
        deviating=len(iterations) if is_said else 0,
        interval=anytime_interval(len(iterations) if is_said else 0, tally.runs, confidence),
        ending=tally.ending,
        acted=dict(tally.acted),
        seconds=tally.seconds,
        iterations=iterations[:_MOST_ITERATIONS] if is_said else (),
        pattern=pattern_of(tally, expected, control) if is_said else None,
        facts=frozenset() if outcome is Outcome.VOID else _facts(tally, expected, control, confidence),
        note=note,
        control_runs=control.tally.runs,
        control_deviating=plain,
        control_seconds=control.tally.seconds,
    )


def judged(probe: Probe, tally: Tally, found: float, allowed: float, pattern: Pattern | None) -> Evidence:
    """The evidence of a comparison with a reference: one plain result is near enough to it, or isn't."""
    is_wrong = found > allowed
    return Evidence(
        probe=probe.name,
        question=probe.question,
        compared_with=probe.compared_with,
        outcome=Outcome.DEVIATES if is_wrong else Outcome.SAME,
        conditions=probe.conditions,
        planned=probe.runs,
        runs=tally.runs,
        deviating=tally.runs if is_wrong else 0,
        interval=anytime_interval(0, 0),  # not of a rate
        ending=tally.ending,
        acted=dict(tally.acted),
        seconds=tally.seconds,
        pattern=pattern,
        facts=frozenset({"beyond_rounding" if is_wrong else "within_rounding"}),
        note=f"The largest error is {found:.2g} of the largest number; rounding explains {allowed:.2g}.",
    )


def first_calls(
    firsts: Tally, later: Tally, probe: Probe, planned: int, control: Control, confidence: float
) -> Evidence:
    """The evidence of the first calls of several processes; the later calls in them are the control."""
    made = evidence_of(probe, firsts, planned, control, confidence)
    late = len(later.unlike(control.right))
    facts = {"first_and_later"} if made.deviating and late else set()
    if made.deviating == made.runs > 0 and not late:
        facts.add("only_first_call")
    return replace(made, facts=frozenset(facts), control_runs=later.runs, control_deviating=late)


def pattern_of(tally: Tally, right: str | None, control: Control) -> Pattern | None:
    """Where the kept outputs differ from the right one; None: there is no right one, or no other was kept."""
    whole = control.outputs
    if right != control.right:  # of the probe's own runs
        path = tally.kept.get(right or "")
        whole = read_outputs(path) if path is not None else None
    deviating = read_all([path for digest, path in tally.kept.items() if digest != right])
    if whole is None or not deviating:
        return None
    return outline(whole, deviating)


def _outcome(probe: Probe, tally: Tally, unlike: int, control: Control) -> tuple[Outcome, str]:
    if tally.ending.kind == "void":
        return Outcome.VOID, tally.ending.detail
    if tally.runs == 0:
        return Outcome.VOID, "no run was made"
    changes_call = any(one.name in INPUT_CHANGES or one.name in WAYS for one in probe.conditions)
    if tally.failed == tally.runs and changes_call and control.tally.failed < control.tally.runs:
        last = tally.ending.detail.strip().rpartition("\n")[2]
        return Outcome.VOID, f"the operator doesn't take such a call: {last}"
    if tally.failed:
        return Outcome.FAILED, ""
    return (Outcome.DEVIATES, "") if unlike else (Outcome.SAME, "")


def _facts(tally: Tally, right: str | None, control: Control, confidence: float) -> frozenset[str]:
    unlike = tally.unlike(right)
    facts = set()
    if tally is control.tally:
        facts |= _of_plain(tally, unlike)
    else:
        own = Counts(len(unlike), tally.runs)
        plain = Counts(len(control.tally.unlike(control.right)), control.tally.runs)
        # One in all the probes by chance is one too many; that a rate falls supports a cause, and proves none.
        if p_value_if_no_higher(own, plain) <= 1.0 - confidence_of_each(len(PROBES), confidence):
            facts.add("more_often_than_control")
        elif p_value_if_no_higher(plain, own) <= 1.0 - confidence:
            facts.add("less_often_than_control")
    if len(unlike) == tally.runs > 1 and len(set(tally.digests)) == 1 and not tally.failed:
        facts.add("same_in_all_runs")
    return frozenset(facts)


def _of_plain(tally: Tally, unlike: Sequence[int]) -> set[str]:
    facts = {name for name, holds in (("draws", tally.draws), ("writes_inputs", tally.writes_inputs)) if holds}
    different = {digest for digest in tally.digests if digest is not None}
    if tally.failed == tally.runs > 0:
        facts.add("failed_in_all_runs")
    elif len(different) == tally.runs > 2:
        facts.add("every_run_differs")
    if unlike == (1,) and tally.runs > 2:
        facts.add("only_first_run")
    steps = {later - earlier for earlier, later in pairwise(unlike)}
    if steps == {2} and tally.runs >= _LEAST_TO_ALTERNATE and abs(tally.runs - 2 * len(unlike)) <= 1:
        facts.add("every_second_run")
    return facts
