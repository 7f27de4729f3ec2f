"""A saved emulation again: the same device, made from the file's plan, runs every call through its saved schedules.

There is no clock and nothing is drawn: what happens, and the bits that come out, must be those of the file. Memory
keeps what calls leave in it, so that calls are replayed from the first one on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from steadysum.diagnosis.document import created
from steadysum.diagnosis.emulation.file import CallLine, SavedCalls, line_of
from steadysum.diagnosis.emulation.judge import make_call
from steadysum.diagnosis.emulation.plan import EmulationPlan, device_of, operand_sets, values_of
from steadysum.errors import ScheduleError
from steadysum.sync.schedule import Schedule, parse_schedule
from steadysum.sync.virtual import Launch, Run, replay

__all__ = ["Difference", "ReplayReport", "ReplayRunner", "replay_document", "replay_file"]

SCHEMA: Final = "steadysum.emulation-replay/1"  # {schema, created, exit_code, file, plan, and ReplayReport's fields}


class Difference(NamedTuple):
    """The first thing in which a replay isn't what was saved."""

    call: int
    what: str
    saved: str
    replayed: str


@dataclass(frozen=True)
class ReplayReport:
    """How a replay went."""

    plan: EmulationPlan
    calls: int  # replayed, the differing one included
    difference: Difference | None
    is_cut: bool  # the file ends within a line
    stopped: bool  # before the file's end
    other_versions: dict[str, tuple[Any, Any]]  # what bits depend on, and isn't as it was: name -> (then, now)

    @property
    def exit_code(self) -> int:
        """1: something differs; else 2: not all calls of the plan were replayed, or the file hasn't all; else 0."""
        if self.difference is not None:
            return 1
        return 2 if self.stopped or self.calls != self.plan.calls else 0


class ReplayRunner:
    """Runs launches through schedules instead of drawing anything."""

    def __init__(self) -> None:
        self._schedules: dict[str, Schedule] = {}

    def load(self, line: CallLine) -> None:
        """Takes the schedules of a call that comes next.

        Raises:
            ScheduleError: a schedule that can't be read.
        """
        self._schedules = {
            f"{line.call}.{attempt}": parse_schedule(text) for attempt, text in enumerate(line.schedules)
        }

    def run(self, launch: Launch, call: int | str = 0) -> Run:
        """One launch.

        Raises:
            ScheduleError: no schedule was saved for it, or it doesn't fit.
        """
        schedule = self._schedules.get(str(call))
        if schedule is None:
            raise ScheduleError(
                f"launch {call}",
                "none of its number among the saved ones",
                ", ".join(self._schedules),
                "The call was launched again, where the saved one was right or gave up.",
            )
        return replay(launch, schedule)


def replay_file(
    saved: SavedCalls,
    stopped: Callable[[], bool] = lambda: False,
    progressed: Callable[[], None] = lambda: None,
) -> ReplayReport:
    """Replays a file up to its end, or the first difference.

    Raises:
        OSError, ScheduleError: the file can't be read, or is damaged.
    """
    plan = saved.plan
    operands, runner = operand_sets(plan), ReplayRunner()
    device = device_of(plan, runner)
    calls, difference, ended = 0, None, False
    for line in saved.lines():
        if stopped():
            ended = True
            break
        try:
            runner.load(line)
        except ScheduleError as error:
            saved.refuse_schedule(line, error)
        calls += 1
        try:
            outputs = make_call(device, operands[(line.call - 1) % plan.inputs])
        except ScheduleError as error:
            difference = Difference(line.call, "schedule", "one that fits the programs", str(error))
            break
        assert device.last is not None
        difference = _first_difference(line, line_of(device.last, outputs))
        progressed()
        if difference is not None:
            break
    return ReplayReport(plan, calls, difference, saved.is_cut, ended, saved.other_versions())


def replay_document(report: ReplayReport, path: Path) -> dict[str, Any]:
    """The report as JSON has it."""
    return {
        "schema": SCHEMA,
        "created": created(),
        "exit_code": report.exit_code,
        "file": str(path),
        "plan": values_of(report.plan),
        "calls": report.calls,
        "difference": None if report.difference is None else report.difference._asdict(),
        "is_cut": report.is_cut,
        "stopped": report.stopped,
        "other_versions": {name: list(pair) for name, pair in report.other_versions.items()},
    }


def _first_difference(saved: CallLine, replayed: CallLine) -> Difference | None:
    """In the order in which one causes the other; times are none of a replay's."""
    for what in ("events", "error", "outputs", "schedules"):
        then, now = getattr(saved, what), getattr(replayed, what)
        if then != now:
            if what == "schedules":
                then, now = f"{len(then)} of them", f"{len(now)}, or other choices"
            return Difference(saved.call, what, str(then), str(now))
    return None
