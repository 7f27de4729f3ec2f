"""Tests of the profiles' measurement: what counts as right, when a promise is said to hold, and that faults act."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from rich.console import Console

from steadysum.cores.arm import Arm
from steadysum.cores.grid import Geometry
from steadysum.cores.outcomes import SCENARIOS
from steadysum.diagnosis.arguments import Shape
from steadysum.diagnosis.emulation.judge import Outcome
from steadysum.diagnosis.profiles import strikes
from steadysum.diagnosis.profiles.campaign import REPEATS, Answer, Campaign, Group, Unwatched, run_campaign
from steadysum.diagnosis.profiles.costs import EmulatedPlace
from steadysum.diagnosis.profiles.document import profiles_document
from steadysum.diagnosis.profiles.emulated import EmulatedCalls
from steadysum.diagnosis.profiles.faults import armory_of
from steadysum.diagnosis.profiles.measure import Measurement, measure
from steadysum.diagnosis.profiles.native import NativeCalls
from steadysum.diagnosis.profiles.plan import BASELINE, MeasurePlan, calls_of, verify_of
from steadysum.diagnosis.profiles.promises import (
    PROMISES,
    Share,
    Verdict,
    calls_needed,
    cost_verdict,
    share_verdict,
)
from steadysum.diagnosis.profiles.report import render_measurement
from steadysum.errors import RangeError
from steadysum.settings import PROFILES, Settings
from steadysum.timing import Ratio

CALLS = 120


def scripted(*answers: Answer, calls: int) -> Campaign:
    """A campaign over these answers, in this order; a clean call takes a second."""
    left: Iterator[Answer] = iter(answers)
    campaign = Campaign("emulated", "training", Group.ALL, 0.1, calls)
    return run_campaign(campaign, lambda _: next(left), lambda _: 1.0, Unwatched())


def emulated(settings: Settings, group: Group, rate: float = 0.1, calls: int = CALLS) -> Campaign:
    """A short campaign on the emulated device."""
    made = EmulatedCalls(settings, armory_of(settings).of(group), rate, seed=0)
    campaign = Campaign("emulated", settings.policy, group, rate, calls)
    return run_campaign(campaign, made.answer, made.clean_seconds, Unwatched())


# ---- promises -------------------------------------------------------------------------------------------------------


def test_every_profile_has_a_promise() -> None:
    assert set(PROMISES) == set(PROFILES)


@pytest.mark.parametrize("name", PROMISES)
def test_a_promise_is_met_from_the_least_number_of_calls_without_failure_on(name: str) -> None:
    promised = PROMISES[name].right
    least = calls_needed(promised)
    assert share_verdict(Share(least, least), promised) is Verdict.MET
    assert share_verdict(Share(least - 1, least - 1), promised) is Verdict.OPEN


def test_a_share_that_the_interval_leaves_in_doubt_is_open() -> None:
    assert share_verdict(Share(99, 100), 0.995) is Verdict.OPEN
    assert share_verdict(Share(900, 1000), 0.995) is Verdict.MISSED
    assert share_verdict(Share(0, 0), 0.995) is Verdict.OPEN


def test_a_cost_is_met_where_its_whole_interval_lies_below() -> None:
    assert cost_verdict(Ratio(1.01, 1.0, 1.015), 0.02) is Verdict.MET
    assert cost_verdict(Ratio(1.01, 1.0, 1.03), 0.02) is Verdict.OPEN
    assert cost_verdict(Ratio(1.05, 1.04, 1.06), 0.02) is Verdict.MISSED


# ---- counts ---------------------------------------------------------------------------------------------------------


def test_a_call_that_raises_is_right_only_after_the_repeat_that_is() -> None:
    raised, right = Answer(Outcome.RAISED, 2.0, "dead"), Answer(Outcome.RIGHT, 1.0)
    found = scripted(right, raised, right, raised, raised, right, calls=3)
    assert [found.share_right(repeats) for repeats in range(3)] == [Share(1, 3), Share(2, 3), Share(3, 3)]
    assert (found.raised_at_once, found.raised, found.answers, found.acted) == (2, 0, 6, 3)
    assert (found.seconds, found.clean_seconds, found.cost) == (9.0, 3.0, 3.0)


def test_a_call_that_raises_in_all_repeats_is_never_right() -> None:
    found = scripted(*[Answer(Outcome.RAISED, 1.0, "dead")] * (1 + REPEATS), calls=1)
    assert found.share_right(REPEATS) == Share(0, 1)
    assert found.raised == 1


def test_a_wrong_result_is_not_made_again() -> None:
    wrong, near = Answer(Outcome.DEVIATES, 1.0, "tail, floor"), Answer(Outcome.DIFFERS, 1.0, "flip, output")
    found = scripted(wrong, near, calls=2)
    assert found.share_right(REPEATS) == Share(0, 2)
    assert found.share_near == Share(1, 2)
    assert (found.deviates, found.differs) == (1, 1)


def test_a_call_whose_fault_never_acted_does_not_count() -> None:
    void, right = Answer(Outcome.RIGHT, 5.0, is_void=True), Answer(Outcome.RIGHT, 1.0)
    found = scripted(void, right, calls=1)
    assert (found.calls, found.void, found.seconds, found.clean_seconds) == (1, 1, 1.0, 1.0)


def test_what_is_not_right_counts_even_if_no_fault_acted() -> None:
    void, right = Answer(Outcome.DEVIATES, 1.0, is_void=True), Answer(Outcome.RIGHT, 1.0)
    raised = Answer(Outcome.RAISED, 1.0, is_void=True)
    found = scripted(void, raised, right, calls=2)
    assert (found.calls, found.void, found.deviates, found.raised_at_once, found.acted) == (2, 0, 1, 1, 0)


def test_a_stopped_campaign_has_the_calls_so_far() -> None:
    class Impatient(Unwatched):
        made = 0

        def progressed(self) -> None:
            self.made += 1

        def stopped(self) -> bool:
            return self.made == 3

    campaign = Campaign("native", "off", Group.ALL, 0.1, 10)
    run_campaign(campaign, lambda _: Answer(Outcome.RIGHT, 1.0), lambda _: 1.0, Impatient())
    assert campaign.calls == 3


# ---- the emulated device --------------------------------------------------------------------------------------------


def test_all_kinds_are_drawn_and_under_legacy_they_do_harm() -> None:
    settings = Settings(allreduce_policy=0)
    assert set(armory_of(settings).places) == {Arm.parse(scenario.arm).kind for scenario in SCENARIOS}
    found = emulated(settings, Group.ALL)
    low, high = Share(found.acted, found.answers).interval
    assert low <= 0.1 <= high
    # 1 in 20 calls is the least that the field report tells of; here 1 in 10 has a fault, and most do harm.
    assert share_verdict(found.share_right(0), 1 - 0.02) is Verdict.MISSED


def test_a_profiles_faults_in_the_exchange_give_no_wrong_result() -> None:
    found = emulated(Settings.profile("training"), Group.EXCHANGE, rate=0.5, calls=60)
    assert found.acted > 20
    assert found.raised_at_once > 0
    assert found.share_right(0).number < found.share_right(REPEATS).number == found.calls


def test_the_exchange_leaves_out_what_no_exchange_can_see() -> None:
    armory = armory_of(Settings.profile("training")).of(Group.EXCHANGE)
    names = {name for scenarios in armory.places.values() for name in scenarios}
    assert not names & {"tail, floor", "tail, padding", "flip, operand", "flip, product", "flip, statistics", "scale"}
    assert {"flip, slot", "flip, output", "flip, product buffer"} <= names


def test_a_campaign_is_the_same_again() -> None:
    settings = Settings.profile("training")
    assert emulated(settings, Group.ALL, calls=30) == emulated(settings, Group.ALL, calls=30)


# ---- the whole of it ------------------------------------------------------------------------------------------------

TINY = EmulatedPlace("a small shape", Shape(8, 4, 24), 2, Geometry(8, 8), 2)
SHORT = MeasurePlan("emulated", (0.2,), calls=12, profiles=("training",), emulated_places=(TINY,))


class Counting(Unwatched):
    """Ends a measurement after so many calls."""

    def __init__(self, most: int) -> None:
        self.left = most

    def progressed(self) -> None:
        self.left -= 1

    def stopped(self) -> bool:
        return self.left <= 0


def test_a_measurement_has_each_profile_beside_the_baseline_in_each_group_of_faults() -> None:
    reports: list[bool] = []
    found = measure(SHORT, Unwatched(), lambda measurement: reports.append(measurement.complete))
    parts = [(campaign.subject, campaign.group, campaign.calls) for campaign in found.campaigns]
    assert parts == [(name, group, 12) for group in (Group.ALL, Group.EXCHANGE) for name in (BASELINE, "training")]
    assert [(cost.subject, cost.what, cost.rounds) for cost in found.costs] == [("training", "a small shape", 2)]
    assert reports[0] is False
    assert reports[-1] is True
    assert found.left_out["training"] == (
        "overrun, buffer",
    )  # with two buffers, on a clock, a cube never waits for one


def test_a_stopped_measurement_keeps_what_there_is_and_says_so() -> None:
    found = measure(SHORT, Counting(2 + 12 + 5))
    assert [(campaign.subject, campaign.calls) for campaign in found.campaigns] == [(BASELINE, 12), ("training", 5)]
    assert not found.complete
    document = profiles_document(found, "steadysum profiles --measure")
    assert document["complete"] is False
    text = io.StringIO()
    Console(file=text, width=120).print(render_measurement(found))
    assert "Stopped early: the tables hold what there is." in text.getvalue()


def test_a_promise_is_shown_as_such_only_where_the_interval_lies_above_it() -> None:
    found = Measurement(SHORT, complete=True)
    for calls, wrong in ((3688, 0), (3687, 0), (3688, 40)):
        campaign = Campaign("emulated", "training", Group.EXCHANGE, 0.05, calls, calls=calls, deviates=wrong)
        campaign.right[0] = calls - wrong
        found.campaigns.append(campaign)
    text = io.StringIO()
    Console(file=text, width=120).print(render_measurement(found))
    rows = [line for line in text.getvalue().splitlines() if "exchange" in line and "5 %" in line][:3]
    assert [("> 99.9 %" in row, "100 % open" in row, "98.915 % missed" in row) for row in rows] == [
        (True, False, False),
        (False, True, False),
        (False, False, True),
    ]
    verdicts = [one["verdict"] for one in profiles_document(found, "")["verdicts"] if one["what"] == "within 1e-3"]
    assert verdicts == ["met", "open", "missed"]


def test_bad_plans_are_refused() -> None:
    with pytest.raises(RangeError, match="--device: got 'gpu'; allowed: emulated, native, both"):
        MeasurePlan("gpu")
    with pytest.raises(RangeError, match="--rate: got 60; allowed: a percentage above 0, up to 50"):
        MeasurePlan(rates=(0.6,))


def test_by_default_each_campaign_has_the_calls_that_its_promise_takes() -> None:
    plan = MeasurePlan()
    for profile, promise in PROMISES.items():
        for subject, group in ((profile, Group.EXCHANGE), (verify_of(profile), Group.COVERED)):
            assert calls_of(plan, subject, group) >= calls_needed(promise.right)


@pytest.mark.soak
@pytest.mark.parametrize("profile", PROMISES)
def test_with_raised_calls_made_again_faults_in_the_exchange_leave_a_profiles_promise(profile: str) -> None:
    promised = PROMISES[profile].right
    settings = Settings.profile(profile)
    found = emulated(settings, Group.EXCHANGE, calls=calls_of(MeasurePlan(), profile, Group.EXCHANGE))
    assert share_verdict(found.share_right(REPEATS), promised) is Verdict.MET


# ---- the native kernel ----------------------------------------------------------------------------------------------


def struck(module: ModuleType, group: Group, *, heals: bool, calls: int = 1000) -> Campaign:
    """A short campaign on the native kernel."""
    made = NativeCalls(module, group, 0.1, seed=0, heals=heals)
    campaign = Campaign("native", "checksum", group, 0.1, calls)
    return run_campaign(campaign, made.answer, made.clean_seconds, Unwatched())


def test_checksums_leave_no_call_that_deviates_of_those_that_faults_in_what_they_cover_make(traps: ModuleType) -> None:
    ignored, healed = (struck(traps, Group.COVERED, heals=heals) for heals in (False, True))
    assert ignored.deviates > 0
    assert healed.deviates == healed.raised == 0
    assert {name.split(",")[0] for name in healed.faults} == {"operand", "logit", "partial"}


def test_strikes_fall_on_every_stage(traps: ModuleType) -> None:
    found = struck(traps, Group.ALL, heals=True)
    assert {name.split(",")[0] for name in found.faults} == {"operand", "logit", "partial", "exp", "sum"}
    low, high = Share(found.acted, found.answers).interval
    assert low <= 0.1 <= high


def test_a_missing_build_says_how_to_get_it(
    needs_native: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert needs_native is not None
    monkeypatch.setenv(strikes.BUILD, str(tmp_path))
    assert strikes.missing_build() == (
        f"{tmp_path} holds no build of the extension with traps, and the shipped one can't be struck; "
        "`make traps` in a checkout makes one, and STEADYSUM_TRAPS_BUILD can name its folder"
    )
