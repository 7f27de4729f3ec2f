"""Tests of steadysum.diagnosis.field_loop: it says what the report's own loop says, which is little."""

from __future__ import annotations

import pytest
import torch

from steadysum.diagnosis.field_loop import THRESHOLD, run_field_loop
from steadysum.diagnosis.observe import observe
from steadysum.maxsum import MaxSum

ROWS, VOCABULARY = 1024, 1024  # two tiles of 512 columns


def logits() -> torch.Tensor:
    return torch.randn(ROWS, VOCABULARY, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def statistics(logits: torch.Tensor) -> MaxSum:
    largest = logits.amax(1)
    return MaxSum(largest.float(), (logits - largest[:, None]).exp().sum(1).float())


def stale_rows(rows: int) -> MaxSum:
    """The statistics of a call in which so many rows miss the second tile."""
    whole, half = statistics(logits()), statistics(logits()[:, :512])
    return MaxSum(*(torch.cat((stale[:rows], right[rows:])) for stale, right in zip(half, whole, strict=True)))


def test_the_loop_is_blind_to_half_of_all_rows_missing_a_whole_tile() -> None:
    upcoming = iter([statistics(logits()), statistics(logits()), stale_rows(512)])
    recording = observe(lambda: next(upcoming), 3)
    loop = run_field_loop(recording, VOCABULARY)
    assert (loop.deviating, loop.reported) == (1, 0)
    assert loop.says == "misses 1 of 1"
    assert 0.0 < loop.largest < THRESHOLD


def test_the_mean_that_it_compares_is_the_mean_of_the_softmax() -> None:
    stale = stale_rows(512)
    softmax = (logits() - stale.max[:, None].double()).exp() / stale.sum_exp[:, None].double()
    upcoming = iter([statistics(logits()), statistics(logits()), stale])
    loop = run_field_loop(observe(lambda: next(upcoming), 3), VOCABULARY)
    assert loop.largest == pytest.approx(abs(softmax.mean().item() - 1.0 / VOCABULARY), rel=1e-4)


def test_the_loop_reports_what_it_can_see() -> None:
    right = statistics(logits())
    tiny = MaxSum(right.max, right.sum_exp * 0.1)  # nine tenths of every row's sum are missing
    upcoming = iter([right, right, tiny])
    loop = run_field_loop(observe(lambda: next(upcoming), 3), VOCABULARY)
    assert loop.says == "reports all 1"


def test_the_loop_reports_nothing_where_nothing_deviates() -> None:
    loop = run_field_loop(observe(lambda: statistics(logits()), 3), VOCABULARY)
    assert (loop.calls, loop.says) == (3, "reports nothing")
