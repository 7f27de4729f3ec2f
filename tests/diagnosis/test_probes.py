"""Tests of steadysum.diagnosis.probes: every planted fault is shown by its probe, and by no other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from steadysum import linear_max_sum
from steadysum.diagnosis.probes import PROBES, REPEAT, SHARDS, Evidence, Plan, probes_of, record, torch_threads, weigh
from steadysum.diagnosis.subject import Operands, Subject
from steadysum.diagnosis.subjects import kernel_subject
from steadysum.maxsum import MaxSum
from steadysum.tiling import Shard

PLAN = Plan(runs=60, threads=(1, 2, 3), seed=0)
Broken = Callable[..., Subject]
Faults = dict[str, Callable[[Tensor, Tensor, MaxSum], None]]


def evidence_of(subject: Subject, operands: Operands, plan: Plan = PLAN) -> dict[str, Evidence]:
    baseline = record(REPEAT.variants(subject, operands, plan))[0]
    shown = {}
    for probe in PROBES:
        variants = probe.variants(subject, operands, plan)
        shown[probe.name] = weigh(subject, variants, record(variants), baseline)
    return shown


def deviating(subject: Subject, operands: Operands) -> set[str]:
    return {name for name, evidence in evidence_of(subject, operands).items() if evidence.deviating}


def test_no_probe_shows_anything_on_an_operator_without_fault(subject: Subject, operands: Operands) -> None:
    assert deviating(subject, operands) == set()


BATCH = {"rows alone", "shuffled", "split"}


@pytest.mark.parametrize(
    ("fault", "shown_by", "may_show"),
    [("alone", "rows alone", BATCH), ("place", "shuffled", BATCH), ("threads", "threads", {"threads"})],
)
def test_a_fault_that_depends_on_one_thing_is_shown_by_its_probe(
    fault: str, shown_by: str, may_show: set[str], broken: Broken, faults: Faults, operands: Operands
) -> None:
    shown = deviating(broken(faults[fault]), operands)
    assert shown_by in shown
    assert shown <= may_show


@pytest.mark.parametrize("fault", ["random_row", "every_second_call"])
def test_an_intermittent_fault_is_shown_by_the_repeat_probe(
    fault: str, broken: Broken, faults: Faults, operands: Operands
) -> None:
    assert "repeat" in deviating(broken(faults[fault]), operands)


def test_a_deviation_that_depends_on_the_batch_comes_back(broken: Broken, faults: Faults, operands: Operands) -> None:
    assert evidence_of(broken(faults["alone"]), operands)["rows alone"].comes_back
    assert not evidence_of(broken(faults["random_row"]), operands)["rows alone"].comes_back


def test_the_first_deviating_row_is_numbered_as_in_the_whole_batch(broken: Broken, operands: Operands) -> None:
    marked = operands.input[7].clone()

    def fault(input: Tensor, weight: Tensor, result: MaxSum) -> None:
        if input.shape[0] == 1 and torch.equal(input[0], marked):
            result.max[0] += 1.0

    evidence = evidence_of(broken(fault), operands)["rows alone"]
    assert evidence.largest.first_row == 7
    assert evidence.largest.absolute == 1.0


def test_every_probe_makes_about_as_many_calls_as_planned(subject: Subject, operands: Operands) -> None:
    for probe in PROBES:
        calls = sum(variant.runs for variant in probe.variants(subject, operands, PLAN))
        assert 24 * 2 <= calls <= 60, probe.name  # rows alone: the batch has 24 rows, each is run twice


def test_probes_draw_the_same_cuts_for_the_same_seed(subject: Subject, operands: Operands) -> None:
    for probe in PROBES:
        labels = [[variant.label for variant in probe.variants(subject, operands, PLAN)] for _ in range(2)]
        assert labels[0] == labels[1]


def test_the_sample_of_rows_holds_the_first_and_the_last(subject: Subject, operands: Operands) -> None:
    (alone,) = (probe for probe in PROBES if probe.name == "rows alone")
    labels = {variant.label for variant in alone.variants(subject, operands, Plan(runs=8, threads=(1,), seed=5))}
    assert len(labels) == 4
    assert {"row=0", "row=23"} <= labels


def test_one_row_has_no_order_and_no_cut(subject: Subject, operands: Operands) -> None:
    one = Operands(operands.input[:1], operands.weight)
    empty = {probe.name for probe in PROBES if not probe.variants(subject, one, PLAN)}
    assert empty == {"shuffled", "split"}


def own_cut(input: Tensor, weight: Tensor, shard: Shard) -> MaxSum:
    """What a shard gives that is cut as if it were a whole vocabulary."""
    return linear_max_sum(input, weight, kernel="native")


@pytest.mark.usefixtures("needs_native")
def test_a_shard_that_is_cut_in_its_own_way_is_shown() -> None:
    generator = torch.Generator().manual_seed(1)
    input, weight = torch.randn(5, 300, generator=generator), torch.randn(9600, 300, generator=generator)
    operands = Operands(input, weight, "normal")
    plan = Plan(runs=8, threads=(1,), seed=0)
    baseline = record(REPEAT.variants(kernel_subject("native"), operands, plan))[0]

    def shown(subject: Subject) -> Evidence:
        variants = SHARDS.variants(subject, operands, plan)
        assert [variant.label for variant in variants] == [f"shards={count}" for count in (2, 4, 8, 16)]
        return weigh(subject, variants, record(variants), baseline)

    assert shown(kernel_subject("native")).deviating == 0
    evidence = shown(replace(kernel_subject("native"), shard=own_cut))
    assert evidence.deviating > 0
    assert evidence.comes_back


def test_shards_are_asked_of_those_who_know_them(subject: Subject) -> None:
    assert SHARDS not in probes_of(subject)
    assert SHARDS in probes_of(kernel_subject("native"))
    assert SHARDS not in probes_of(kernel_subject("eager"))


def test_one_segment_has_no_shards() -> None:
    operands = Operands(torch.zeros(2, 3), torch.zeros(512, 3), "zeros")
    assert SHARDS.variants(kernel_subject("native"), operands, PLAN) == []


def test_the_number_of_threads_is_restored() -> None:
    before = torch.get_num_threads()
    with torch_threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
