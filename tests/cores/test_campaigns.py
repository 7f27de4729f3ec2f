"""Tests by many calls: under policies 1 to 3 every call is right or names the core; `legacy` deviates as reported."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import fisher_exact
from torch import Tensor

from steadysum.cores.device import Device
from steadysum.cores.faults import KINDS, Arm
from steadysum.cores.load import Load
from steadysum.cores.outcomes import Scenario
from steadysum.diagnosis.rates import clopper_pearson
from steadysum.settings import Settings
from steadysum.sync.fingerprint import fingerprint

from .campaigns import VOCAB, allowed, armed_device, problems, run_campaign, undetectable
from .operators import Given, call, device, given, same_bits

CALLS_OF_A_DEVICE, SHORT, LONG = 250, 2000, 100_000
REPORTED = (0.05, 0.10)  # calls that deviate, in the field report
REPORTS_SHAPE = (1024, 256, 512)
UNSEEN = [(policy, scenario) for policy in (1, 2, 3) for scenario in undetectable(policy)]


def every_call_is_right_or_names_the_core(policy: int, calls: int, each: int) -> None:
    tally = run_campaign(policy, calls, seed=0, each=each)
    assert tally.right + tally.raised >= calls
    assert tally.right > tally.raised > 0
    assert tally.named > 0
    assert [scenario.name for scenario in allowed(policy) if not tally.acted[scenario.name]] == []


@pytest.mark.parametrize("policy", [1, 2, 3])
def test_with_faults_every_call_is_right_or_names_the_core(policy: int) -> None:
    every_call_is_right_or_names_the_core(policy, SHORT // 3, each=SHORT // 3 // len(allowed(policy)))


@pytest.mark.soak
@pytest.mark.parametrize("policy", [1, 2, 3])
def test_in_100_000_calls_with_faults_every_one_is_right_or_names_the_core(policy: int) -> None:
    every_call_is_right_or_names_the_core(policy, LONG, CALLS_OF_A_DEVICE)


def test_every_kind_of_fault_is_in_a_campaign_or_shown_to_be_undetectable() -> None:
    for policy in (1, 2, 3):
        kinds = {Arm.parse(scenario.arm).kind for scenario in (*allowed(policy), *undetectable(policy))}
        assert kinds == set(KINDS)


@pytest.mark.parametrize(("policy", "scenario"), UNSEEN, ids=[f"{number}-{one.name}" for number, one in UNSEEN])
def test_what_is_called_undetectable_returns_a_wrong_result(policy: int, scenario: Scenario) -> None:
    wrong = 0
    for seed in range(10):
        on = armed_device(policy, [Arm.parse(scenario.arm)], "clock", seed)
        operands, expected = problems(VOCAB)[seed % 2]
        wrong += not same_bits(call(on, operands), expected)
    assert wrong > 0


# ---- the symptom's rate ---------------------------------------------------------------------------------------------


def deviates(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> bool:
    """Whether any row's max or log-sum is off by more than 1e-3, or is no number."""
    pairs = [(found[0], expected[0]), (found[1].log(), expected[1].log())]
    return any(not bool(((ours - theirs).abs() <= 1e-3).all()) for ours, theirs in pairs)


def deviating(on: Device, operands: tuple[Given, Given], calls: int) -> int:
    """How many calls deviate, operand sets in turn; each that does has a manifest hazard."""
    clean = [call(Device(on.cores, on.settings, geometry=on.geometry), one) for one in operands]
    count = 0
    for number in range(calls):
        if deviates(call(on, operands[number % 2]), clean[number % 2]):
            count += 1
            assert on.hazards().manifest, f"call {number + 1}"
    return count


def reports(level: float, calls: int, cores: int = 24, seed: int = 0) -> int:
    """How many of the calls at the field report's shape deviate."""
    operands = (given(*REPORTS_SHAPE, seed=0), given(*REPORTS_SHAPE, seed=1))
    return deviating(Device(cores, Settings(allreduce_policy=0), (), Load(level), seed), operands, calls)


def test_the_rate_does_not_contradict_the_field_reports() -> None:
    low, high = clopper_pearson(reports(1.0, 150), 150)
    assert low <= REPORTED[1]
    assert high >= REPORTED[0]


@pytest.mark.soak
def test_the_rate_is_the_field_reports() -> None:
    low, high = clopper_pearson(reports(1.0, 2000), 2000)
    assert REPORTED[0] <= low <= high <= REPORTED[1]


def test_no_call_deviates_without_load() -> None:
    assert reports(0.0, 100) == 0


def test_no_call_deviates_on_one_core_whatever_the_load() -> None:
    assert reports(1.0, 60, cores=1) == 0


def small(level: float, vocab: int, calls: int) -> int:
    """How many of the calls at a small shape deviate."""
    operands = (given(8, 2, vocab, seed=0), given(8, 2, vocab, seed=1))
    return deviating(device("legacy", 2, load=Load(level)), operands, calls)


def is_more(more: int, fewer: int, calls: int) -> bool:
    """Whether a count is greater by more than chance: Fisher's exact test, one-sided."""
    table = [[more, calls - more], [fewer, calls - fewer]]
    return bool(fisher_exact(table, alternative="greater").pvalue < 0.01)


def test_the_rate_rises_with_the_load() -> None:
    assert is_more(small(40.0, 32, 150), small(10.0, 32, 150), 150)


def test_the_rate_rises_with_the_vocabulary() -> None:
    assert is_more(small(10.0, 128, 150), small(10.0, 32, 150), 150)


# ---- replay ---------------------------------------------------------------------------------------------------------


def test_1000_calls_with_load_and_a_fault_have_the_same_events_and_bits_again() -> None:
    def campaign() -> list[tuple[object, ...]]:
        fault = Arm.parse("stale:site=max,phase=P3,probability=0.1")
        on = device("legacy", 2, load=Load(30.0), faults=(fault,), seed=5)
        found: list[tuple[object, ...]] = []
        for number in range(1000):
            outputs = call(on, given(8, 2, 32, seed=number % 2))
            assert on.last is not None
            found.append((fingerprint(on.last.runs), *(part.view(torch.uint8).numpy().tobytes() for part in outputs)))
        assert all(on.fault_counts().values())
        return found

    first = campaign()
    assert campaign() == first
    assert len(set(first)) > 1
