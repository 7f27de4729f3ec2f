"""Hazards of the exchange protocol: none where it is whole, and the right ones where a part is taken away."""

from __future__ import annotations

import pytest

from steadysum.sync.hazards import RAW, WAR, find_hazards
from steadysum.sync.log import events
from steadysum.sync.policies import ENHANCED, LEGACY
from steadysum.sync.virtual import SCHEDULERS, Run

from .hazard_programs import CALLS, CORES, exchange_run, right_result

SEEDS = range(300)


def wrong_calls(run: Run) -> set[int]:
    """The calls in which some core got another result than the sum of all partials."""
    return {
        epoch
        for results in run.results.values()
        for epoch, result in enumerate(results, 1)
        if result != right_result(epoch)
    }


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_the_whole_protocol_has_no_hazard_in_any_run(scheduler: str) -> None:
    for seed in SEEDS:
        run = exchange_run(ENHANCED, seed, scheduler)
        assert len(run.results) == CORES
        assert not find_hazards(events(run)), (scheduler, seed)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_legacy_has_hazards_in_every_call_and_a_manifest_one_in_every_wrong_call(scheduler: str) -> None:
    wrong, right = 0, 0
    for seed in SEEDS:
        run = exchange_run(LEGACY, seed, scheduler)
        hazards = find_hazards(events(run))
        # Each core reads the two others' slots in each call, and nothing but luck has filled them.
        unordered = {(h.epoch, h.first.unit, h.second.unit) for h in hazards.found if h.kind == RAW}
        assert len(unordered) == CALLS * CORES * (CORES - 1)
        bad = wrong_calls(run)
        # A call without a manifest hazard is right; every read that goes wrong changes the sum.
        assert bad == {hazard.epoch for hazard in hazards.manifest}, (scheduler, seed)
        wrong, right = wrong + len(bad), right + CALLS - len(bad)
    assert wrong > 0
    assert right > 0


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_without_heartbeat_and_exit_barrier_slots_are_written_while_they_are_read(scheduler: str) -> None:
    parts = ENHANCED._replace(heartbeat=False, exit_barrier=False)
    found = 0
    for seed in SEEDS:
        hazards = find_hazards(events(exchange_run(parts, seed, scheduler)))
        # Of call 1's reads and call 2's writes; within a call all is still in order.
        assert {(h.kind, h.epoch, h.second.place[0]) for h in hazards.found} <= {(WAR, 1, 2)}
        found += bool(hazards)
    # A run that raises in call 1, as these parts make it, has no second call to collide with.
    assert found > 0


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_either_of_heartbeat_and_exit_barrier_keeps_calls_apart(scheduler: str) -> None:
    for parts in (ENHANCED._replace(heartbeat=False), ENHANCED._replace(exit_barrier=False)):
        for seed in SEEDS[:100]:
            assert not find_hazards(events(exchange_run(parts, seed, scheduler)))


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_without_fences_every_run_reads_what_nothing_has_published(scheduler: str) -> None:
    for seed in SEEDS[:100]:
        hazards = find_hazards(events(exchange_run(ENHANCED._replace(fence=False), seed, scheduler)))
        assert hazards
        assert {hazard.kind for hazard in hazards.found} == {RAW}
