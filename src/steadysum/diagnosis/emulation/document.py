"""An emulation as JSON.

Schema `steadysum.emulation/1`. Additions keep the number; a changed or removed key raises it. Keys:

    schema        "steadysum.emulation/1"
    complete      true once all calls and the field report's loop were made; the file is rewritten every few seconds,
                  so a stopped or killed run leaves its calls so far with complete = false
    exit_code     what the command ends with: 0 no call deviates or raises, 1 some does, 2 stopped before any did, or an
                  armed fault never acted
    created       time of this writing, ISO 8601, UTC
    environment   {steadysum, python, torch, numpy, machine, isa, torch_threads}
    plan          {shape: [N, H, V], cores, policy, settings: {sync_wait_timeout, allreduce_policy, enable_async,
                  max_retries, heartbeat_interval}, load, faults: [text], calls, seed, scheduler, inputs, dtype,
                  logits_dtype (or null), tile: [rows, columns]}
    threshold     absolute deviation of a row's max or log-sum above which a call deviates
    calls         made so far
    outcomes      {"right", "other bits", "deviates", "raised": number of calls}
    deviating     {calls, rate, interval: [low, high], confidence}: the interval is exact (Clopper-Pearson)
    raised        [{error, cores: [int], calls}]
    noticed       {calls, right, launched_again}: calls in which a policy saw anything wrong, those of them that were
                  right in the end, and calls that it launched more than once
    faults        [{fault, offered, acted}]: how often each could have acted, and did
    void          [fault]: armed, and never acted, so that nothing is said about them
    worst         null, or {largest, call, rows, first_row}: the call with the largest deviation
    pattern       [sentence]: what deviating calls have in common
    hazards       {calls, with_manifest, places: [{kind, region, first, second, manifest, calls}]}: of the deviating
                  calls; first and second are the phases of the two accesses
    last_hazards  null, or {call, and the keys of steadysum.hazards/1}: of the newest deviating call, all of them
    unit          of the waits' times: "us" of the virtual clock, or "choices" where a schedule has none
    waits         [{phase, action, name, count, ok, p50, p90, p99, p999, largest}]: of each sync point, over all calls;
                  percentiles are at most 2.2 % too high
    field_loop    null, or {calls, reported, deviating, largest, raised, says}: the field report's own loop on such a
                  device
    trace         the file of the recorded trace, or why there is none, or null

Numbers that JSON can't hold are the strings "inf", "-inf" and "nan".
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from steadysum.diagnosis.document import created
from steadysum.diagnosis.emulation.judge import THRESHOLD
from steadysum.diagnosis.emulation.plan import values_of
from steadysum.diagnosis.emulation.tally import EmulationReport
from steadysum.diagnosis.environment import versions
from steadysum.diagnosis.rates import CONFIDENCE
from steadysum.sync.hazard_report import hazards_document

__all__ = ["SCHEMA", "emulation_document"]

SCHEMA: Final = "steadysum.emulation/1"


def emulation_document(report: EmulationReport) -> dict[str, Any]:
    """The report as the schema above has it."""
    return {
        "schema": SCHEMA,
        "complete": report.complete,
        "exit_code": report.exit_code,
        "created": created(),
        "environment": versions(),
        "plan": values_of(report.plan),
        "threshold": THRESHOLD,
        "calls": report.calls,
        "outcomes": {outcome.value: count for outcome, count in report.outcomes.items()},
        "deviating": {
            "calls": report.deviating,
            "rate": report.deviating / report.calls if report.calls else None,
            "interval": list(report.interval),
            "confidence": CONFIDENCE,
        },
        "raised": [{**raised._asdict(), "calls": count} for raised, count in report.raised],
        "noticed": {
            "calls": report.noticed,
            "right": report.noticed_and_right,
            "launched_again": report.launched_again,
        },
        "faults": [{"fault": fault.text, "offered": fault.offered, "acted": fault.acted} for fault in report.faults],
        "void": list(report.void),
        "worst": None if report.worst is None else report.worst._asdict(),
        "pattern": list(report.pattern),
        "hazards": {
            "calls": report.hazards.calls,
            "with_manifest": report.hazards.with_manifest,
            "places": [{**place._asdict(), "calls": count} for place, count in report.hazards.places],
        },
        "last_hazards": (
            None if report.last_hazards is None else {"call": report.last_call, **hazards_document(report.last_hazards)}
        ),
        "unit": "us" if report.plan.has_clock else "choices",
        "waits": [
            {**figures.point._asdict(), **{key: value for key, value in asdict(figures).items() if key != "point"}}
            for figures in report.waits
        ],
        "field_loop": (
            None
            if report.loop is None
            else {**asdict(report.loop.loop), "raised": report.loop.raised, "says": report.loop.loop.says}
        ),
        "trace": report.trace,
    }
