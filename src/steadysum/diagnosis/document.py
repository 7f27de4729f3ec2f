"""The check as JSON, and how any of the package's JSON files is written.

Schema `steadysum.check/1`. Additions keep the number; a changed or removed key raises it. Keys:

    schema        "steadysum.check/1"
    complete      true once every planned probe has run; the file is rewritten after each finding, so a stopped or
                  killed check leaves its findings so far with complete = false
    exit_code     what the command ends with: 0 no deviation seen, 1 deviates, 2 could not run or finish
    created       time of this writing, ISO 8601, UTC
    environment   {steadysum, python, torch, numpy, machine, isa, torch_threads}; isa is null without `native`
    plan          {runs, threads: [int], seed, confidence, interpreted_runs}; the last one (int or null) is in place of
                  runs for kernels that were interpreted
    missing       {kernel: why it isn't available, or was left out}
    interpreted   {kernel: what made it run in an interpreter on the CPU}; empty if none did
    problems      [{rows, hidden, vocabulary, dtype, source, findings: [finding]}]

    finding       kernel, probe       strings: one row of the table
                  verdict             "no deviation seen" | "deviates" | "varies (not promised)"
                                      | "hidden by repeat" | "within bound" | "error too large"
                                      | "no finite row to compare" | "information" | "could not run" | "not run"
                  is_fault            whether the verdict counts against the kernel
                  note                one sentence, may be empty
                  promise             "run-to-run" | "threads" | "batch" | null: what the probe tests
                  promised            whether the kernel promises it
                  evidence            null, or {calls, planned, deviating, interval: [low, high], largest, variants}:
                                      interval is the exact 95 % interval of the rate of deviating calls;
                                      largest {rows, first_row (int or null), ulps, absolute, output (string or null)};
                                      variants [{label, calls, deviating, agrees}]
                  accuracy            null, or {rows, of_rows, extra_rows, finite_rows, statistics: [{statistic,
                                      error, plain, bound, largest, largest_row, ulps}]}: error and plain
                                      (torch's) are root mean squares against float64; largest_row is null
                                      where it is none of the batch's
                  field_loop          null, or {calls, reported, deviating, largest}: the field report's own loop

Numbers that JSON can't hold are the strings "inf", "-inf" and "nan".
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from steadysum.diagnosis.checking import CheckReport, Finding
from steadysum.diagnosis.environment import versions
from steadysum.diagnosis.rates import CONFIDENCE, clopper_pearson

SCHEMA = "steadysum.check/1"


def check_document(report: CheckReport) -> dict[str, Any]:
    """The report as the schema above has it."""
    plan = report.plan
    return {
        "schema": SCHEMA,
        "complete": report.complete,
        "exit_code": report.exit_code,
        "created": created(),
        "environment": versions(),
        "plan": {
            "runs": plan.runs,
            "threads": list(plan.threads),
            "seed": plan.seed,
            "confidence": CONFIDENCE,
            "interpreted_runs": plan.interpreted_runs,
        },
        "missing": report.missing,
        "interpreted": dict(report.interpreted),
        "problems": [
            {
                **problem.shape._asdict(),
                "dtype": problem.dtype,
                "source": problem.source,
                "findings": [_finding(finding) for finding in problem.findings],
            }
            for problem in report.problems
        ],
    }


def created() -> str:
    """Now, in the form of the schema."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def write_json(document: dict[str, Any], path: Path) -> None:
    """Writes to a temporary name beside `path`, and renames: readers see the old file or the new one, never a half.

    Raises:
        OSError: the folder doesn't exist or can't be written to.
    """
    text = json.dumps(_finite(document), indent=2, allow_nan=False) + "\n"
    try:
        _replace(path, text)
    except OSError as error:  # it names the temporary file, which the user has never heard of
        raise OSError(error.errno, error.strerror, str(path)) from error


def _replace(path: Path, text: str) -> None:
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp's own 0600 would hide a report from other users
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _finding(finding: Finding) -> dict[str, Any]:
    evidence = None
    if finding.evidence is not None:
        evidence = asdict(finding.evidence)
        evidence["interval"] = list(clopper_pearson(finding.evidence.deviating, finding.evidence.calls))
    return {
        "kernel": finding.kernel,
        "probe": finding.probe,
        "verdict": finding.judgement.verdict.value,
        "is_fault": finding.judgement.verdict.is_fault,
        "note": finding.judgement.note,
        "promise": finding.promise,
        "promised": finding.promised,
        "evidence": evidence,
        "accuracy": None if finding.accuracy is None else asdict(finding.accuracy),
        "field_loop": None if finding.loop is None else asdict(finding.loop),
    }


def _finite(value: Any) -> Any:
    """The value with its non-finite numbers as strings."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
