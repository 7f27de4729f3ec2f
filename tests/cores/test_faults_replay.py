"""Tests of steadysum.cores.faults in whole runs: replays from schedules, probabilities, what policies heal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from scipy.stats import binom

from steadysum.cores.device import Device
from steadysum.cores.faults import KINDS, Arm, Armed
from steadysum.cores.grid import Geometry
from steadysum.errors import SteadySumError
from steadysum.settings import Settings
from steadysum.sync.actions import Place
from steadysum.sync.exchange_model import Exchange
from steadysum.sync.policies import ENHANCED, LEGACY, Parts
from steadysum.sync.schedule import parse_schedule
from steadysum.sync.virtual import SCHEDULERS, Launch, Run, VirtualRunner
from steadysum.trace.events import Unit

from .faulty import P2, A, comparable, facts, run_and_replay

# Policy legacy without a race of its own: nobody writes into a slot that others still read.
IN_ORDER = LEGACY._replace(exit_barrier=True)
POLICIES = ("legacy", "enhanced", "verified", "duplicated")

# One arm or more of each kind; those without a phase or site meet every program.
ARMED: dict[str, tuple[Arm, ...]] = {
    "delay": (
        Arm("delay", probability=0.2, distribution="lognormal"),
        Arm("delay", probability=0.2, distribution="exponential", core=1),
    ),
    "stale": (Arm("stale", probability=0.2), Arm("stale", probability=0.2, age=2)),
    "dropped": (Arm("dropped", probability=0.2),),
    "duplicated": (Arm("duplicated", probability=0.5),),
    "torn": (Arm("torn", probability=0.2), Arm("torn", probability=0.2, new="last", position=3)),
    "reordered": (Arm("reordered", probability=0.3), Arm("reordered", probability=0.3, own=True)),
    "overrun": (
        Arm("overrun", probability=0.3, lead=2),
        *(Arm("overrun", probability=0.3, site=name) for name in ("written", "tiles", "tile ready", "init", "exit")),
    ),
    "reset": (Arm("reset", probability=0.3), Arm("reset", probability=0.1, whose="own")),
    "dirty": (Arm("dirty", probability=0.5, content="nan"), Arm("dirty", probability=0.5)),
    "unwritten": (Arm("unwritten", probability=0.3), Arm("unwritten", probability=0.3, part="tail")),
    "crosstalk": (Arm("crosstalk", probability=0.5),),
    "tail": (Arm("tail", probability=0.5), Arm("tail")),
    "flip": (
        Arm("flip", probability=0.1),
        Arm("flip", probability=0.2, site="w", bits="exponent"),
        Arm("flip", probability=0.2, at="write", count=2),
        Arm("flip", probability=0.2, at="end"),
    ),
    "scale": (Arm("scale", probability=0.1), Arm("scale", probability=0.3, site="max", at="write")),
    "dead": (Arm("dead", probability=0.02), Arm("dead", probability=0.1, comes_back=3e6)),
    "slow": (Arm("slow", probability=0.5),),
}


def test_every_kind_is_tried() -> None:
    assert set(ARMED) == set(KINDS)
    assert {arm.kind for arms in ARMED.values() for arm in arms} == set(KINDS)


# ---- the exchange protocol ------------------------------------------------------------------------------------------


def exchange(parts: Parts, armed: Armed) -> Launch:
    return Exchange(3, 3, parts).launch(armed)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("parts", [LEGACY, ENHANCED], ids=["legacy", "enhanced"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_exchange_with_faults_replays_from_its_schedule(kind: str, parts: Parts, scheduler: str) -> None:
    for seed in range(3):
        drawn, replayed = run_and_replay(lambda armed: exchange(parts, armed), ARMED[kind], seed, scheduler)
        assert drawn == replayed


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_all_kinds_at_once_replay_from_a_schedule_in_text(scheduler: str) -> None:
    arms = tuple(arm for kind in KINDS for arm in ARMED[kind])
    for seed in range(10):
        drawn, scripted = Armed(arms, seed), Armed(arms, seed)
        first, second = exchange(ENHANCED, drawn), exchange(ENHANCED, scripted)
        done = VirtualRunner(seed, scheduler).run(first)
        again = VirtualRunner().replay(second, parse_schedule(str(done.schedule)))
        assert facts(done, drawn, first.memory) == facts(again, scripted, second.memory)


def test_arms_that_never_act_change_nothing() -> None:
    idle = Armed([Arm(kind, probability=0.0) for kind in KINDS])
    for scheduler in SCHEDULERS:
        quiet, armed = Exchange(3, 2, ENHANCED).launch(), Exchange(3, 2, ENHANCED).launch(idle)
        plain, done = (VirtualRunner(3, scheduler).run(launch) for launch in (quiet, armed))
        assert str(plain.schedule) == str(done.schedule)
        assert plain.results == done.results
        assert set(idle.counts().values()) == {0}


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_replay_takes_faults_from_the_schedule_alone(scheduler: str) -> None:
    model = Exchange(3, 2, ENHANCED)
    plain = VirtualRunner(1, scheduler).run(model.launch())
    certain = Armed([arm for kind in KINDS for arm in (Arm(kind),)])
    again = VirtualRunner().replay(model.launch(certain), plain.schedule)
    assert again.results == plain.results
    assert set(certain.counts().values()) == {0}
    assert sum(certain.offers().values()) > 0


@pytest.mark.parametrize("core", [0, 2])
def test_a_dropped_partial_leaves_the_one_of_the_epoch_before(core: int) -> None:
    model = Exchange(3, 2, IN_ORDER)
    done = VirtualRunner().run(model.launch(armed := Armed([Arm("dropped", core=core, site=f"value {core}", calls=2)])))
    wrong = model.wanted(2) - model.payload(core, 2, 3) + model.payload(core, 1, 3)
    assert list(done.results.values()) == [[model.wanted(1), wrong]] * 3
    assert list(armed.counts().values()) == [1]


def test_a_stale_read_gives_one_core_the_partial_of_the_epoch_before() -> None:
    model = Exchange(3, 3, IN_ORDER)
    arm = Arm("stale", core=1, site="value 2", calls=3, age=2)
    done = VirtualRunner().run(model.launch(armed := Armed([arm])))
    wrong = model.wanted(3) - model.payload(2, 3, 3) + model.payload(2, 1, 3)
    right = [model.wanted(epoch) for epoch in (1, 2, 3)]
    assert list(done.results.values()) == [right, [*right[:2], wrong], right]
    assert list(armed.counts().values()) == [1]


@pytest.mark.parametrize(
    "arm",
    [
        Arm("stale", most=1),
        Arm("dropped", most=1, core=1),
        Arm("torn", most=1),
        Arm("reordered", most=1),
        Arm("flip", at="write", most=1),
        Arm("reset", most=1),
        Arm("delay", most=1),
    ],
    ids=str,
)
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_one_fault_is_healed_by_the_enhanced_policy(arm: Arm, scheduler: str) -> None:
    model = Exchange(3, 2, ENHANCED, retries=3)
    acted = 0
    for seed in range(10):
        done = VirtualRunner(seed, scheduler).run(model.launch(armed := Armed([arm], seed)))
        acted += sum(armed.counts().values())
        assert set(map(tuple, done.results.values())) <= {(model.wanted(1), model.wanted(2))}
        # Under a scheduler a wait may time out again and again though others could go on: that is no fault's doing.
        assert scheduler != "clock" or len(done.results) == 3
    assert acted > 0


def test_a_dead_core_is_named_by_the_enhanced_policy() -> None:
    model = Exchange(3, 2, ENHANCED)
    done = VirtualRunner().run(model.launch(Armed([Arm("dead", core=2, calls=2)])))
    assert done.dead == (Unit(2, "core"),)
    assert [error.cores for _, error in done.errors] == [(2,), (2,)]  # type: ignore[attr-defined]


# ---- how often ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("probability", [0.01, 0.3, 0.9])
@pytest.mark.parametrize("kind", ["delay", "dropped", "torn", "reordered", "stale", "flip"])
def test_a_fault_acts_with_the_probability_that_it_is_armed_with(kind: str, probability: float) -> None:
    knobs = {"delay": {"microseconds": 1.0}, "flip": {"at": "write"}}.get(kind, {})
    arm = Arm(kind, probability=probability, **knobs)  # type: ignore[arg-type]
    acted = offered = 0
    for seed in range(30):
        armed = Armed([arm], seed)
        VirtualRunner(seed).run(Exchange(4, 8, LEGACY).launch(armed))
        (count,), (offers,) = armed.counts().values(), armed.offers().values()
        acted, offered = acted + count, offered + offers
    low, high = binom.interval(1 - 1e-6, offered, probability)  # exact
    assert offered >= 900
    assert low <= acted <= high


def test_arms_draw_for_themselves() -> None:
    arm = Arm("tail", probability=0.5)
    alone, first = Armed([arm], 5), Armed([arm, Arm("tail", probability=0.5, site="floor")], 5)
    found = [armed.acts("tail", A, P2, "padding") is not None for armed in (alone, first) for _ in range(64)]
    assert found[:64] == found[64:]


def test_draws_of_a_call_do_not_depend_on_the_calls_before() -> None:
    def acts(armed: Armed, call: int) -> list[bool]:
        armed.begin_call(call, call)
        return [armed.acts("tail", A, Place(call, 0, 0, "P0 init"), "floor") is not None for _ in range(64)]

    arm = Arm("tail", probability=0.5)
    whole, alone = Armed([arm], 1), Armed([arm], 1)
    later = [acts(whole, call) for call in (1, 2, 3)][-1]
    assert acts(alone, 3) == later
    assert acts(Armed([arm], 2), 3) != later


# ---- the device -----------------------------------------------------------------------------------------------------


class Replaying:
    """A runner that takes saved schedules, launch after launch."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = list(runs)

    def run(self, launch: Launch, call: str = "0") -> Run:  # noqa: ARG002 - the protocol's signature
        return VirtualRunner().replay(launch, self._runs.pop(0).schedule)


def calls_of(device: Device, calls: int) -> tuple[list[object], list[Run]]:
    """What calls give, or raise; shapes and operands alternate."""
    found: list[object] = []
    runs: list[Run] = []
    for number in range(calls):
        draw = torch.Generator().manual_seed(number)
        rows, vocab = (7, 21) if number % 2 else (10, 13)
        x, w = torch.randn(rows, 5, generator=draw), torch.randn(vocab, 5, generator=draw)
        target = torch.randint(0, vocab, (rows,), generator=draw)
        try:
            result = device.fused_linear_online_max_sum(x, w, target, 0, vocab)
            found.append(comparable([np.asarray(part) for part in result[:5]]))
        except SteadySumError as error:
            found.append(comparable(error))
        assert device.last is not None
        runs += device.last.runs
    return found, runs


def assert_the_device_replays(kind: str, policy: str, seed: int, calls: int) -> None:
    settings, geometry = Settings(allreduce_policy=policy, max_retries=1), Geometry(4, 8)
    drawn = Device(3, settings, ARMED[kind], seed=seed, geometry=geometry)
    results, runs = calls_of(drawn, calls)
    replayed = Device(3, settings, ARMED[kind], seed=seed, geometry=geometry, runner=Replaying(runs))
    again, runs_again = calls_of(replayed, calls)
    assert again == results
    assert replayed.fault_counts() == drawn.fault_counts()
    assert [str(one.schedule) for one in runs_again] == [str(one.schedule) for one in runs]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", KINDS)
def test_calls_of_the_device_replay_from_their_schedules(kind: str, policy: str) -> None:
    assert_the_device_replays(kind, policy, seed=1, calls=2)


@pytest.mark.soak
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", KINDS)
def test_many_calls_of_the_device_replay_from_their_schedules(kind: str, policy: str) -> None:
    for seed in range(20):
        assert_the_device_replays(kind, policy, seed, calls=5)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_acts_on_the_vendors_kernel(kind: str) -> None:
    device = Device(1 + (kind != "overrun"), Settings(allreduce_policy="legacy"), [Arm(kind)], geometry=Geometry(4, 8))
    calls_of(device, 2)  # an overrun takes three tiles on a core: there are two buffers
    assert all(device.fault_counts().values())
