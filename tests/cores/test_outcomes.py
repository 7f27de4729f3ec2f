"""Tests of steadysum.cores.outcomes: docs/policies.md holds what trials show, of every kind of fault."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from steadysum.cores.faults import KINDS, Arm
from steadysum.cores.outcomes import SCENARIOS, Outcome, Scenario, try_scenario
from steadysum.sync.policies import POLICIES

ROOT = Path(__file__).parents[2]
NAMES = [scenario.name for scenario in SCENARIOS]


def tool() -> ModuleType:
    """tools/fault_table.py."""
    found = importlib.util.spec_from_file_location("fault_table", ROOT / "tools" / "fault_table.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def documented() -> dict[str, list[str]]:
    """By fault, the cells of the document's table: armed as, the four outcomes, why."""
    text = (ROOT / "docs" / "policies.md").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("| ") and line.count("|") == 8]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]
    return {name: rest for name, *rest in cells}


def test_the_document_lists_every_scenario_and_every_kind_is_in_one() -> None:
    assert list(documented()) == NAMES
    assert {Arm.parse(scenario.arm).kind for scenario in SCENARIOS} == set(KINDS)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=NAMES)
def test_a_trial_is_no_worse_than_the_document_says(scenario: Scenario) -> None:
    arm, *outcomes, why = documented()[scenario.name]
    assert (arm.strip("`"), why) == (scenario.arm, scenario.why)
    for policy, documented_outcome in enumerate(outcomes):
        cell = try_scenario(scenario, policy, trials=[0], orders=["clock"])
        assert cell.misnamed == 0, POLICIES[policy]
        if documented_outcome in ("prevented", "healed"):
            assert cell.right == 1, POLICIES[policy]
        elif documented_outcome == "raised":
            assert cell.wrong == 0, POLICIES[policy]


@pytest.mark.soak
@pytest.mark.parametrize("scenario", SCENARIOS, ids=NAMES)
def test_the_document_holds_what_all_trials_show(scenario: Scenario) -> None:
    _, *outcomes, _ = documented()[scenario.name]
    made = [cell.strip() for cell in tool().row(scenario).strip("|").split("|")][2:6]
    assert made == outcomes


@pytest.mark.parametrize("name", ["dropped, once", "flip, operand"])
def test_the_document_holds_what_all_trials_show_of_some(name: str) -> None:
    test_the_document_holds_what_all_trials_show(SCENARIOS[NAMES.index(name)])


def test_no_policy_that_proves_its_results_names_an_innocent_core() -> None:
    for scenario in SCENARIOS:
        if scenario.named:
            assert try_scenario(scenario, 1, trials=[1], orders=["random"]).misnamed == 0, scenario.name


def test_a_fault_that_never_acts_makes_a_void_cell() -> None:
    never = Scenario("never", "delay:site=no such barrier", "")
    assert try_scenario(never, 1, trials=[0], orders=["clock"]).outcome is Outcome.VOID
