"""From evidence to a verdict: what a probe's counts mean for a kernel with given promises.

The rules stand here alone, as text and as one function, so that they can be read and argued with.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from steadysum.diagnosis.probes import Evidence
from steadysum.diagnosis.rates import clopper_pearson


class Verdict(StrEnum):
    """What a row of the check's table ends with."""

    NONE_SEEN = "no deviation seen"  # no call deviated; the interval says what rates that excludes
    DEVIATES = "deviates"  # bits that the kernel promises differ
    VARIES = "varies (not promised)"  # bits differ that the kernel doesn't promise: information
    UNDECIDED = "hidden by repeat"  # the same call already deviates as often, so this probe can't show more
    WITHIN = "within bound"  # error against float64 no larger than the derived bound
    INACCURATE = "error too large"
    NOTHING_FINITE = "no finite row to compare"  # float64 itself gives NaN or an infinity for every row
    INFORMATION = "information"  # no verdict on the kernel
    FAILED = "could not run"  # the kernel raised
    NOT_RUN = "not run"  # stopped before its first call, or operands too small for the probe

    @property
    def is_fault(self) -> bool:
        """Whether the check exits with 1 for it."""
        return self in (Verdict.DEVIATES, Verdict.INACCURATE)

    @property
    def is_open(self) -> bool:
        """Whether a question has no answer, so that a check without faults exits with 2."""
        return self in (Verdict.FAILED, Verdict.NOTHING_FINITE)


class Judgement(NamedTuple):
    """A verdict, and one sentence on it where there is more to say."""

    verdict: Verdict
    note: str = ""


def judge(evidence: Evidence, promised: bool, repeat: Evidence) -> Judgement:
    """The verdict on one probe's evidence.

    Args:
        evidence: of the probe.
        promised: whether the kernel promises what the probe tests.
        repeat: evidence of the repeat probe of the same kernel and operands (may be `evidence` itself).

    A deviation counts against the kernel only where it promises these bits. Where the plain repeated call deviates too,
    another probe adds something only if its rate is higher beyond doubt: its interval lies wholly above.
    """
    if evidence.calls == 0:
        return Judgement(Verdict.NOT_RUN)
    if evidence.deviating == 0:
        return Judgement(Verdict.NONE_SEEN)
    note = _about(evidence)
    if not promised:
        return Judgement(Verdict.VARIES, note)
    if evidence is not repeat and repeat.deviating > 0:
        own = clopper_pearson(evidence.deviating, evidence.calls)
        if not own.lies_above(clopper_pearson(repeat.deviating, repeat.calls)):
            return Judgement(Verdict.UNDECIDED, "the same call again deviates as often")
    return Judgement(Verdict.DEVIATES, note)


def _about(evidence: Evidence) -> str:
    """Where the largest deviation is, and whether deviations come back when a variant is run again."""
    where = f"{evidence.largest.rows} rows, the first is row {evidence.largest.first_row}, in {evidence.largest.output}"
    wrong = [variant for variant in evidence.variants if variant.deviating]
    if len(evidence.variants) == 1:
        return where
    if evidence.comes_back:
        return f"{where}; comes back at {wrong[0].label}" + (f" and {len(wrong) - 1} more" if len(wrong) > 1 else "")
    return f"{where}; comes and goes at {wrong[0].label}: looks like run-to-run"
