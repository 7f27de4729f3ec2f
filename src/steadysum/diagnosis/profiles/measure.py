"""The measurement, part by part: costs first, then the campaigns, the longest last.

What there is can be looked at, and saved, at any moment. Not here: how it is shown (report.py, document.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from steadysum.diagnosis.profiles.campaign import Campaign, Group, Watcher, run_campaign
from steadysum.diagnosis.profiles.costs import CleanCost, emulated_cost, native_cost
from steadysum.diagnosis.profiles.emulated import EmulatedCalls
from steadysum.diagnosis.profiles.faults import armory_of
from steadysum.diagnosis.profiles.native import NativeCalls
from steadysum.diagnosis.profiles.plan import BASELINE, MeasurePlan, calls_of, settings_of, verify_of
from steadysum.diagnosis.profiles.strikes import build_with_traps, missing_build

__all__ = ["Measurement", "measure"]

INTERVAL: Final = 20.0  # seconds between two looks at a campaign that goes on


@dataclass
class Measurement:
    """What has been measured so far."""

    plan: MeasurePlan
    campaigns: list[Campaign] = field(default_factory=list)
    costs: list[CleanCost] = field(default_factory=list)
    left_out: dict[str, tuple[str, ...]] = field(default_factory=dict)  # by profile: faults that never act under it
    missing: str | None = None  # why the native kernel isn't struck
    complete: bool = False

    def campaigns_of(self, device: str, profile: str) -> Iterator[Campaign]:
        """Those that say something of a profile: on the native kernel profiles that verify alike share them."""
        subject = profile if device == "emulated" else "off" if profile == BASELINE else verify_of(profile)
        for campaign in self.campaigns:
            if (campaign.device, campaign.subject) == (device, subject) and campaign.calls:
                yield campaign

    def costs_of(self, device: str, profile: str) -> Iterator[CleanCost]:
        """The clean costs of a profile."""
        subject = profile if device == "emulated" else verify_of(profile)
        for cost in self.costs:
            if (cost.device, cost.subject) == (device, subject):
                yield cost


def measure(plan: MeasurePlan, watcher: Watcher, found: Callable[[Measurement], None] = lambda _: None) -> Measurement:
    """Measure what the plan says.

    Args:
        plan: what to measure.
        watcher: who is told, and may end it.
        found: told the measurement so far: at the beginning, now and then, and at the end.

    Returns:
        The measurement; not complete if the watcher ended it.
    """
    measurement = Measurement(plan)
    found(measurement)
    watching = _Reporting(watcher, lambda: found(measurement))
    if plan.runs_native:
        _measure_native(measurement, watching)
    if plan.emulates:
        _measure_emulated(measurement, watching)
    measurement.complete = not watcher.stopped()
    found(measurement)
    return measurement


class _Reporting:
    """Passes all on to the watcher, and reports every so often."""

    def __init__(self, watcher: Watcher, report: Callable[[], None]) -> None:
        self.stopped, self.begins = watcher.stopped, watcher.begins
        self._progressed, self._report = watcher.progressed, report
        self._last = time.monotonic()

    def progressed(self) -> None:
        self._progressed()
        if time.monotonic() - self._last > INTERVAL:
            self._report()
            self._last = time.monotonic()


def _measure_emulated(measurement: Measurement, watcher: Watcher) -> None:
    plan = measurement.plan
    for place in plan.emulated_places:
        for profile in plan.profiles:
            cost = None if watcher.stopped() else emulated_cost(profile, settings_of(profile), place, watcher)
            measurement.costs += [] if cost is None else [cost]
    for group in (Group.ALL, Group.EXCHANGE):
        # The longest last.
        for subject in sorted((BASELINE, *plan.profiles), key=lambda name: calls_of(plan, name, group)):
            for rate in plan.rates:
                if watcher.stopped():
                    return
                settings = settings_of(subject)
                armory = armory_of(settings)
                measurement.left_out[subject] = armory.left_out
                made = EmulatedCalls(settings, armory.of(group), rate, plan.seed)
                campaign = Campaign("emulated", subject, group, rate, calls_of(plan, subject, group))
                measurement.campaigns.append(campaign)
                run_campaign(campaign, made.answer, made.clean_seconds, watcher)


def _measure_native(measurement: Measurement, watcher: Watcher) -> None:
    plan, ways = measurement.plan, sorted({verify_of(profile) for profile in measurement.plan.profiles})
    measurement.missing = missing_build()
    for what, shape in plan.native_shapes:
        for verify in ways:
            cost = None if watcher.stopped() else native_cost(verify, what, shape, watcher)
            measurement.costs += [] if cost is None else [cost]
    if measurement.missing is not None:
        return
    with build_with_traps() as module:
        for verify in ("off", *ways):
            for group in (Group.ALL, Group.COVERED):
                for rate in plan.rates:
                    if watcher.stopped():
                        return
                    made = NativeCalls(module, group, rate, plan.seed, heals=verify != "off")
                    campaign = Campaign("native", verify, group, rate, calls_of(plan, verify, group))
                    measurement.campaigns.append(campaign)
                    run_campaign(campaign, made.answer, made.clean_seconds, watcher)
