"""`steadysum doctor` as a function: the facts, what is known of these versions, drift from a lock, and what to do next.

Schema `steadysum.doctor/1`. Additions keep the number; a changed or removed key raises it. Keys:

    schema       "steadysum.doctor/1"
    versions     as in the other documents
    exit_code    what the command ends with: 1 if a rule of level error applies or what computes isn't as locked, else 0
    sections     {section: [{name, value, note}]}: the facts, as they are printed
    environment  a record, of the schema in environment/record.py
    switches     [{name, value, meaning, matters, reproducible, advised}]
    rules        {checked, missing: [component], matches: [{component, version, level, symptom, remedy, source, where}],
                 unread: [{component, version, where}]}
    lock         null, or {file, differences: [{name, locked, here, is_error, note}]}
    next_steps   [sentence]
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from steadysum.diagnosis.environment import NEEDS, Fact, facts, versions
from steadysum.environment.determinism import Reading, devices_here, read_switches
from steadysum.environment.lock import Difference, differences, read_lock
from steadysum.environment.record import environment_record_by_tools
from steadysum.environment.rules import Judgement, Level, Match, judge, rules_of
from steadysum.environment.runtimes import loaded_runtimes, openmp_twice
from steadysum.environment.vendor import Found
from steadysum.kernels import native

__all__ = ["LOCK", "SCHEMA", "Examination", "doctor_document", "examine", "next_steps"]

SCHEMA: Final = "steadysum.doctor/1"

LOCK: Final = "Lock this environment: steadysum doctor --save lock.json, and later --against lock.json."

# How a switch of torch is set; a variable is set as it is written.
_CALLS: Final = {
    "torch.use_deterministic_algorithms": "torch.use_deterministic_algorithms(True)",
    "torch.utils.deterministic.fill_uninitialized_memory": "torch.utils.deterministic.fill_uninitialized_memory = True",
    "torch.backends.cudnn.deterministic": "torch.backends.cudnn.deterministic = True",
    "torch.backends.cudnn.benchmark": "torch.backends.cudnn.benchmark = False",
}


class Examination(NamedTuple):
    """All that the doctor found."""

    record: Mapping[str, Any]
    sections: Mapping[str, list[Fact]]
    readings: tuple[Reading, ...]
    judgement: Judgement
    lock: str | None  # the file, if any, that was compared with
    differences: tuple[Difference, ...]
    openmp: str | None  # what is wrong with the OpenMP libraries

    @property
    def exit_code(self) -> int:
        """1 if this environment isn't to be used, or isn't the one that was locked."""
        drifted = any(difference.is_error for difference in self.differences)
        return int(drifted or self.judgement.worst is Level.ERROR)


def examine(rules: Iterable[str | os.PathLike[str]] = (), against: str | os.PathLike[str] | None = None) -> Examination:
    """Look at this environment.

    Args:
        rules: files of version rules beside those of the package.
        against: the lock to compare with, if any.

    Raises:
        RulesError: a file of rules can't be used.
        LockError: the lock can't be used.

    Source: the field report, R9, R14 and R21.
    """
    known = rules_of(rules)
    locked = None if against is None else read_lock(against)
    record = environment_record_by_tools()
    components = {name: Found(**found) for name, found in record["components"].items()}
    readings = read_switches(devices_here(components))
    return Examination(
        record,
        facts(components, readings),
        readings,
        judge(known, components),
        None if against is None else str(against),
        () if locked is None else differences(locked, record),
        openmp_twice(loaded_runtimes() or ()),
    )


def next_steps(found: Examination) -> tuple[str, ...]:
    """What to do, the most pressing first."""
    steps = [
        *_of_lock(found.differences),
        *(_of_rule(match) for match in found.judgement.matches if match.rule.level is not Level.NOTE),
        *(
            f"Look up the version of {rule.component} yourself: {seen} doesn't read as one, and there is a rule on it."
            for rule, seen in found.judgement.unread
        ),
        *_of_vendor(found.record["components"]),
    ]
    if found.openmp is not None:
        steps.append(
            f"{found.openmp} Install the packages that bring them from one place (all from PyPI, or all from conda); "
            "KMP_DUPLICATE_LIB_OK only hides it."
        )
    reason = native.missing()
    if reason is not None:
        steps.append(f"The native kernel is missing: {reason.removesuffix('.')}. {NEEDS['native']}")
    steps.extend(_of_switches(found.readings))
    if found.lock is None:
        steps.append(LOCK)
    steps.append("Check the operators themselves: steadysum check.")
    return tuple(steps)


def doctor_document(found: Examination) -> dict[str, Any]:
    """The examination as the schema above has it."""
    return {
        "schema": SCHEMA,
        "versions": versions(),
        "exit_code": found.exit_code,
        "sections": {section: [fact._asdict() for fact in lines] for section, lines in found.sections.items()},
        "environment": dict(found.record),
        "switches": [reading._asdict() for reading in found.readings],
        "rules": {
            "checked": found.judgement.checked,
            "missing": list(found.judgement.missing),
            "matches": [
                {
                    "component": match.rule.component,
                    "version": match.version,
                    "level": match.rule.level.value,
                    "symptom": match.rule.symptom,
                    "remedy": match.rule.remedy,
                    "source": match.rule.source,
                    "where": match.rule.where,
                }
                for match in found.judgement.matches
            ],
            "unread": [
                {"component": rule.component, "version": seen, "where": rule.where}
                for rule, seen in found.judgement.unread
            ],
        },
        "lock": None
        if found.lock is None
        else {"file": found.lock, "differences": [difference._asdict() for difference in found.differences]},
        "next_steps": list(next_steps(found)),
    }


def _of_lock(found: tuple[Difference, ...]) -> list[str]:
    errors = [difference for difference in found if difference.is_error]
    if not errors:
        return []
    back = ", ".join(f"{each.name} {each.locked or 'not installed'}" for each in errors)
    return [
        f"Put back what was locked ({back}); or, if the change is meant, run steadysum check, and save a new lock with "
        "steadysum doctor --save."
    ]


def _of_rule(match: Match) -> str:
    return f"{match.rule.component} {match.version}: {match.rule.remedy}"


def _of_vendor(components: Mapping[str, Any]) -> list[str]:
    """Where there is an NPU, a version that isn't known can't be judged."""
    has_npu = any(components[name]["version"] is not None for name in ("npu-driver", "npu-chip", "torch-npu"))
    if not has_npu:
        return []
    steps = {
        "cann": "CANN's version isn't known: source set_env.sh of the toolkit, which sets ASCEND_HOME_PATH.",
        "npu-chip": "The NPU's kind isn't known: see that npu-smi is on the PATH, and that npu-smi info lists it.",
    }
    return [step for name, step in steps.items() if components[name]["version"] is None]


def _of_switches(readings: Iterable[Reading]) -> list[str]:
    """What lets results vary from run to run here, and how it is switched off."""
    varying = [reading for reading in readings if reading.matters and reading.reproducible is False]
    if not varying:
        return []
    how = [_CALLS.get(reading.name, f"{reading.name}={reading.advised}") for reading in varying]
    return [f"Before runs are compared bit for bit, set {', '.join(how)}. It costs speed."]
