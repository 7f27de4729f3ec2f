"""Small emulations for the tests: a few tiles of a few elements, so that a call takes milliseconds."""

from __future__ import annotations

from typing import Any, Final

from steadysum.cores.faults import Arm
from steadysum.cores.grid import Geometry
from steadysum.diagnosis.arguments import Shape
from steadysum.diagnosis.emulation.plan import EmulationPlan
from steadysum.diagnosis.emulation.tally import EmulationReport
from steadysum.settings import Settings

HEAVY: Final = 30.0  # a load under which `legacy` deviates in many of these calls


def small(
    policy: str = "legacy", faults: tuple[str, ...] = (), settings: dict[str, Any] | None = None, **changes: Any
) -> EmulationPlan:
    """2 row blocks x 2 column tiles on 4 cores; heavy load unless it is changed."""
    values = {
        "shape": Shape(16, 4, 32),
        "geometry": Geometry(8, 16),
        "cores": 4,
        "load": HEAVY,
        "calls": 40,
        "settings": Settings(allreduce_policy=policy, **(settings or {})),
        "faults": tuple(map(Arm.parse, faults)),
        **changes,
    }
    return EmulationPlan(**values)


class Interrupter:
    """Ends a campaign after some calls, as Ctrl-C does, and keeps the reports."""

    def __init__(self, after: int | None = None) -> None:
        self.after = after
        self.calls = 0
        self.reports: list[EmulationReport] = []

    def stopped(self) -> bool:
        return self.after is not None and self.calls >= self.after

    def begins(self, what: str, calls: int) -> None:
        pass

    def progressed(self) -> None:
        self.calls += 1

    def found(self, report: EmulationReport) -> None:
        self.reports.append(report)
