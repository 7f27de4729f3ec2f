"""Tests of steadysum.diagnosis.observe: what is kept of many runs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import torch
from torch import Tensor

from steadysum.diagnosis.observe import MOST_KEPT, Recording, observe


def replay(values: Sequence[float]) -> Recording:
    """A recording of a call that returns these values in turn."""
    upcoming = iter(values)
    return observe(lambda: (torch.tensor([next(upcoming)]),), len(values))


def test_equal_runs_agree() -> None:
    recording = replay([1.0] * 5)
    assert recording.agrees
    assert recording.deviating(recording.usual) == 0
    assert len(recording.kept) == 1


def test_the_usual_output_is_that_of_most_runs_even_when_the_first_is_wrong() -> None:
    recording = replay([7.0, 1.0, 1.0, 1.0])
    assert recording.usual_outputs[0].item() == 1.0
    assert recording.deviating(recording.usual) == 1


def test_at_most_sixteen_deviating_outputs_are_kept_and_all_are_counted() -> None:
    recording = replay([float(value) for value in range(100)])
    assert recording.calls == 100
    assert len(recording.kept) == 1 + MOST_KEPT
    assert recording.deviating(recording.usual) == 99


def test_where_the_usual_output_was_not_kept_the_first_stands_for_it() -> None:
    recording = replay([*map(float, range(30)), 99.0, 99.0])
    assert recording.usual_outputs[0].item() == 0.0


def test_a_kept_output_is_a_copy() -> None:
    buffer = torch.zeros(3)

    def call() -> tuple[Tensor]:
        return (buffer.add_(1.0),)  # an operator that reuses its output buffer

    recording = observe(call, 3)
    assert sorted(outputs[0][0].item() for outputs in recording.kept.values()) == [1.0, 2.0, 3.0]


def test_a_stopped_recording_keeps_what_it_has() -> None:
    asked = count()
    recording = observe(lambda: (torch.zeros(1),), 10, stopped=lambda: next(asked) == 4)
    assert recording.calls == 4
