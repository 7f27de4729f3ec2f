"""verify="sampled" takes no rounding for a fault, and is otherwise the kernel that it verifies."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from steadysum import kernels
from steadysum.kernels import bounds, eager, reference, sampled
from steadysum.kernels.bounds import Roundings
from steadysum.kernels.gradients import Gradients, PullBack, Wanted
from steadysum.kernels.problem import Operands, Statistics
from steadysum.kernels.registry import select
from steadysum.kernels.sampled import Sampled

from .sampled_calls import FULL, HIDDEN, ROWS, VOCAB, cross_entropy, draw, everything, problem, same

INF, NAN = math.inf, math.nan


@pytest.fixture
def all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows and columns are drawn."""
    monkeypatch.setattr(sampled, "ROWS", 10**9)


# ---- no false alarm --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_clean_results_of_every_part_pass_with_their_bits(kernel: str, dtype: torch.dtype, all_rows: None) -> None:
    call = replace(FULL, input=FULL.input.to(dtype), weight=FULL.weight.to(dtype), bias=draw(VOCAB, seed=2).to(dtype))
    call = replace(
        call,
        temperature=draw(ROWS, seed=3).abs().to(call.dtype) + 0.5,
        column_weight=draw(VOCAB, seed=4).abs().to(call.dtype),
    )
    plain = kernels.get(kernel)
    if (reason := plain.supports(call.problem(wants_gradients=True))) is not None:
        pytest.skip(reason)
    results = everything(Sampled(plain), call), everything(plain, call)
    assert all(same(one, other) for one, other in zip(*results, strict=True))


def first(values: Tensor, value: float) -> Tensor:
    """The same values, but for the first row."""
    values = values.clone()
    values[:1] = value
    return values


KINDS: dict[str, Callable[[Operands], Operands]] = {
    "random": lambda call: call,
    "integers": lambda call: replace(call, input=call.input.round(), weight=(8 * call.weight).round()),  # ties
    "peaked": lambda call: replace(call, bias=first(torch.zeros(len(call.weight)), 80.0)),
    "shifted": lambda call: replace(call, bias=torch.full((len(call.weight),), 2.0**24)),
    "very negative": lambda call: replace(call, bias=torch.full((len(call.weight),), -500.0)),
    "constant": lambda call: replace(call, input=call.input * 0 + 0.1, weight=call.weight * 0 + 0.1),
    "tiny": lambda call: replace(call, input=call.input * 1e-30, weight=call.weight * 1e-12),
    "denormal": lambda call: replace(call, input=call.input * 1e-41, weight=call.weight * 1e5),
    "huge": lambda call: replace(call, input=call.input * 1e15),
    "overflowing": lambda call: replace(call, input=call.input * 1e20, weight=call.weight * 1e20),
    "a NaN": lambda call: replace(call, input=first(call.input, NAN)),
    "infinite input": lambda call: replace(call, input=first(call.input, INF)),
    "infinite weight": lambda call: replace(call, weight=first(call.weight, -INF)),
    "nothing but -inf": lambda call: replace(call, bias=torch.full((len(call.weight),), -INF)),
    "some -inf": lambda call: replace(call, bias=first(torch.zeros(len(call.weight)), -INF)),
}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(list(KINDS)),
    dtype=st.sampled_from(DTYPES),
    rows=st.integers(0, 4),
    hidden=st.integers(0, 300),
    vocab=st.integers(1, 1200),
    softcap=st.sampled_from([None, 1e-3, 30.0]),
    temperature=st.sampled_from([None, 1e-3, 0.7]),
    data=st.data(),
)
def test_no_rounding_is_taken_for_a_fault(
    kind: str,
    dtype: torch.dtype,
    rows: int,
    hidden: int,
    vocab: int,
    softcap: float | None,
    temperature: float | None,
    data: st.DataObject,
    all_rows: None,
) -> None:
    name = data.draw(st.sampled_from(["eager", *({"native"} & {*kernels.available()})]))
    call = KINDS[kind](problem(rows, hidden, vocab) if hidden else problem(rows, 1, vocab))
    call = replace(
        call,
        input=call.input[:, :hidden].to(dtype),
        weight=call.weight[:, :hidden].to(dtype),
        softcap=softcap,
        temperature=None if temperature is None else torch.tensor([temperature]),
        valid_vocab=data.draw(st.integers(1, vocab)),
        wants_ties=True,
        wants_column_sum=True,
    )
    call = replace(call, target=torch.arange(rows) % call.valid_vocab)
    plain = kernels.get(name)
    results = everything(Sampled(plain), call), everything(plain, call)
    assert all(same(one, other) for one, other in zip(*results, strict=True))


def test_products_that_torch_may_round_have_the_bound_of_that(all_rows: None) -> None:
    call = problem()
    before = torch.get_float32_matmul_precision()
    narrow = {"highest": 0.0, "high": 2.0**-11, "medium": 2.0**-8}
    try:
        for chosen, unit in narrow.items():
            torch.set_float32_matmul_precision(chosen)
            assert Roundings.of("eager", call).operand == unit
            assert Roundings.of("native", call).operand == 0.0
            everything(Sampled(eager), call)
    finally:
        torch.set_float32_matmul_precision(before)


def test_a_weight_is_widened_a_slice_at_a_time(all_rows: None, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = bounds.logits(FULL, Roundings.of("eager", FULL))
    monkeypatch.setattr(bounds, "SLICE", 7 * HIDDEN)
    sliced = bounds.logits(FULL, Roundings.of("eager", FULL))
    torch.testing.assert_close(sliced.value, whole.value, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(sliced.bound, whole.bound, rtol=1e-12, atol=0.0)
    everything(Sampled(eager), FULL)


class Chip:
    """What the vendor's chips may do: logits rounded to 16 bits, gradients formed in them and returned so."""

    name = "ascend"

    def _rounded(self, call: Operands) -> Tensor:
        return reference.logits_of(call).to(call.input.dtype).double()

    def statistics(self, calls: Sequence[Operands]) -> list[Statistics]:
        found = [reference.statistics_of(call, self._rounded(call)) for call in calls]
        return [Statistics(*(None if each is None else each.float() for each in row)) for row in found]

    def gradients(self, call: Operands, pull_back: PullBack, _: Wanted, known: Statistics) -> Gradients:
        terms, dtype = pull_back(known, 0, call.size), call.input.dtype
        g = reference.logit_gradient(call, self._rounded(call), known.max, terms).to(dtype).double()
        of_input, of_weight = g @ call.weight.double(), g.T @ call.input.double()
        return Gradients(of_input.to(dtype).float(), of_weight.to(dtype).float(), None)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_what_the_vendors_chips_round_is_no_fault(dtype: torch.dtype, all_rows: None) -> None:
    for seed in range(20):
        x, weight = draw(ROWS, 200, seed=seed), draw(900, 200, seed=seed + 100) / 10
        call = problem(200, 900, 900, input=x.to(dtype), weight=weight.to(dtype), target=torch.arange(ROWS))
        chip = Sampled(Chip())  # type: ignore[arg-type]
        (found,) = chip.statistics([call])
        chip.gradients(call, cross_entropy, Wanted(True, True, False), found)


# ---- drawing ---------------------------------------------------------------------------------------------------------
def test_a_few_rows_are_drawn_other_ones_each_time() -> None:
    drawn = [sampled._drawn(1000) for _ in range(40)]
    assert all(len({*rows}) == sampled.ROWS and rows == sorted(rows) and rows[0] >= 0 for rows in drawn)
    assert max(rows[-1] for rows in drawn) < 1000
    assert len({tuple(rows) for rows in drawn}) == 40  # two of 40 are equal with a chance of 2e-8
    assert sampled._drawn(3) == [0, 1, 2]
    assert sampled._drawn(0) == []


def test_the_callers_random_states_are_left_alone() -> None:
    before = torch.get_rng_state(), random.getstate()
    everything(Sampled(eager), FULL)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


# ---- a kernel like the one inside ------------------------------------------------------------------------------------
def test_it_says_of_itself_what_its_kernel_says(kernel: str) -> None:
    plain = kernels.get(kernel)
    verified = select(problem().problem(), f"{kernel}+sampled")
    assert isinstance(verified, Sampled)
    assert (verified.name, verified.promises, verified.missing()) == (kernel, plain.promises, None)
    double = replace(problem().problem(), dtype=torch.float64)
    assert verified.supports(double) == plain.supports(double)
