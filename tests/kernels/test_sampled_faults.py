"""verify="sampled" sees faults in every part of a call: one that passes heals, one that stays raises and says where."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from steadysum import kernels, notices
from steadysum.errors import AccuracyError
from steadysum.kernels import eager, sampled
from steadysum.kernels.gradients import LogitGradient
from steadysum.kernels.problem import Operands, Statistics
from steadysum.kernels.registry import Kernel
from steadysum.kernels.sampled import Sampled

from .sampled_calls import ALL, ENTROPY, FEWER, FULL, Spoiled, cross_entropy, every_term, problem, same


@pytest.fixture
def all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows and columns are drawn."""
    monkeypatch.setattr(sampled, "ROWS", 10**9)


# ---- faults ----------------------------------------------------------------------------------------------------------
Run = Callable[[Kernel], Tensor]
Spoil = Callable[[Any], None]


def of_statistics(name: str, call: Operands = FEWER) -> Run:
    return lambda kernel: getattr(kernel.statistics([call])[0], name)  # type: ignore[no-any-return]


def of_chunk(name: str) -> Run:
    return lambda kernel: getattr(kernel.chunk_statistics(FULL), name)  # type: ignore[no-any-return]


def of_gradients(name: str) -> Run:
    return lambda kernel: getattr(kernel.gradients(FULL, every_term, ALL), name)  # type: ignore[no-any-return]


def written_by(part: str) -> Run:
    """What `logits` or `softmax` writes."""

    def run(kernel: Kernel) -> Tensor:
        out = torch.empty(FEWER.size, FEWER.weight.shape[0], dtype=FEWER.dtype)
        getattr(kernel, part)(FEWER, out)
        return out

    return run


def adding(amount: float, place: int | tuple[int, int], name: str | None = None) -> Spoil:
    """Adds to an element of a result, or of the tensor in it that has this name."""

    def spoil(result: Any) -> None:
        (result if name is None else getattr(result, name))[place] += amount

    return spoil


FOUND, WITH_ENTROPY = eager.statistics([FEWER])[0], eager.statistics([ENTROPY])[0]

# By how an error names it: where the results are, and what is wrong with them.
LOOKS: dict[str, tuple[Run, Spoil]] = {
    "max of row 4": (of_statistics("max"), adding(0.1, 4, "max")),
    "max of row 1": (of_statistics("max"), adding(math.nan, 1, "max")),
    "sum_exp of row 3": (of_statistics("sum_exp"), adding(1.0, 3, "sum_exp")),
    "target_logit of row 0": (of_statistics("target_logit"), adding(0.1, 0, "target_logit")),
    "weighted_sum of row 2": (of_statistics("weighted_sum", ENTROPY), adding(1.0, 2, "weighted_sum")),
    "ties of row 2": (of_statistics("ties"), adding(1.0, 2, "ties")),
    "column_sum of row 5": (of_chunk("column_sum"), adding(1.0, 5, "column_sum")),
    "dense_total of row 5": (of_chunk("dense_total"), adding(0.1, 5, "dense_total")),
    "dense_sum of row 5": (of_chunk("dense_sum"), adding(1.0, 5, "dense_sum")),
    "dense_exp of row 5": (of_chunk("dense_exp"), adding(1.0, 5, "dense_exp")),
    "logit of row 3": (written_by("logits"), adding(0.1, (3, 899))),
    "logit of row 2": (written_by("logits"), lambda out: out[2, 950:951].zero_()),  # of a masked column
    "softmax of row 5": (written_by("softmax"), adding(1e-4, (5, 0))),
    "gradient of input of row 2": (of_gradients("input"), adding(10.0, (2, 7), "input")),
    "gradient of weight of row 700": (of_gradients("weight"), adding(10.0, (700, 7), "weight")),
    "gradient of bias of position 33": (of_gradients("bias"), adding(10.0, 33, "bias")),
    "logarithm of position 2": (lambda kernel: kernel.log(torch.ones(5)), adding(1e-5, 2)),
    "log-probability of position 2": (lambda kernel: kernel.logprobs(FOUND), adding(1e-4, 2)),
    "entropy of position 2": (lambda kernel: kernel.entropy(WITH_ENTROPY), adding(1e-4, 2)),
}
# One of each part that forms products: for kernels of which each call takes a second where they are interpreted.
ONE_OF_EACH = (
    "sum_exp of row 3",
    "dense_sum of row 5",
    "logit of row 3",
    "softmax of row 5",
    "gradient of input of row 2",
    "gradient of weight of row 700",
)


@pytest.mark.parametrize("look", LOOKS)
def test_a_persistent_fault_in_any_part_raises_and_names_its_row(look: str, all_rows: None) -> None:
    run, spoil = LOOKS[look]
    spoiled = Spoiled(eager, spoil, times=10**9)
    with pytest.raises(AccuracyError, match=f"^{look}, by kernel 'eager': got .*, and again when computed once more;"):
        run(Sampled(spoiled))  # type: ignore[arg-type]
    assert spoiled.computed == 2


@pytest.mark.parametrize("look", LOOKS)
def test_a_transient_fault_in_any_part_is_healed(look: str, all_rows: None) -> None:
    run, spoil = LOOKS[look]
    spoiled = Spoiled(eager, spoil, times=1)
    assert same(run(Sampled(spoiled)), run(eager))  # type: ignore[arg-type]
    assert spoiled.computed == 2


@pytest.mark.parametrize("look", ONE_OF_EACH)
def test_a_fault_of_any_kernel_is_healed_or_raises(kernel: str, look: str, all_rows: None) -> None:
    run, spoil = LOOKS[look]
    plain = kernels.get(kernel)
    assert same(run(Sampled(Spoiled(plain, spoil, times=1))), run(plain))  # type: ignore[arg-type]
    with pytest.raises(AccuracyError, match=f"^{look}, by kernel '{kernel}': "):
        run(Sampled(Spoiled(plain, spoil, times=2)))  # type: ignore[arg-type]


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
    spoiled = Sampled(Spoiled(eager, adding(1.0, 0, "max"), times=2))  # type: ignore[arg-type]
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
    spoiled = Sampled(Spoiled(kernels.get(name), adding(by, 0, "max"), times=2))  # type: ignore[arg-type]
    with pytest.raises(AccuracyError, match="max of row 0"):
        spoiled.statistics([call])


@pytest.mark.parametrize("part", ["input", "weight"])
@pytest.mark.parametrize("name", ["native", "eager"])
def test_a_gradient_that_is_a_hundredth_off_is_seen(name: str, part: str, all_rows: None) -> None:
    """Of its row's largest element, where that is largest; with the shape of the test above."""
    if name not in kernels.available():
        pytest.skip("the native extension is missing")
    call = problem(rows=64, hidden=1024, vocab=2000)
    clean = getattr(kernels.get(name).gradients(call, cross_entropy, ALL), part)
    place = tuple(torch.unravel_index(clean.abs().argmax(), clean.shape))
    spoil = adding(1e-2 * float(clean[place]), place, part)  # type: ignore[arg-type]
    with pytest.raises(AccuracyError, match=f"gradient of {part} of row {int(place[0])},"):
        Sampled(Spoiled(kernels.get(name), spoil, times=2)).gradients(call, cross_entropy, ALL)  # type: ignore[arg-type]


def test_a_fault_in_one_of_eight_rows_is_seen_about_every_second_time() -> None:
    call = problem(rows=8, target=None)
    seen = 0
    for _ in range(100):
        spoiled = Spoiled(eager, adding(1.0, 5, "max"), times=1)
        Sampled(spoiled).statistics([call])  # type: ignore[arg-type]
        seen += spoiled.computed == 2
    assert 20 < seen < 80  # 50 of 100 at a chance of 1 / 2: beyond that with a chance of 1e-9


# ---- notices -------------------------------------------------------------------------------------------------------
def test_listeners_hear_of_checks_and_of_what_was_healed(all_rows: None) -> None:
    heard: list[notices.Notice] = []
    with notices.listen(heard.append):
        Sampled(eager).statistics([FULL])
        Sampled(Spoiled(eager, adding(1.0, 0, "max"), times=1)).statistics([FULL])  # type: ignore[arg-type]
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
        Sampled(Spoiled(eager, adding(1.0, 0), times=2)).log(torch.ones(2))  # type: ignore[arg-type]
    assert [(each.kind, each.labels.get("attribution")) for each in heard][-1] == ("anomaly", "persistent")
