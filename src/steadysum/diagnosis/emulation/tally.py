"""What is collected of an emulation's calls, in memory that doesn't grow with their number.

Not here: how the calls are made (campaign.py), and what is printed of them (report.py).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final, NamedTuple

from steadysum.cores.device import Call, Device
from steadysum.diagnosis.emulation.field import LoopResult
from steadysum.diagnosis.emulation.judge import Judged, Outcome
from steadysum.diagnosis.emulation.pattern import Pattern
from steadysum.diagnosis.emulation.plan import EmulationPlan
from steadysum.diagnosis.emulation.waits import SyncWaits, WaitFigures
from steadysum.diagnosis.rates import Interval, clopper_pearson
from steadysum.sync.hazards import Hazard, Hazards, find_hazards
from steadysum.sync.log import events

__all__ = ["EmulationReport", "FaultCount", "HazardPlace", "HazardSummary", "Raised", "Tally", "Worst"]


class Raised(NamedTuple):
    """An error that calls ended with."""

    error: str  # name of its class
    cores: tuple[int, ...]  # that it names


class FaultCount(NamedTuple):
    """An armed fault, and what became of it."""

    text: str
    offered: int  # how often it could have acted
    acted: int


class Worst(NamedTuple):
    """The call with the largest deviation."""

    largest: float  # of a row's max or log-sum, absolute; inf: NaN or an infinity against a number
    call: int
    rows: int  # with other bits than the right ones
    first_row: int


class HazardPlace(NamedTuple):
    """Where hazards were found."""

    kind: str
    region: str
    first: str  # phase of the access that is meant first
    second: str
    manifest: bool


class HazardSummary(NamedTuple):
    """The hazards of all deviating calls."""

    calls: int  # deviating calls that were looked at
    with_manifest: int  # of them, those with a hazard that they went wrong at
    places: tuple[tuple[HazardPlace, int], ...]  # and in how many calls; manifest ones first, frequent ones first


NO_HAZARDS: Final = HazardSummary(0, 0, ())


@dataclass(frozen=True)
class EmulationReport:
    """An emulation so far."""

    plan: EmulationPlan
    outcomes: dict[Outcome, int]
    raised: tuple[tuple[Raised, int], ...] = ()  # the most frequent first
    launched_again: int = 0  # calls that a policy launched more than once
    noticed: int = 0  # calls in which a policy saw anything wrong
    noticed_and_right: int = 0
    faults: tuple[FaultCount, ...] = ()
    worst: Worst | None = None
    pattern: tuple[str, ...] = ()
    hazards: HazardSummary = NO_HAZARDS
    waits: tuple[WaitFigures, ...] = ()
    last_hazards: Hazards | None = None  # of the newest deviating call, whole
    last_call: int | None = None  # its number
    loop: LoopResult | None = None  # the field report's own loop on such a device
    complete: bool = False  # all planned calls were made, and the loop
    trace: str | None = None  # file of the recorded trace, or why there is none

    @property
    def calls(self) -> int:
        """Calls made."""
        return sum(self.outcomes.values())

    @property
    def deviating(self) -> int:
        """Calls in which some row's max or log-sum is off by more than the threshold."""
        return self.outcomes[Outcome.DEVIATES]

    @property
    def interval(self) -> Interval:
        """The exact 95 % interval of the rate of deviating calls."""
        return clopper_pearson(self.deviating, self.calls)

    @property
    def void(self) -> tuple[str, ...]:
        """Armed faults that never acted: about them the emulation says nothing."""
        return tuple(fault.text for fault in self.faults if not fault.acted)

    @property
    def exit_code(self) -> int:
        """1: some call deviates or raised; else 2: it was stopped, or an armed fault never acted; else 0."""
        if self.deviating or self.outcomes[Outcome.RAISED]:
            return 1
        return 0 if self.complete and not self.void else 2


class Tally:
    """Takes calls one by one."""

    def __init__(self, plan: EmulationPlan) -> None:
        self._plan = plan
        self._outcomes: Counter[Outcome] = Counter()
        self._raised: Counter[Raised] = Counter()
        self._launched_again = self._noticed = self._noticed_and_right = 0
        self._worst: Worst | None = None
        self._pattern = Pattern(plan.geometry)
        self._places: Counter[HazardPlace] = Counter()
        self._with_manifest = 0
        self._last_hazards: Hazards | None = None
        self._waits = SyncWaits()
        self.newest: Call | None = None  # the newest deviating call

    def add(self, call: Call, judged: Judged) -> None:
        """Counts one call."""
        outcome = judged.outcome
        self._outcomes[outcome] += 1
        self._launched_again += call.retries > 0
        if call.noticed:
            self._noticed += 1
            self._noticed_and_right += outcome is Outcome.RIGHT
        for run in call.runs:
            self._waits.add(run)
        if call.error is not None:
            self._raised[Raised(type(call.error).__name__, tuple(getattr(call.error, "cores", ())))] += 1
            return
        self._pattern.add(call.number, judged)
        if judged.wrong is not None:
            rows = judged.wrong.nonzero().reshape(-1)
            found = Worst(judged.largest, call.number, rows.numel(), int(rows[0]))
            self._worst = found if self._worst is None else max(self._worst, found, key=lambda each: each.largest)
        if outcome is Outcome.DEVIATES:
            self.newest = call
            self._look_for_hazards(call)

    def report(self, device: Device, loop: LoopResult | None = None, complete: bool = False) -> EmulationReport:
        """What there is so far."""
        return EmulationReport(
            self._plan,
            {outcome: self._outcomes[outcome] for outcome in Outcome},
            tuple(self._raised.most_common()),
            self._launched_again,
            self._noticed,
            self._noticed_and_right,
            _faults(self._plan, device),
            self._worst,
            self._pattern.words,
            HazardSummary(
                self._outcomes[Outcome.DEVIATES],
                self._with_manifest,
                tuple(sorted(self._places.items(), key=_manifest_and_frequent_first)),
            ),
            self._waits.figures(),
            self._last_hazards,
            None if self.newest is None else self.newest.number,
            loop,
            complete,
        )

    def _look_for_hazards(self, call: Call) -> None:
        """Of the launch whose outputs were returned: the last one."""
        hazards = find_hazards(events(call.runs[-1]))
        self._last_hazards = hazards
        self._with_manifest += bool(hazards.manifest)
        self._places.update({_place(hazard) for hazard in hazards.found})


def _place(hazard: Hazard) -> HazardPlace:
    return HazardPlace(hazard.kind, hazard.region, hazard.first.phase, hazard.second.phase, hazard.manifest)


def _manifest_and_frequent_first(item: tuple[HazardPlace, int]) -> tuple[bool, int, HazardPlace]:
    place, calls = item
    return not place.manifest, -calls, place


def _faults(plan: EmulationPlan, device: Device) -> tuple[FaultCount, ...]:
    if device.armed is None:
        return ()
    acted, offered = device.armed.counts(), device.armed.offers()
    return tuple(FaultCount(text, offered[text], acted[text]) for text in dict.fromkeys(map(str, plan.faults)))
