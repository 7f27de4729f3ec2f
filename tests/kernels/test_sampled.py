"""verify="sampled" sees what no rounding explains, in every part of a call, and takes no rounding for a fault."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from steadysum import kernels, notices
from steadysum.errors import AccuracyError
from steadysum.kernels import bounds, eager, sampled
from steadysum.kernels.bounds import Roundings
from steadysum.kernels.gradients import Gradients, LogitGradient, PullBack, Wanted
from steadysum.kernels.problem import Operands, Statistics
from steadysum.kernels.registry import Kernel, select
from steadysum.kernels.sampled import Sampled

INF, NAN = math.inf, math.nan
ROWS, HIDDEN, VOCAB = 6, 40, 1100
ALL = Wanted(True, True, True)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def problem(rows: int = ROWS, hidden: int = HIDDEN, vocab: int = VOCAB, **options: Any) -> Operands:
    plain = {"bias": None, "scale": 1.0, "softcap": None, "temperature": None, "valid_vocab": vocab}
    operands = {"input": draw(rows, hidden), "weight": draw(vocab, hidden, seed=1) / hidden**0.5}
    return Operands(**{**operands, **plain, "target": torch.arange(rows) * 3 % vocab, **options})


FULL = problem(
    bias=draw(VOCAB, seed=2),
    scale=0.5,
    softcap=8.0,
    temperature=draw(ROWS, seed=3).abs() + 0.5,
    valid_vocab=900,
    wants_ties=True,
    wants_column_sum=True,
    column_weight=draw(VOCAB, seed=4).abs(),
    dense=draw(ROWS, VOCAB, seed=5),
)


ENTROPY = replace(FULL, wants_ties=False, wants_weighted_sum=True)  # no kernel needs to carry both at once


def cross_entropy(found: Statistics, start: int, stop: int) -> LogitGradient:
    return LogitGradient(exp=1 / found.sum_exp, target=-torch.ones_like(found.sum_exp))


def every_term(found: Statistics, start: int, stop: int) -> LogitGradient:
    a, b = draw(2, ROWS, seed=7)[:, start:stop].to(found.max.dtype)
    assert found.ties is not None
    return LogitGradient(
        exp=a / found.sum_exp,
        slope=b / found.sum_exp,
        center=a,
        column=b,
        dense=a * b,
        tie=a / found.ties,
        target=b,
        keep_above=found.sum_exp * 1e-3,
    )


@pytest.fixture
def all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows and columns are drawn."""
    monkeypatch.setattr(sampled, "ROWS", 10**9)


class Spoiled:
    """A kernel whose results are spoiled, the first `times` of them."""

    def __init__(self, kernel: Kernel, spoil: Callable[[Any], None], times: int) -> None:
        self.kernel, self.spoil, self.times = kernel, spoil, times
        self.name, self.computed = kernel.name, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kernel, name)

    def _spoiled(self, result: Any) -> Any:
        self.computed += 1
        if self.computed <= self.times:
            self.spoil(result)
        return result

    def statistics(self, calls: Sequence[Operands]) -> list[Statistics]:
        return [self._spoiled(found) for found in self.kernel.statistics(calls)]

    def chunk_statistics(self, call: Operands) -> Statistics:
        return self._spoiled(self.kernel.chunk_statistics(call))  # type: ignore[no-any-return]

    def logits(self, call: Operands, out: Tensor) -> Statistics:
        found = self.kernel.logits(call, out)
        self._spoiled(out)
        return found

    def softmax(self, call: Operands, out: Tensor) -> None:
        self.kernel.softmax(call, out)
        self._spoiled(out)

    def gradients(self, call: Operands, pull_back: PullBack, wanted: Wanted, known: Any = None) -> Gradients:
        return self._spoiled(self.kernel.gradients(call, pull_back, wanted, known))  # type: ignore[no-any-return]

    def log(self, sum_exp: Tensor) -> Tensor:
        return self._spoiled(self.kernel.log(sum_exp))  # type: ignore[no-any-return]

    def logprobs(self, found: Statistics) -> Tensor:
        return self._spoiled(self.kernel.logprobs(found))  # type: ignore[no-any-return]

    def entropy(self, found: Statistics) -> Tensor:
        return self._spoiled(self.kernel.entropy(found))  # type: ignore[no-any-return]


def add(to: Tensor, place: int | tuple[int, ...], amount: float) -> None:
    to[place] += amount


def everything(kernel: Kernel, call: Operands) -> list[Tensor | None]:
    """Every part of a call, in turn."""
    out = torch.zeros(call.size, call.weight.shape[0], dtype=call.dtype)
    fewer = replace(call, wants_column_sum=False, dense=None)
    entropy = replace(fewer, wants_ties=False, wants_weighted_sum=True)
    found = kernel.statistics([entropy])[0]
    results: list[Tensor | None] = [*found, kernel.entropy(found), *kernel.chunk_statistics(call)]
    results += [*kernel.logits(fewer, out), out.clone()]
    kernel.softmax(fewer, out)
    results.append(out)
    terms = cross_entropy if call.dense is None else every_term
    results += kernel.gradients(call, terms, ALL)
    found = kernel.statistics([fewer])[0]
    results += kernel.gradients(fewer, cross_entropy, ALL, Statistics(found.max, found.sum_exp))
    return [*results, kernel.log(found.sum_exp), kernel.logprobs(found)]


def same(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one.nan_to_num(123.0, 1e30, -1e30), other.nan_to_num(123.0, 1e30, -1e30))


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


# ---- faults ----------------------------------------------------------------------------------------------------------
LOOKS: dict[str, tuple[Callable[[Kernel], Any], Callable[[Any], None], str]] = {
    "max": (lambda k: k.statistics([FULL])[0].max, lambda found: add(found.max, 4, 0.1), "max of row 4"),
    "sum_exp": (
        lambda k: k.statistics([FULL])[0].sum_exp,
        lambda found: add(found.sum_exp, 3, 1.0),
        "sum_exp of row 3",
    ),
    "target_logit": (
        lambda k: k.statistics([FULL])[0].target_logit,
        lambda found: add(found.target_logit, 0, 0.1),
        "target_logit of row 0",
    ),
    "weighted_sum": (
        lambda k: k.statistics([ENTROPY])[0].weighted_sum,
        lambda found: add(found.weighted_sum, 2, 1.0),
        "weighted_sum of row 2",
    ),
    "ties": (lambda k: k.statistics([FULL])[0].ties, lambda found: add(found.ties, 2, 1.0), "ties of row 2"),
    "column_sum": (
        lambda k: k.chunk_statistics(FULL).column_sum,
        lambda found: add(found.column_sum, 5, 1.0),
        "column_sum of row 5",
    ),
    "dense_total": (
        lambda k: k.chunk_statistics(FULL).dense_total,
        lambda found: add(found.dense_total, 5, 0.1),
        "dense_total of row 5",
    ),
    "dense_sum": (
        lambda k: k.chunk_statistics(FULL).dense_sum,
        lambda found: add(found.dense_sum, 5, 1.0),
        "dense_sum of row 5",
    ),
    "dense_exp": (
        lambda k: k.chunk_statistics(FULL).dense_exp,
        lambda found: add(found.dense_exp, 5, 1.0),
        "dense_exp of row 5",
    ),
    "a NaN": (lambda k: k.statistics([FULL])[0].max, lambda found: add(found.max, 1, NAN), "max of row 1"),
    "logit": (lambda k: logits_of(k, FULL), lambda out: add(out, (3, 899), 0.1), "logit of row 3"),
    "masked logit": (lambda k: logits_of(k, FULL), lambda out: out[3, 950:951].zero_(), "logit of row 3"),
    "softmax": (lambda k: softmax_of(k, FULL), lambda out: add(out, (5, 0), 1e-4), "softmax of row 5"),
    "gradient of input": (
        lambda k: k.gradients(FULL, every_term, ALL).input,
        lambda found: add(found.input, (2, 7), 10.0),
        "gradient of input of row 2",
    ),
    "gradient of weight": (
        lambda k: k.gradients(FULL, every_term, ALL).weight,
        lambda found: add(found.weight, (700, 7), 10.0),
        "gradient of weight of row 700",
    ),
    "gradient of bias": (
        lambda k: k.gradients(FULL, every_term, ALL).bias,
        lambda found: add(found.bias, 33, 10.0),
        "gradient of bias of position 33",
    ),
    "logarithm": (lambda k: k.log(torch.ones(5)), lambda found: add(found, 2, 1e-5), "logarithm of position 2"),
    "log-probability": (
        lambda k: k.logprobs(k.statistics([FULL])[0]),
        lambda found: add(found, 2, 1e-4) if isinstance(found, Tensor) else None,
        "log-probability of position 2",
    ),
    "entropy": (
        lambda k: k.entropy(k.statistics([ENTROPY])[0]),
        lambda found: add(found, 2, 1e-4) if isinstance(found, Tensor) else None,
        "entropy of position 2",
    ),
}


def logits_of(kernel: Kernel, call: Operands) -> Tensor:
    out = torch.empty(call.size, call.weight.shape[0])
    kernel.logits(call, out)
    return out


def softmax_of(kernel: Kernel, call: Operands) -> Tensor:
    out = torch.empty(call.size, call.weight.shape[0])
    kernel.softmax(call, out)
    return out


@pytest.mark.parametrize("look", LOOKS)
def test_a_persistent_fault_in_any_part_raises_and_names_its_row(look: str, all_rows: None) -> None:
    run, spoil, text = LOOKS[look]
    spoiled = Spoiled(eager, spoil, times=10**9)
    with pytest.raises(AccuracyError, match=f"^{text}, by kernel 'eager': got .*, and again when computed once more;"):
        run(Sampled(spoiled))  # type: ignore[arg-type]


@pytest.mark.parametrize("look", LOOKS)
def test_a_transient_fault_in_any_part_is_healed(look: str, all_rows: None) -> None:
    run, spoil, _ = LOOKS[look]
    spoiled = Spoiled(eager, spoil, times=1)
    assert same(run(Sampled(spoiled)), run(eager))  # type: ignore[arg-type]
    assert spoiled.computed >= 2


def test_all_rows_at_fault_are_named_as_the_caller_counts_them(all_rows: None) -> None:
    def spoil(found: Statistics) -> None:
        found.max[1:3] += 1.0

    spoiled = Sampled(Spoiled(eager, spoil, times=10**9))  # type: ignore[arg-type]
    kept = torch.tensor([0, 2, 4, 5])
    call = problem(kept=kept, target=torch.zeros(4, dtype=torch.int64))
    with pytest.raises(AccuracyError, match=r"^max of rows 2, 4,"):
        spoiled.chunk_statistics(call)
    for start, rows in ((0, "2, 4"), (1, "4, 5")):  # a chunk of the call
        with pytest.raises(AccuracyError, match=f"^max of rows {rows},"):
            spoiled.statistics([call.rows(start, 4)])
    with pytest.raises(AccuracyError, match=r"^max of rows 4, 5,"):
        spoiled.statistics([problem().rows(2, 6).rows(1, 4)])


def test_an_error_names_no_more_than_a_few_places() -> None:
    spoiled = Sampled(Spoiled(eager, lambda found: found.add_(1.0), times=2))  # type: ignore[arg-type]
    with pytest.raises(AccuracyError, match=r"^logarithm of positions 0, 1, .*, 15 and 84 more, by kernel"):
        spoiled.log(torch.ones(100))


def test_the_error_says_what_was_seen_and_what_to_do(all_rows: None) -> None:
    call = problem(input=torch.ones(1, 1), weight=torch.tensor([[2.0], [1.0]]), valid_vocab=2, target=None)
    spoiled = Sampled(Spoiled(eager, lambda found: add(found.max, 0, 1.0), times=2))  # type: ignore[arg-type]
    with pytest.raises(AccuracyError) as caught:
        spoiled.statistics([call])
    assert str(caught.value).startswith(
        "max of row 0, by kernel 'eager': got 3 where float64 on the CPU gives 2, and again when computed once more; "
        "allowed: a difference of up to "
    )
    assert str(caught.value).endswith(
        "the bound of its rounding errors. Save the operands; `steadysum check` says how often the operator deviates "
        "on this machine."
    )


def test_faulty_statistics_within_gradients_are_computed_again(all_rows: None) -> None:
    """They reach gradients through pull_back, which then is asked for all chunks once more."""
    seen: list[tuple[int, float]] = []

    def pull_back(found: Statistics, start: int, stop: int) -> LogitGradient:
        if not seen:
            found.sum_exp[1] *= 2  # as if the kernel had lost half of the row
        seen.append((start, float(found.sum_exp[1])))
        return cross_entropy(found, start, stop)

    results = Sampled(eager).gradients(problem(), pull_back, ALL)
    assert [start for start, _ in seen] == [0, 0]
    clean = eager.gradients(problem(), cross_entropy, ALL)
    assert all(same(one, other) for one, other in zip(results, clean, strict=True))


@pytest.mark.parametrize("name", ["native", "eager"])
def test_a_logit_that_is_a_thousandth_off_is_seen(name: str, all_rows: None) -> None:
    """Of the size of the largest, at a hidden size of language models; that is what counts as a deviation."""
    if name not in kernels.available():
        pytest.skip("the native extension is missing")
    call = problem(hidden=1024, vocab=2000, target=None)
    (clean,) = kernels.get(name).statistics([call])
    by = 1e-3 * float(clean.max.max()) * {"native": 1, "eager": 8}[name]  # eager's order of sums isn't known
    spoiled = Sampled(Spoiled(kernels.get(name), lambda found: add(found.max, 0, by), times=2))  # type: ignore[arg-type]
    with pytest.raises(AccuracyError, match="max of row 0"):
        spoiled.statistics([call])


# ---- drawing ---------------------------------------------------------------------------------------------------------
def test_a_few_rows_are_drawn_other_ones_each_time() -> None:
    drawn = [sampled._drawn(1000) for _ in range(40)]
    assert all(len({*rows}) == sampled.ROWS and rows == sorted(rows) and rows[0] >= 0 for rows in drawn)
    assert max(rows[-1] for rows in drawn) < 1000
    assert len({tuple(rows) for rows in drawn}) == 40  # two of 40 are equal with a chance of 2e-8
    assert sampled._drawn(3) == [0, 1, 2]
    assert sampled._drawn(0) == []


def test_a_fault_in_one_of_eight_rows_is_seen_about_every_second_time() -> None:
    call = problem(rows=8, target=None)
    seen = 0
    for _ in range(100):
        spoiled = Spoiled(eager, lambda found: add(found.max, 5, 1.0), times=1)
        Sampled(spoiled).statistics([call])  # type: ignore[arg-type]
        seen += spoiled.computed == 2
    assert 20 < seen < 80  # 50 of 100 at a chance of 1 / 2: beyond that with a chance of 1e-9


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


def test_listeners_hear_of_checks_and_of_what_was_healed(all_rows: None) -> None:
    heard: list[notices.Notice] = []
    with notices.listen(heard.append):
        Sampled(eager).statistics([FULL])
        Sampled(Spoiled(eager, lambda found: add(found.max, 0, 1.0), times=1)).statistics([FULL])  # type: ignore[arg-type]
    assert [(each.kind, each.labels.get("outcome") or each.labels.get("attribution")) for each in heard] == [
        ("check", "passed"),
        ("check", "failed"),
        ("retry", None),
        ("check", "passed"),
        ("anomaly", "transient"),
        ("healed_tile", None),
    ]
    assert all(each.labels["operator"] == "eager statistics" for each in heard)
    assert heard[0].labels["check"] == "sampled"
    assert heard[0].value > 0
    assert heard[-1].value == 3.0  # 1100 columns are three tiles


def test_listeners_hear_of_what_stays_wrong(all_rows: None) -> None:
    heard: list[notices.Notice] = []
    with notices.listen(heard.append), pytest.raises(AccuracyError):
        Sampled(Spoiled(eager, lambda found: add(found, 0, 1.0), times=2)).log(torch.ones(2))  # type: ignore[arg-type]
    assert [(each.kind, each.labels.get("attribution")) for each in heard][-1] == ("anomaly", "persistent")
