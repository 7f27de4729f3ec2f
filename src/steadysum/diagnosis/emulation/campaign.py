"""All calls of an emulation, one after the other on one device, each against the fault-free one's outputs.

Every call has its own stream of draws, so that a call means the same however many come before it; but memory keeps what
calls leave in it, as on a chip. Not here: what is collected (tally.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Protocol

from steadysum.cores.device import Call, Device
from steadysum.diagnosis.emulation.field import FIELD_CALLS, run_loop
from steadysum.diagnosis.emulation.judge import judge_call, make_call
from steadysum.diagnosis.emulation.plan import EmulationPlan, device_of, operand_sets, twin_of, values_of
from steadysum.diagnosis.emulation.tally import EmulationReport, Tally
from steadysum.errors import SteadySumError
from steadysum.maxsum import MaxSum
from steadysum.trace.json_lines import save_trace
from steadysum.trace.recorder import Trace

__all__ = ["INTERVAL", "Made", "Watcher", "run_campaign"]

INTERVAL: Final = 2.0  # seconds between two reports on a campaign that goes on

Made = Callable[[Call, MaxSum | SteadySumError], None]  # told of each call: how it went, and what it gave


class Watcher(Protocol):
    """Who is told how a campaign goes, and may end it."""

    def stopped(self) -> bool:
        """Whether to end before the next call."""

    def begins(self, what: str, calls: int) -> None:
        """A part begins that takes so many calls."""

    def progressed(self) -> None:
        """A call is done."""

    def found(self, report: EmulationReport) -> None:
        """The report so far: before the first call, every few seconds, and at the end."""


class Unwatched:
    """Tells nobody, and never ends a campaign."""

    def stopped(self) -> bool:
        """Never."""
        return False

    def begins(self, what: str, calls: int) -> None:
        """Ignored."""

    def progressed(self) -> None:
        """Ignored."""

    def found(self, report: EmulationReport) -> None:
        """Ignored."""


def run_campaign(plan: EmulationPlan, watcher: Watcher | None = None, made: Made | None = None) -> EmulationReport:
    """Makes the plan's calls, and then runs the field report's own loop on such a device.

    Args:
        plan: what to run.
        watcher: told how it goes; may end it between two calls.
        made: told of each call.

    Raises:
        SteadySumError: the plan can't be run.
    """
    watcher = watcher or Unwatched()
    operands = operand_sets(plan)
    device, tally = device_of(plan), Tally(plan)
    watcher.found(tally.report(device))  # before the work, so that a report that can't be written is known at once
    twin = twin_of(plan)
    expected = [twin.linear_max_sum(each.input, each.weight) for each in operands]
    watcher.begins(plan.title, plan.calls)
    written = time.monotonic()
    for number in range(plan.calls):
        if watcher.stopped():
            break
        chosen = number % plan.inputs
        outputs = make_call(device, operands[chosen])
        call = device.last
        assert call is not None
        tally.add(call, judge_call(expected[chosen], outputs))
        if made is not None:
            made(call, outputs)
        watcher.progressed()
        if time.monotonic() - written > INTERVAL:
            watcher.found(tally.report(device))
            written = time.monotonic()
    loop = None
    if not watcher.stopped():
        watcher.begins("the field report's own loop", min(FIELD_CALLS, plan.calls))
        loop = run_loop(plan, watcher.stopped, watcher.progressed)
    report = tally.report(device, loop, complete=not watcher.stopped())
    report = replace(report, trace=_record(plan, device, tally))
    watcher.found(report)
    return report


def _record(plan: EmulationPlan, device: Device, tally: Tally) -> str | None:
    """Saves the trace of the newest deviating call, else of the last one, for `steadysum trace`; gives back where."""
    if device.last is None:
        return None
    if tally.newest is not None:
        device.last = tally.newest
    trace = device.trace()
    try:
        return str(save_trace(Trace(trace.events, {**trace.what, **values_of(plan)}, trace.dropped)))
    except OSError as error:  # a trace is a by-product: a cache that can't be written to doesn't end a campaign
        return f"not recorded: {error.filename or 'the folder of traces'}: {error.strerror}"
