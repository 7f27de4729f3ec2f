"""verify="checksum" under fire: faults that matter are healed to the clean bits; clean calls raise no alarm."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from steadysum.diagnosis.profiles.strikes import COVERED, STAGES

from .checksum_campaign import Tally, campaign, clean_ratios, problems


def test_every_fault_in_operands_logits_and_partials_that_matters_is_healed_to_the_clean_bits(
    traps: ModuleType,
) -> None:
    tally = Tally().add_all(campaign(traps, problems(traps, 60, seed=11), 6000, COVERED, seed=12))
    assert all(tally.matter[stage] > 50 for stage in COVERED)
    assert not +tally.lost


def test_faults_in_exp_and_sum_are_seen_at_the_sampled_rate(traps: ModuleType) -> None:
    tally = Tally().add_all(campaign(traps, problems(traps, 60, seed=13), 4000, ("exp", "sum"), seed=14))
    for stage in ("exp", "sum"):
        everything = sum(n for (where, _, name), n in tally.cells.items() if (where, name) == (stage, "all"))
        seen = sum(n for (where, _, name), n in tally.cells.items() if (where, name) == (stage, "seen"))
        assert 1 / 60 < seen / everything < 1 / 2  # 1 in 32, and the impossible ones
        assert tally.matter[stage] > 0


def test_no_clean_call_raises_an_alarm_whatever_its_operands(traps: ModuleType) -> None:
    for rows, hidden, vocab in ((256, 64, 9000), (64, 768, 9000), (16, 2048, 9000)):
        for found in clean_ratios(rows, hidden, vocab, seed=rows):
            assert found.alarms == 0, found
            assert found.largest < 1
            assert found.median > 3  # a threshold at the rounding errors themselves would be no margin


@pytest.mark.soak
def test_forty_thousand_faults_that_matter(traps: ModuleType) -> None:
    clean = problems(traps, 400, seed=15)
    tally, seed = Tally(), 16
    while min(tally.matter[stage] for stage in COVERED) < 14_000:
        tally.add_all(campaign(traps, clean, 20_000, COVERED, seed=seed))
        seed += 1
    assert sum(tally.matter.values()) >= 40_000
    assert not +tally.lost


@pytest.mark.soak
def test_three_million_checks_of_clean_rows_and_tiles(traps: ModuleType) -> None:
    checks = seed = 0
    while checks < 3_000_000:
        for hidden in (64, 768, 4096):
            for found in clean_ratios(512, hidden, 16_000, seed=seed):
                assert found.alarms == 0, found
                checks += found.checks
        seed += 1


def test_stages_of_the_campaign_are_those_of_the_build(traps: ModuleType) -> None:
    torch.manual_seed(0)
    assert {target for targets in STAGES.values() for target in targets} == set(traps.TARGETS) - {"none"}
