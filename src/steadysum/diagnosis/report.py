"""The check as tables for a terminal, from 80 columns on. The same as JSON: document.py."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from steadysum.diagnosis.accuracy import Accuracy
from steadysum.diagnosis.checking import INTERPRETED_SHAPES, CheckReport, Finding, ProblemReport, title
from steadysum.diagnosis.compare import NAN_ULPS
from steadysum.diagnosis.field_loop import FieldLoop
from steadysum.diagnosis.probes import Evidence
from steadysum.diagnosis.rates import clopper_pearson, runs_needed
from steadysum.diagnosis.verdicts import Verdict
from steadysum.tables import titled_table

_STYLES = {
    Verdict.NONE_SEEN: "green",
    Verdict.WITHIN: "green",
    Verdict.DEVIATES: "bold red",
    Verdict.INACCURATE: "bold red",
    Verdict.FAILED: "bold red",
    Verdict.NOTHING_FINITE: "yellow",
    Verdict.UNDECIDED: "yellow",
    Verdict.VARIES: "cyan",
    Verdict.INFORMATION: "dim",
    Verdict.NOT_RUN: "dim",
}
_WITH_NOTE = (Verdict.DEVIATES, Verdict.INACCURATE, Verdict.FAILED, Verdict.NOTHING_FINITE)
RARE = 1e-3  # the example of a rate that a short check can't exclude


def render(report: CheckReport) -> RenderableType:
    """All tables, what they mean, and what was left out."""
    parts: list[RenderableType] = []
    for problem in report.problems:
        parts += [problem_table(problem, tuple(report.interpreted)), *_notes(problem), Text()]
    parts += [_interpreted(report, name, why) for name, why in report.interpreted.items()]
    parts += [_missing(name, why) for name, why in report.missing.items()]
    parts.append(_conclusion(report))
    return Group(*parts)


def problem_table(problem: ProblemReport, interpreted: Sequence[str] = ()) -> Table:
    """Rows: kernel x probe; the heading names the kernels that were interpreted."""
    heading = title(problem) + "".join(f"; {name} is interpreted" for name in interpreted)
    table = titled_table(heading)
    table.add_column("kernel", no_wrap=True)
    table.add_column("probe", no_wrap=True)
    table.add_column("deviating", justify="right", no_wrap=True)
    table.add_column("95 %\ninterval", justify="right", no_wrap=True)
    table.add_column("ulp", justify="right", no_wrap=True)
    table.add_column("absolute", justify="right", no_wrap=True)
    table.add_column("verdict")
    shown = ""
    for finding in problem.findings:
        if shown and finding.kernel != shown:
            table.add_section()
        style = _STYLES[finding.judgement.verdict]
        verdict = Text(_verdict(finding), style=style)
        table.add_row("" if finding.kernel == shown else finding.kernel, finding.probe, *_cells(finding), verdict)
        shown = finding.kernel
    return table


def _cells(finding: Finding) -> tuple[str, str, str, str]:
    """deviating, interval, ulp, absolute."""
    if finding.evidence is not None:
        return _evidence_cells(finding.evidence)
    if finding.accuracy is not None:
        return _accuracy_cells(finding.accuracy)
    if finding.loop is not None:
        return _loop_cells(finding.loop)
    return ("-", "-", "-", "-")


def _evidence_cells(evidence: Evidence) -> tuple[str, str, str, str]:
    largest = evidence.largest
    return (
        f"{evidence.deviating} of {evidence.calls}",
        _interval(evidence.deviating, evidence.calls),
        _ulps(largest.ulps),
        _number(largest.absolute),
    )


def _accuracy_cells(accuracy: Accuracy) -> tuple[str, str, str, str]:
    statistics = accuracy.statistics
    return ("-", "-", _ulps(max(s.ulps for s in statistics)), _number(max(s.largest for s in statistics)))


def _loop_cells(loop: FieldLoop) -> tuple[str, str, str, str]:
    return (f"{loop.reported} of {loop.calls}", _interval(loop.reported, loop.calls), "-", _number(loop.largest))


def _verdict(finding: Finding) -> str:
    if finding.loop is not None:
        return finding.loop.says
    if finding.accuracy is not None and finding.judgement.verdict is Verdict.WITHIN:
        worst = finding.accuracy.worst
        if worst.plain == 0.0 or not math.isfinite(worst.plain):
            return "within bound"
        return f"within, {worst.error / worst.plain:.2f} x torch"
    return finding.judgement.verdict.value


def _notes(problem: ProblemReport) -> Iterator[Text]:
    for finding in problem.findings:
        if finding.judgement.verdict in _WITH_NOTE and finding.judgement.note:
            yield Text(
                f"{finding.kernel}, {finding.probe}: {finding.judgement.note}", style=_STYLES[finding.judgement.verdict]
            )


def _interpreted(report: CheckReport, name: str, why: str) -> Text:
    text = f"{name} was interpreted ({why}): the same arithmetic on the CPU, hundreds of times slower"
    runs = report.plan.interpreted_runs
    if runs is not None and runs < report.plan.runs:
        text += f"; so {runs} calls a probe in place of {report.plan.runs}"
    if {problem.shape for problem in report.problems} <= set(INTERPRETED_SHAPES):
        text += ", and smaller shapes"
    return Text(f"{text}. What a GPU's compiler makes of it was not checked.", style="yellow")


def _missing(name: str, why: str) -> Text:
    return Text(f"{name} was not checked: {why}", style="yellow")


def _conclusion(report: CheckReport) -> Text:
    faults = [finding for finding in report.findings if finding.judgement.verdict.is_fault]
    stopped = "" if report.complete else "Stopped early: these are the findings so far. "
    if faults:
        named = ", ".join(dict.fromkeys(f"{finding.kernel} ({finding.probe})" for finding in faults))
        return Text(f"{stopped}Deviates: {named}.", style="bold red")
    if report.exit_code == 2:
        text = stopped or "Some questions have no answer. "
        return Text(text + _excluded(report), style="yellow")
    return Text(f"No promised bit differed. {_excluded(report)}", style="green")


def _excluded(report: CheckReport) -> str:
    """What no deviation in so many calls does, and does not, say."""
    clean = [f for f in report.findings if f.promised and f.judgement.verdict is Verdict.NONE_SEEN]
    calls = min((f.evidence.calls for f in clean if f.evidence is not None), default=0)
    if calls == 0:
        return "That excludes no rate of deviating calls."
    high = clopper_pearson(0, calls).high
    text = f"{calls} calls a probe exclude rates of deviating calls above {_percent(high)} (95 %), not rarer ones"
    if high <= RARE:
        return text + "."
    return f"{text}: to see 1 in {round(1 / RARE)}, run --runs {runs_needed(RARE)}."


def _interval(deviating: int, calls: int) -> str:
    if calls == 0:
        return "-"
    low, high = clopper_pearson(deviating, calls)
    return f"{_digits(low)}–{_percent(high)}"


def _percent(rate: float) -> str:
    return f"{_digits(rate)} %"


def _digits(rate: float) -> str:
    """Two digits of a rate in per cent; 0 and 100 without a point."""
    percent = 100.0 * rate
    if percent in (0.0, 100.0):
        return f"{percent:.0f}"
    return f"{percent:.1f}" if 1.0 <= percent < 9.95 else f"{percent:.2g}"


def _ulps(ulps: int) -> str:
    if ulps >= NAN_ULPS:
        return "NaN"
    return str(ulps) if ulps < 100_000 else f"{ulps:.0e}".replace("e+0", "e").replace("e+", "e")


def _number(value: float) -> str:
    return "0" if value == 0.0 else f"{value:.1e}"
