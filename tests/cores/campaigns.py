"""Campaigns for tests: thousands of calls on small devices with drawn faults, each call right or an error that names.

Not here: trials of one fault at a time (steadysum.cores.outcomes).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from torch import Tensor

from steadysum.cores.device import Device
from steadysum.cores.faults import Arm
from steadysum.cores.grid import Geometry
from steadysum.cores.outcomes import SCENARIOS, Outcome, Scenario
from steadysum.errors import AccuracyError, StaleRead, SyncTimeout
from steadysum.settings import Settings
from steadysum.sync.policies import POLICIES
from steadysum.sync.virtual import VirtualRunner

from .operators import Given, call, same_bits, whole_numbers

ROWS, HIDDEN, CORES, TILE = 8, 2, 3, Geometry(8, 8)
_DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "policies.md"
# Faults in a unit's own work: policies claim to see one, not two that are equal in both of two results.
_OWN_WORK: Final = frozenset({"flip, product", "flip, statistics", "scale"})
_BUFFER: Final = "overrun, buffer"  # takes three tiles on a core: there are two buffers
VOCAB: Final = 37  # two tiles on core 1
WIDE: Final = 69  # three


class Armory(NamedTuple):
    """The arms of one device."""

    arms: tuple[Arm, ...]
    scenarios: tuple[Scenario, ...]  # of each arm
    core: int  # that the arms are on which have one
    vocab: int


class Tally(NamedTuple):
    """What a campaign's calls came to."""

    right: int
    raised: int
    named: int  # errors of those, that had to name a core and did
    acted: Counter[str]  # by scenario


@cache
def outcomes(policy: int) -> dict[str, Outcome]:
    """What the table says of each scenario; tests/cores/test_outcomes.py holds the table to trials."""
    words = {"wrong": Outcome.WRONG, "undetectable": Outcome.WRONG}
    found = {}
    for line in _DOCUMENT.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 7 and cells[0] in {scenario.name for scenario in SCENARIOS}:
            word = cells[2 + policy].strip("*")
            found[cells[0]] = words.get(word) or Outcome(word)
    assert len(found) == len(SCENARIOS)
    return found


def allowed(policy: int) -> list[Scenario]:
    """The scenarios under which the policy never returns a wrong result."""
    return [scenario for scenario in SCENARIOS if outcomes(policy)[scenario.name] is not Outcome.WRONG]


def undetectable(policy: int) -> list[Scenario]:
    """The others."""
    return [scenario for scenario in SCENARIOS if outcomes(policy)[scenario.name] is Outcome.WRONG]


def names_its_core(scenario: Scenario) -> bool:
    """Whether an error must name the core that the fault is on."""
    return bool(scenario.named)


def rearmed(
    scenario: Scenario, core: int, probability: float, calls: tuple[int, int] | None, most: int | None = None
) -> Arm:
    """A scenario's arm, on another core, drawn, in these calls."""
    arm = Arm.parse(scenario.arm)
    return Arm(
        arm.kind,
        probability,
        None if arm.core is None else core,
        arm.role,
        arm.phase,
        arm.site,
        calls,
        most,
        **dict(arm.knobs),
    )


def draw_arms(policy: int, calls: int, turn: int, draw: random.Random) -> Armory:
    """Two scenarios, the first by turn so that each comes to be armed, in calls that are drawn."""
    scenarios = allowed(policy)
    first = scenarios[turn % len(scenarios)]
    chosen = [first, draw.choice([other for other in scenarios if names_its_core(other) == names_its_core(first)])]
    # In the first round on the core of the table, where it acts: so few rows leave P3 to core 0 alone.
    own = Arm.parse(first.arm).core
    core = draw.randrange(CORES) if turn >= len(scenarios) or own is None else own
    armed: list[tuple[Arm, Scenario]] = []
    for scenario in dict.fromkeys(chosen):
        once, lasting = scenario.name in _OWN_WORK, scenario.name in ("dead", "slow")
        if once or lasting:  # in spans of their own, so that most calls are right; a core comes to life with the next
            for begin in range(1 + draw.randrange(4), calls + 1, 12):
                span = (begin, begin if once else begin + 1)
                armed.append((rearmed(scenario, core, 1.0, span, 1 if once else None), scenario))
        else:
            # The second is seldomer: a call that it ends early gives the first no opportunity.
            probability = draw.choice((0.2, 0.5) if scenario is first else (0.02, 0.1))
            armed.append((rearmed(scenario, core, probability, None), scenario))
    wide = any(scenario.name == _BUFFER for scenario in chosen)
    return Armory(tuple(arm for arm, _ in armed), tuple(one for _, one in armed), core, WIDE if wide else VOCAB)


@cache
def problems(vocab: int) -> list[tuple[Given, tuple[Tensor, ...]]]:
    """Two operand sets with other bits everywhere, and what each comes to where nothing is wrong."""
    found = []
    for seed in (0, 1):
        operands = whole_numbers(ROWS, HIDDEN, vocab, seed)
        found.append((operands, call(Device(CORES, Settings(allreduce_policy=1), geometry=TILE), operands)))
    return found


def armed_device(policy: int, arms: Sequence[Arm], order: str, seed: int) -> Device:
    """A small device."""
    runner = VirtualRunner(seed, order)
    return Device(CORES, Settings(allreduce_policy=policy), tuple(arms), seed=seed, runner=runner, geometry=TILE)


def run_armory(policy: int, armory: Armory, order: str, seed: int, calls: int) -> Tally:
    """Calls of one device: each right, or an error that names the core. Fails with all that a replay takes."""
    device = armed_device(policy, armory.arms, order, seed)
    right = raised = named_one = 0
    before = _counts(device)
    for number in range(1, calls + 1):
        operands, expected = problems(armory.vocab)[number % 2]
        found = error = None
        try:
            found = call(device, operands)
        except (SyncTimeout, StaleRead, AccuracyError) as caught:
            error = caught
        counts = _counts(device)
        acted = [scenario for scenario, old, new in zip(armory.scenarios, before, counts, strict=True) if new > old]
        before = counts
        if found is not None:
            good = same_bits(found, expected)
            right += 1
        else:
            assert error is not None
            named = set(error.cores)
            good = bool(acted) and bool(named) and named <= set(range(CORES))
            if all(map(names_its_core, acted)):
                good &= any(one._replace(named=(armory.core,)).is_named_right(named) for one in acted)
                named_one += 1
            raised += 1
        assert good, _replayable(policy, armory, order, seed, number, device, error)
    return Tally(right, raised, named_one, _by_scenario(armory, _counts(device)))


def run_campaign(policy: int, calls: int, seed: int, each: int, after: Callable[[int], None] | None = None) -> Tally:
    """At least so many calls, `each` on one device; random and PCT in turn, the other way round in each next round."""
    draw, scenarios = random.Random(f"{policy}/{seed}"), len(allowed(policy))
    right = raised = named_one = 0
    acted: Counter[str] = Counter()
    for turn in range(-(-calls // each)):
        armory = draw_arms(policy, each, turn, draw)
        order = ("random", "pct")[(turn % scenarios + turn // scenarios) % 2]
        tally = run_armory(policy, armory, order, draw.randrange(2**31), each)
        right, raised, named_one = right + tally.right, raised + tally.raised, named_one + tally.named
        acted += tally.acted
        if after is not None:
            after((turn + 1) * each)
    return Tally(right, raised, named_one, acted)


def _counts(device: Device) -> list[int]:
    counts = device.fault_counts()
    return [counts[str(arm)] for arm in device.armed.arms] if device.armed is not None else []


def _by_scenario(armory: Armory, counts: Sequence[int]) -> Counter[str]:
    found: Counter[str] = Counter()
    for scenario, count in zip(armory.scenarios, counts, strict=True):
        found[scenario.name] += count
    return found


def _replayable(
    policy: int, armory: Armory, order: str, seed: int, number: int, device: Device, error: Exception | None
) -> str:
    assert device.last is not None
    schedules = "\n".join(str(run.schedule) for run in device.last.runs)
    return (
        f"policy {POLICIES[policy]}, order {order}, seed {seed}, vocab {armory.vocab}, call {number}, "
        f"core {armory.core}, {error!r}\narms {[str(arm) for arm in armory.arms]}\nschedules\n{schedules}"
    )
