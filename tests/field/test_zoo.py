"""The zoo's operators go wrong as they should: really, at about their stated rates, and only where they can."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch import Tensor

from steadysum.diagnosis.rates import clopper_pearson

from .zoo.loading import load, names
from .zoo.truth import TRUTHS

SEEDS = (0, 1, 2)  # of constants and shapes
CALLS = 120  # for each seed: 360 together
# Each rate's test fails one time in 2000 by chance; luck is seeded, so what remains by chance is the threads' timing.
CONFIDENCE = 0.9995
CLEAN_CALLS = 40

RERUN = [name for name, truth in TRUTHS.items() if truth.circumstance == "rerun" and not truth.harmless]
HARMFUL = [name for name, truth in TRUTHS.items() if not truth.harmless]


def tolerance(exact: Tensor) -> Tensor:
    """Far above any fp32 rounding here, far below what a fault does."""
    return 1e-4 * (1.0 + exact.abs())


def wrong(zoo: ModuleType, inputs: tuple[Tensor, ...]) -> bool:
    """Whether one call hangs, or its result is none of rounding."""
    exact = zoo.reference(*inputs)
    try:
        result = zoo.operator(*inputs)
    except TimeoutError:
        return True
    return not bool(((result.double() - exact).abs() <= tolerance(exact)).all())


def count_wrong(zoo: ModuleType, shape: tuple[int, ...], calls: int, seed: int = 0) -> int:
    """How many of some calls are."""
    inputs = zoo.make_inputs(seed, shape)
    return sum(wrong(zoo, inputs) for _ in range(calls))


def test_each_operator_has_a_truth_and_each_truth_an_operator() -> None:
    assert set(names()) == set(TRUTHS)


@pytest.mark.parametrize("name", RERUN)
def test_a_rerun_is_wrong_at_about_the_stated_rate(name: str) -> None:
    truth = TRUTHS[name]
    calls = CALLS if truth.symptom == "values" and truth.rate < 0.8 else CALLS // 3
    count = 0
    for seed in SEEDS:
        zoo = load(name, seed, luck=seed + 10, patience=0.05)
        count += count_wrong(zoo, zoo.shapes[seed % len(zoo.shapes)], calls, seed)
    low, high = clopper_pearson(count, calls * len(SEEDS), CONFIDENCE)
    assert low <= truth.rate <= high


@pytest.mark.parametrize("name", RERUN)
def test_no_call_is_wrong_on_a_shape_that_cannot_fail(name: str) -> None:
    zoo = load(name, seed=1, luck=1)
    for shape in zoo.clean_shapes:
        assert count_wrong(zoo, shape, CLEAN_CALLS) == 0, shape


@pytest.mark.parametrize("name", RERUN)
def test_the_smallest_failing_shape_fails(name: str) -> None:
    truth = TRUTHS[name]
    zoo = load(name, seed=2, luck=2, patience=0.05)
    inputs = zoo.make_inputs(3, truth.smallest(zoo))
    assert any(wrong(zoo, inputs) for _ in range(int(8 / truth.rate) + 1))  # (1 - rate)^(8 / rate) < e^-8


@pytest.mark.parametrize("name", [name for name, truth in TRUTHS.items() if truth.circumstance == "first"])
def test_the_first_call_of_a_process_is_wrong_and_no_later_one(name: str) -> None:
    for seed in SEEDS:
        zoo = load(name, seed)
        for shape in zoo.shapes:
            zoo = load(name, seed)
            inputs = zoo.make_inputs(seed, shape)
            assert wrong(zoo, inputs), shape
            assert not any(wrong(zoo, inputs) for _ in range(CLEAN_CALLS)), shape


@pytest.mark.parametrize("name", HARMFUL)
def test_constants_and_inputs_are_drawn_from_seeds(name: str) -> None:
    zoos = [load(name, seed) for seed in range(8)]
    assert len({zoo.shapes for zoo in zoos}) > 1
    first, again, other = (zoos[0].make_inputs(seed, zoos[0].shapes[0])[0] for seed in (4, 4, 5))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
