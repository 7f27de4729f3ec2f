"""`steadysum check` as a function: every problem x kernel x probe, one finding at a time.

Findings are handed out as soon as they are known, so that a stopped or killed check leaves what it has. Knows nothing
of tables and files (report.py, document.py), nor of command lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from torch import Tensor

from steadysum.diagnosis.accuracy import Accuracy, Oracle, consult, extra_rows, measure_accuracy, sample_rows
from steadysum.diagnosis.arguments import DTYPE_NAMES, Shape
from steadysum.diagnosis.field_loop import FieldLoop, run_field_loop
from steadysum.diagnosis.observe import Recording
from steadysum.diagnosis.operands import OperandSource
from steadysum.diagnosis.probes import (
    REPEAT,
    RUNS_OF_A_CUT,
    SHARDS,
    Evidence,
    Plan,
    Probe,
    Variant,
    probes_of,
    record,
    weigh,
)
from steadysum.diagnosis.subject import Operands, Subject
from steadysum.diagnosis.subjects import reference_statistics
from steadysum.diagnosis.verdicts import Judgement, Verdict, judge

FIELD_SHAPE = Shape(1024, 256, 512)  # the field report's
# GPT-2's LM head, padded to a multiple of 128. With 32 rows a check of it takes some 20 seconds of one core.
HEAD_SHAPE = Shape(32, 768, 50304)
# 59 calls are needed to see, with 95 % chance, the lower end of the field report's 5 to 10 % of wrong calls.
RUNS = 60
# Where a kernel promises nothing, a tenth of the calls still shows that it varies; it has no rate to bound.
INFORMATION_SHARE = 10
THREADS = (1, 2, 3)  # 3: an uneven share of the tiles for some thread
DEFAULT_SHAPES = (FIELD_SHAPE, HEAD_SHAPE)
# An interpreter takes 15 s for one call of the LM head, so these take its place where some subject is interpreted: 16
# segments, each of a whole tile and a ragged one, and fewer rows of the report's shape. With 6 runs a check takes
# about a minute. 6 calls show a broken kernel, not a rare fault; interpreted code has no races to find.
INTERPRETED_SHAPES = (Shape(64, 256, 512), Shape(8, 64, 8200))
INTERPRETED_RUNS = 6

ACCURACY = "vs float64"
FIELD_LOOP = "field loop"


DEFAULT_PLAN = Plan(RUNS, THREADS, seed=0, interpreted_runs=INTERPRETED_RUNS)


def default_shapes(subjects: Sequence[Subject]) -> tuple[Shape, ...]:
    """What a check runs where no shape is asked for."""
    return INTERPRETED_SHAPES if any(subject.interpreted for subject in subjects) else DEFAULT_SHAPES


@dataclass(frozen=True)
class Finding:
    """One row of the table: what a probe showed on a kernel. One of the last three is set, none where it didn't run."""

    kernel: str
    probe: str
    judgement: Judgement
    promise: str | None = None  # what the probe tests; None where a kernel can't promise it away
    promised: bool = False
    evidence: Evidence | None = None
    accuracy: Accuracy | None = None
    loop: FieldLoop | None = None


@dataclass(frozen=True)
class ProblemReport:
    """The findings on one set of operands."""

    shape: Shape
    dtype: str
    source: str
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class CheckReport:
    """All findings so far."""

    plan: Plan
    missing: dict[str, str]  # kernel that isn't available -> why
    problems: tuple[ProblemReport, ...] = ()
    complete: bool = False  # every planned probe has run
    interpreted: Mapping[str, str] = field(default_factory=dict)  # kernel that is interpreted -> what makes it so

    @property
    def findings(self) -> list[Finding]:
        """Of all problems."""
        return [finding for problem in self.problems for finding in problem.findings]

    @property
    def exit_code(self) -> int:
        """1: some kernel deviates or is inaccurate; else 2: something could not run or finish; else 0."""
        verdicts = [finding.judgement.verdict for finding in self.findings]
        if any(verdict.is_fault for verdict in verdicts):
            return 1
        if not self.complete or not verdicts or any(verdict.is_open for verdict in verdicts):
            return 2
        return 0


class Watcher(Protocol):
    """Who is told how a check goes, and may end it."""

    def stopped(self) -> bool:
        """Whether to end the check before the next call."""

    def begins(self, what: str, calls: int) -> None:
        """A problem begins that takes so many calls."""

    def probing(self, what: str) -> None:
        """A probe begins."""

    def progressed(self) -> None:
        """A call is done."""

    def found(self, report: CheckReport) -> None:
        """There is one more finding, or a problem begins, or the check is complete."""


class Unwatched:
    """Tells nobody, and never ends a check."""

    def stopped(self) -> bool:
        """Never."""
        return False

    def begins(self, what: str, calls: int) -> None:
        """Ignored."""

    def probing(self, what: str) -> None:
        """Ignored."""

    def progressed(self) -> None:
        """Ignored."""

    def found(self, report: CheckReport) -> None:
        """Ignored."""


def run_check(
    source: OperandSource,
    subjects: Sequence[Subject],
    plan: Plan = DEFAULT_PLAN,
    missing: dict[str, str] | None = None,
    watcher: Watcher | None = None,
) -> CheckReport:
    """Checks every subject on every problem.

    Args:
        source: of the problems' operands.
        subjects: operators to check.
        plan: how much to run.
        missing: kernels that aren't available, and why; only reported.
        watcher: told how the check goes; may end it between two calls.

    Raises:
        SteadySumError: the source can't be used.
    """
    watcher = watcher or Unwatched()
    interpreted = {subject.name: subject.interpreted for subject in subjects if subject.interpreted}
    report = CheckReport(plan, missing or {}, interpreted=interpreted)
    for operands in source.load():
        problem = ProblemReport(Shape(*operands.shape), DTYPE_NAMES[operands.input.dtype], operands.source)
        before = report.problems
        watcher.found(report)  # before the work, so that a report that can't be written is known at once
        watcher.begins(title(problem), _planned_calls(subjects, operands, plan))
        for finding in check_operands(subjects, operands, plan, watcher):
            problem = replace(problem, findings=(*problem.findings, finding))
            report = replace(report, problems=(*before, problem))
            watcher.found(report)
        if watcher.stopped():
            return report
    report = replace(report, complete=True)
    watcher.found(report)
    return report


def check_operands(
    subjects: Sequence[Subject], operands: Operands, plan: Plan, watcher: Watcher | None = None
) -> Iterator[Finding]:
    """The findings of all probes on all subjects, for one set of operands."""
    watcher = watcher or Unwatched()
    oracle: Oracle | None = None
    everywhere = operands
    for subject in subjects:
        operands = everywhere.on(subject.device)
        repeat: Recording | None = None
        repeated: Evidence | None = None
        for probe in probes_of(subject):
            if watcher.stopped():
                break
            watcher.probing(f"{subject.name}: {probe.name}")
            variants = _variants(probe, subject, operands, plan)
            recordings, failure = _record(variants, watcher)
            if failure is not None or not recordings:
                judgement = (
                    Judgement(Verdict.FAILED, failure) if failure else Judgement(Verdict.NOT_RUN, _too_small(probe))
                )
                yield _finding(subject, probe, judgement, None)
                if probe is REPEAT:
                    break  # nothing to compare the other probes with
                continue
            repeat = repeat or recordings[0]
            evidence = weigh(subject, variants, recordings, repeat)
            repeated = repeated or evidence
            yield _finding(subject, probe, judge(evidence, probe.promise in subject.promises, repeated), evidence)
        if repeat is None or repeat.calls == 0:
            continue
        if not watcher.stopped():
            watcher.probing(f"{subject.name}: {ACCURACY}")
            oracle = oracle or _oracle(everywhere, plan)
            yield _check_accuracy(subject, operands, repeat, oracle)
        loop = run_field_loop(repeat, operands.shape[2])
        yield Finding(subject.name, FIELD_LOOP, Judgement(Verdict.INFORMATION, loop.says), loop=loop)


def title(problem: ProblemReport) -> str:
    """The problem in a line."""
    shape = problem.shape
    return f"N={shape.rows} H={shape.hidden} V={shape.vocabulary} {problem.dtype}, {problem.source}"


def _variants(probe: Probe, subject: Subject, operands: Operands, plan: Plan) -> list[Variant]:
    plan = plan.of(subject)
    if probe is not REPEAT and probe.promise not in subject.promises:
        plan = replace(plan, runs=max(RUNS_OF_A_CUT, plan.runs // INFORMATION_SHARE))
    return probe.variants(subject, operands, plan)


def _too_small(probe: Probe) -> str:
    return "one segment of the vocabulary" if probe is SHARDS else "too few rows"


def _planned_calls(subjects: Sequence[Subject], operands: Operands, plan: Plan) -> int:
    return sum(
        variant.runs
        for subject in subjects
        for probe in probes_of(subject)
        for variant in _variants(probe, subject, operands, plan)
    )


def _record(variants: Sequence[Variant], watcher: Watcher) -> tuple[list[Recording], str | None]:
    """The recordings, and what the subject raised. That it raises for one batch or thread count is itself a finding."""
    try:
        return record(variants, watcher.stopped, watcher.progressed), None
    except Exception as error:
        return [], f"{type(error).__name__}: {error}"


def _finding(subject: Subject, probe: Probe, judgement: Judgement, evidence: Evidence | None) -> Finding:
    return Finding(
        kernel=subject.name,
        probe=probe.name,
        judgement=judgement,
        promise=probe.promise,
        promised=probe.promise in subject.promises,
        evidence=evidence,
    )


def _oracle(operands: Operands, plan: Plan) -> Oracle:
    rows = sample_rows(operands, plan.seed)
    return consult(operands, rows, reference_statistics, extra_rows(operands, rows, plan.seed))


def _check_accuracy(subject: Subject, operands: Operands, repeat: Recording, oracle: Oracle) -> Finding:
    """The batch's rows are judged by the repeated call's usual outputs, those beside it by one call of their own."""
    extra: Sequence[Tensor] | None = None
    if oracle.extra.shape[0]:
        try:
            extra = subject.call(oracle.extra.to(subject.device), operands.weight)
        except Exception as error:
            return Finding(subject.name, ACCURACY, Judgement(Verdict.FAILED, f"{type(error).__name__}: {error}"))
    return _accuracy_finding(subject, measure_accuracy(repeat.usual_outputs, oracle, extra))


def _accuracy_finding(subject: Subject, accuracy: Accuracy) -> Finding:
    worst = accuracy.worst
    note = f"{worst.statistic}: {worst.error:.2g} rms; torch {worst.plain:.2g}; allowed {worst.bound:.2g}"
    if accuracy.rows < accuracy.of_rows:
        note += f"; on {accuracy.rows} of {accuracy.of_rows} rows"
    if accuracy.extra_rows:
        note += f"; with {accuracy.extra_rows} rows of other signs"
    verdict = Verdict.WITHIN
    if not accuracy.within:
        verdict = Verdict.INACCURATE
        note += (
            "; largest in a row of other signs"
            if worst.largest_row is None
            else f"; largest in row {worst.largest_row}"
        )
    elif accuracy.finite_rows == 0:
        verdict, note = Verdict.NOTHING_FINITE, "float64 gives NaN or an infinity for every row; look at the operands"
    return Finding(subject.name, ACCURACY, Judgement(verdict, note), accuracy=accuracy)
