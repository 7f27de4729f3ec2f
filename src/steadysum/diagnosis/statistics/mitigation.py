"""What a mitigation did: the change of the rate, and beside it the change of the time, which may be the whole reason.

A fault that depends on timing goes, too, where a mitigation only makes the call slower. "None of 8" is no cure: what
remains possible is always shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from steadysum.diagnosis.rates import CONFIDENCE, Interval, clopper_pearson
from steadysum.diagnosis.statistics.difference import (
    Counts,
    Difference,
    difference_of_planned_runs,
    p_value_if_no_higher,
)
from steadysum.diagnosis.statistics.question import check_open_unit
from steadysum.diagnosis.statistics.slowdown import Slowdown, slowdown

__all__ = ["Effect", "Outcome", "effect_of"]


class Outcome(StrEnum):
    """What the runs show of a mitigation."""

    HELPS = "deviates less often"
    CONFOUNDED = "deviates less often, and takes another time: that alone may be why"
    WORSE = "deviates more often"
    NOT_SHOWN = "no difference shown"


@dataclass(frozen=True)
class Effect:
    """A mitigation beside its baseline."""

    baseline: Counts
    mitigated: Counts
    reduction: Difference  # of the rate: the baseline's less the mitigation's
    remaining: Interval  # rates that are still possible with the mitigation
    p_value: float  # two-sided, exact: so large a difference or a larger one by chance, if there is none
    slowdown: Slowdown
    outcome: Outcome


def effect_of(
    baseline: Counts,
    mitigated: Counts,
    baseline_seconds: Sequence[float],
    mitigated_seconds: Sequence[float],
    confidence: float = CONFIDENCE,
) -> Effect:
    """Compares a mitigation's runs with its baseline's.

    Args:
        baseline: counts of runs without it. Both numbers of runs were fixed before the start: see
            planning.runs_to_compare.
        mitigated: counts of runs with it.
        baseline_seconds: seconds of each run, or of some of them that stand for all.
        mitigated_seconds: likewise, with the mitigation.
        confidence: of each interval and of the test, in (0, 1).

    Raises:
        ValueError: counts that can't be.
        RangeError: too few times, times that can't be (see slowdown.slowdown), or confidence outside of (0, 1).

    A difference counts as shown where both the exact test and the interval say so: the test errs no more often than
    asked for, the interval says how large the difference is.

    >>> effect = effect_of(Counts(8, 336), Counts(0, 336), [1.0] * 21, [1.5] * 21)
    >>> effect.outcome.value
    'deviates less often, and takes another time: that alone may be why'
    >>> f"{effect.remaining.high:.3f}"
    '0.011'
    """
    check_open_unit("confidence", confidence)
    reduction = difference_of_planned_runs(baseline, mitigated, confidence)
    one_sided = min(p_value_if_no_higher(baseline, mitigated), p_value_if_no_higher(mitigated, baseline))
    p_value = min(1.0, 2.0 * one_sided)
    slower = slowdown(baseline_seconds, mitigated_seconds, confidence)
    shown = p_value <= 1.0 - confidence and reduction.excludes_zero
    return Effect(
        baseline=baseline,
        mitigated=mitigated,
        reduction=reduction,
        remaining=clopper_pearson(*mitigated, confidence),
        p_value=p_value,
        slowdown=slower,
        outcome=_outcome(reduction, slower) if shown else Outcome.NOT_SHOWN,
    )


def _outcome(reduction: Difference, slower: Slowdown) -> Outcome:
    """Of a difference that is there."""
    if reduction.high < 0.0:
        return Outcome.WORSE
    return Outcome.CONFOUNDED if slower.changes_timing else Outcome.HELPS
