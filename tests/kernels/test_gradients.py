"""Every kernel's gradients and chunk statistics are the definition's: against float64 through torch.autograd."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from steadysum import kernels
from steadysum.kernels import chunks, eager
from steadysum.kernels.gradients import Gradients, LogitGradient, PullBack, Wanted
from steadysum.kernels.problem import Operands, Statistics
from steadysum.kernels.registry import Kernel

INF, NAN = math.inf, math.nan
ALL = Wanted(input=True, weight=True, bias=True)
ROWS, HIDDEN, VOCAB = 60, 40, 1300  # three tiles, the last one ragged
Coefficients = Callable[[Statistics, Tensor, Tensor], LogitGradient]  # from statistics and two numbers per row


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def operands(input: Tensor, weight: Tensor, **options: Any) -> Operands:
    plain = {"bias": None, "scale": 1.0, "softcap": None, "temperature": None, "valid_vocab": weight.shape[0]}
    return Operands(input, weight, **{**plain, **options})


def problem(rows: int = ROWS, dtype: torch.dtype = torch.float32, **options: Any) -> Operands:
    taking_part = rows if options.get("kept") is None else len(options["kept"])
    target = torch.arange(0, 100 * taking_part, 100) % options.get("valid_vocab", VOCAB)
    x, head = draw(rows, HIDDEN).to(dtype), draw(VOCAB, HIDDEN, seed=1).to(dtype) / 4
    if dtype == torch.float64:
        wide = {name: options[name].double() for name in ("bias", "temperature", "column_weight") if name in options}
        options = {**options, **wide}
    return operands(x, head, **{"target": target, **options})


def pull_back(coefficients: Coefficients) -> PullBack:
    """The coefficients of a chunk; the two numbers per row are the same for every kernel and precision."""

    def of_chunk(found: Statistics, start: int, stop: int) -> LogitGradient:
        numbers = draw(2, 2048, seed=5)[:, start:stop].to(found.max.dtype)
        return coefficients(found, *numbers)

    return of_chunk


@pytest.fixture
def trained(kernel: str) -> Kernel:
    """Each kernel in turn that computes gradients."""
    module = kernels.get(kernel)
    absent = [name for name in ("gradients", "chunk_statistics") if not hasattr(module, name)]
    if absent:
        pytest.skip(f"kernel {kernel} has no {' and no '.join(absent)} yet")
    return module


# --- The definition, restated with a whole matrix of logits -----------------------------------------------------------
def restated_statistics(call: Operands, z: Tensor) -> Statistics:
    w = 1.0 if call.column_weight is None else call.column_weight[: call.valid_vocab].to(z.dtype)
    largest = z.amax(1)
    d = z - largest[:, None]
    e = d.exp()
    found = Statistics(
        largest,
        e.sum(1),
        None if call.target is None else z.gather(1, call.target[:, None])[:, 0],
        torch.where(e == 0, 0, e * d).sum(1) if call.wants_weighted_sum else None,
        (d == 0).sum(1).to(z.dtype) if call.wants_ties else None,
        (w * d).sum(1) if call.wants_column_sum else None,
    )
    if call.dense is not None:
        q = call.dense[:, : call.valid_vocab].to(z.dtype)
        found = found._replace(dense_total=(w * q).sum(1), dense_sum=(w * q * d).sum(1), dense_exp=(q * e).sum(1))
    return found


def restated_logit_gradient(call: Operands, z: Tensor, largest: Tensor, terms: LogitGradient) -> Tensor:
    exp, slope, center, column, dense, tie, target, keep_above = (
        None if each is None else each[:, None] for each in terms
    )
    w = 1.0 if call.column_weight is None else call.column_weight[: call.valid_vocab].to(z.dtype)
    q = 0.0 if call.dense is None else call.dense[:, : call.valid_vocab].to(z.dtype)
    d = z - largest[:, None]
    e = d.exp()
    g = torch.zeros_like(z)
    if center is not None:
        g = g + e * exp * (q - center)
    elif exp is not None:
        g = g + e * exp
    if slope is not None:
        g = g + torch.where(e == 0, 0, e * slope * d)
    if keep_above is not None:
        g = g * (e >= keep_above)
    if column is not None:
        g = g + column * w
    if dense is not None:
        g = g + dense * w * q
    if tie is not None:
        g = g + tie * (d == 0)
    if target is not None:
        g = g + target * torch.nn.functional.one_hot(call.target, z.shape[1])
    return g


def real_columns(call: Operands, head: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    return head[: call.valid_vocab], bias[: call.valid_vocab]


def through_options(call: Operands, product: Tensor) -> Tensor:
    z = product * call.scale
    if call.softcap is not None:
        z = torch.tanh(z / call.softcap) * call.softcap
    return z if call.temperature is None else z / call.temperature.to(z.dtype)[:, None]


def restated_logits(call: Operands, dtype: torch.dtype = torch.float64) -> Tensor:  # [N, valid_vocab]
    x, head, bias = (each.detach() for each in leaves(call, dtype))
    x = x if call.kept is None else x[call.kept]
    return through_options(call, torch.nn.functional.linear(x, *real_columns(call, head, bias)))


def leaves(call: Operands, dtype: torch.dtype) -> list[Tensor]:
    bias = torch.zeros(call.weight.shape[0]) if call.bias is None else call.bias
    return [each.detach().to(dtype, copy=True).requires_grad_() for each in (call.input, call.weight, bias)]


class Restated(NamedTuple):
    gradients: Gradients
    rounding: tuple[float, float, float]  # see `assert_right`


def restated(call: Operands, terms: PullBack, dtype: torch.dtype) -> Restated:
    x, head, bias = inputs = leaves(call, dtype)
    product = torch.nn.functional.linear(x if call.kept is None else x[call.kept], *real_columns(call, head, bias))
    product.retain_grad()
    z = through_options(call, product)
    found = restated_statistics(call, z.detach())
    coefficients = terms(found, 0, call.size)
    z.backward(restated_logit_gradient(call, z.detach(), found.max, coefficients))
    assert product.grad is not None
    g2, x2, head2 = (
        each.detach().double().square()
        for each in (product.grad, call.rows(0, call.size).input, call.weight[: call.valid_vocab])
    )
    squares = (g2 @ head2, g2.T @ x2, g2.sum(0))
    share = (call.size / max(len(x), 1), *[call.valid_vocab / len(head)] * 2)  # the rest of the results is zeros
    return Restated(
        Gradients(*(each.grad for each in inputs)),
        tuple(rms(each.sqrt()) * part**0.5 for each, part in zip(squares, share, strict=True)),  # type: ignore[arg-type]
    )


def exact_statistics(call: Operands, dtype: torch.dtype = torch.float64) -> Statistics:
    return restated_statistics(call, restated_logits(call, dtype))


def rms(values: Tensor) -> float:
    return float(values.double().square().mean().sqrt()) if values.numel() else 0.0


def assert_near(found: Tensor, plain: Tensor, exact: Tensor, what: str, rounding: float | None = None) -> None:
    """The error is at most twice that of the plain fp32 computation, plus one rounding of the exact values.

    An fp64 result is held to that bound times the ratio of the units in the last place, by which rounding errors scale;
    once more is allowed for the float64 computation that it is compared with.
    """
    eps = torch.finfo(found.dtype).eps
    times = 2 if found.dtype == torch.float32 else 3 * eps / torch.finfo(torch.float32).eps
    allowed = times * rms(plain.double() - exact) + eps * (rms(exact) if rounding is None else rounding)
    error = rms(found.double() - exact)
    assert error <= allowed, f"{what}: root-mean-square error {error:.3g}, allowed {allowed:.3g}"


def assert_right(found: Gradients, call: Operands, terms: PullBack) -> None:
    """As `assert_near`; what is rounded once is each term of the sums, independently: the errors' squares add up."""
    plain, exact = restated(call, terms, torch.float32), restated(call, terms, torch.float64)
    results = zip(Gradients._fields, found, plain.gradients, exact.gradients, exact.rounding, strict=True)
    for what, own, by_torch, right, rounding in results:
        assert own.dtype == call.dtype
        assert own.shape == right.shape
        assert_near(own, by_torch, right, what, rounding)


def compute(kernel: Kernel, call: Operands, terms: PullBack, *, known: bool, wanted: Wanted = ALL) -> Gradients:
    reason = kernel.supports(call.problem(wants_gradients=True))
    if reason is not None:
        pytest.skip(reason)
    return kernel.gradients(call, terms, wanted, kernel.chunk_statistics(call) if known else None)


# --- The terms --------------------------------------------------------------------------------------------------------
class Term(NamedTuple):
    coefficients: Coefficients
    options: dict[str, Any]


def of_entropy(found: Statistics, a: Tensor, b: Tensor) -> LogitGradient:
    """a times the gradient of the log-probability of the target, plus b times that of the entropy."""
    assert found.weighted_sum is not None
    mean = found.weighted_sum / found.sum_exp
    return LogitGradient(exp=(b * mean - a) / found.sum_exp, slope=-b / found.sum_exp, target=a)


def of_cross_entropy(found: Statistics, a: Tensor, b: Tensor) -> LogitGradient:
    return LogitGradient(exp=a / found.sum_exp, column=-b, target=-a)


def of_centered(found: Statistics, a: Tensor, b: Tensor) -> LogitGradient:
    """What the softmax passes on of an upstream gradient: the dense matrix."""
    assert found.dense_exp is not None
    return LogitGradient(exp=1 / found.sum_exp, center=found.dense_exp / found.sum_exp)


def of_class_probabilities(found: Statistics, a: Tensor, b: Tensor) -> LogitGradient:
    assert found.dense_total is not None
    return LogitGradient(exp=a * found.dense_total / found.sum_exp, dense=-a, column=b)


def of_max_and_sum(found: Statistics, a: Tensor, b: Tensor) -> LogitGradient:
    return LogitGradient(exp=b, tie=(a - b * found.sum_exp) / found.ties)


def only(name: str, *, per_sum: bool = False) -> Coefficients:
    """One term alone, with a coefficient divided by sum_exp where it multiplies exponentials."""
    return lambda found, a, _: LogitGradient(**{name: a / found.sum_exp if per_sum else a})


CLASS_WEIGHTS = {"column_weight": draw(VOCAB, seed=8).abs()}
DENSE = {"dense": draw(ROWS, VOCAB, seed=9)}
TIES = {"wants_ties": True}
TERMS = {
    "exp": Term(only("exp", per_sum=True), {}),
    "slope": Term(only("slope", per_sum=True), {}),
    "entropy": Term(of_entropy, {"wants_weighted_sum": True}),
    "center": Term(of_centered, DENSE),
    "column": Term(only("column"), {}),
    "weighted column": Term(only("column"), CLASS_WEIGHTS),
    "dense": Term(only("dense"), DENSE),
    "weighted dense": Term(only("dense"), DENSE | CLASS_WEIGHTS),
    "tie": Term(only("tie"), TIES),
    "target": Term(only("target"), {}),
    "cross entropy": Term(of_cross_entropy, CLASS_WEIGHTS),
    "class probabilities": Term(of_class_probabilities, DENSE | CLASS_WEIGHTS | {"wants_column_sum": True}),
    "max and sum": Term(of_max_and_sum, TIES),
    "nothing": Term(lambda *_: LogitGradient(), {}),
}
WITH_KNOWN = [
    pytest.param(name, known, id=f"{name}, {'known' if known else 'stored'}")
    for name, term in TERMS.items()
    for known in (False, True)
    if not (known and "dense" in term.options)
]
# scale and softcap are powers of two, so that fp32 and float64 use the same numbers
OPTIONS = {
    "none": {},
    "bias": {"bias": draw(VOCAB, seed=1)},
    "scale": {"scale": 0.25},
    "softcap": {"softcap": 2.0},
    "one temperature": {"temperature": torch.tensor([0.7])},
    "temperatures": {"temperature": draw(ROWS, seed=3).abs() + 0.1},
    "padded head": {"valid_vocab": 700},
    "one column": {"valid_vocab": 1},
    "rows left out": {"kept": torch.arange(1, ROWS, 3)},
    "all": {
        "bias": draw(VOCAB, seed=1),
        "scale": 0.5,
        "softcap": 4.0,
        "temperature": draw(20, seed=3).abs() + 0.1,
        "valid_vocab": 1100,
        "kept": torch.arange(1, ROWS, 3),
    },
}


@pytest.mark.parametrize(("name", "known"), WITH_KNOWN)
def test_each_term_of_the_logits_gradient_is_taken_back_to_the_operands(
    trained: Kernel, name: str, known: bool
) -> None:
    term = TERMS[name]
    call, terms = problem(**term.options), pull_back(term.coefficients)
    assert_right(compute(trained, call, terms, known=known), call, terms)


@pytest.mark.parametrize("known", [False, True], ids=["stored", "known"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_gradients_are_as_good_as_a_plain_fp32_computation(
    trained: Kernel, options: dict[str, Any], dtype: torch.dtype, known: bool
) -> None:
    call = problem(dtype=dtype, **CLASS_WEIGHTS, **options)
    terms = pull_back(of_cross_entropy)
    assert_right(compute(trained, call, terms, known=known), call, terms)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_options_apply_to_the_terms_with_a_dense_matrix_too(trained: Kernel, options: dict[str, Any]) -> None:
    taking_part = len(options.get("kept", range(ROWS)))
    call = problem(dense=draw(taking_part, VOCAB, seed=9), **CLASS_WEIGHTS, **options)
    terms = pull_back(lambda found, a, b: of_centered(found, a, b)._replace(dense=b))
    assert_right(compute(trained, call, terms, known=False), call, terms)


@pytest.mark.parametrize("known", [False, True], ids=["stored", "known"])
def test_a_bias_in_fp32_beside_16_bit_operands(trained: Kernel, known: bool) -> None:
    call = problem(dtype=torch.bfloat16, bias=draw(VOCAB, seed=1))
    terms = pull_back(of_cross_entropy)
    assert_right(compute(trained, call, terms, known=known), call, terms)


@pytest.mark.parametrize("known", [False, True], ids=["stored", "known"])
@pytest.mark.parametrize("vocab", [1, 511, 512, 513, 9000])
def test_vocabularies_of_any_size(trained: Kernel, vocab: int, known: bool) -> None:
    call = operands(draw(5, 16), draw(vocab, 16, seed=1), target=torch.arange(5) * 7 % vocab)
    terms = pull_back(of_cross_entropy)
    assert_right(compute(trained, call, terms, known=known), call, terms)


@pytest.mark.parametrize("known", [False, True], ids=["stored", "known"])
def test_a_hidden_size_of_zero_has_only_a_bias_gradient(trained: Kernel, known: bool) -> None:
    call = operands(torch.ones(4, 0), torch.ones(600, 0), bias=draw(600, seed=1), target=torch.arange(4))
    terms = pull_back(of_cross_entropy)
    assert_right(compute(trained, call, terms, known=known), call, terms)


@pytest.mark.parametrize("known", [False, True], ids=["stored", "known"])
def test_the_gradient_of_max_is_split_evenly_among_ties(trained: Kernel, known: bool) -> None:
    # small integers: logits are exact in every order, so that equal columns have equal logits
    x = torch.randint(-3, 4, (20, 8), generator=torch.Generator().manual_seed(0)).float()
    head = torch.randint(-3, 4, (700, 8), generator=torch.Generator().manual_seed(1)).float().repeat(2, 1)
    call = operands(x, head, valid_vocab=1000, wants_ties=True)
    terms = pull_back(of_max_and_sum)
    exact = exact_statistics(call)
    assert exact.ties is not None
    assert exact.ties.unique().numel() > 1
    assert torch.equal(trained.chunk_statistics(call).ties.double(), exact.ties)
    assert_right(compute(trained, call, terms, known=known), call, terms)


@pytest.mark.parametrize("rows", [129, 257])  # a last chunk of one row, whose product torch computes in its own way
def test_ties_are_found_again_in_chunks_that_were_cut_otherwise(
    trained: Kernel, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, terms = problem(rows=rows, wants_ties=True), pull_back(of_max_and_sum)
    (known,) = trained.statistics([call])
    monkeypatch.setattr(chunks, "MOST_ROWS", 128)
    assert_right(trained.gradients(call, terms, ALL, known), call, terms)


@pytest.mark.parametrize("known", [False, True], ids=["stored", "known"])
def test_the_filter_drops_small_probabilities_and_nothing_else(trained: Kernel, known: bool) -> None:
    call = problem()
    z = restated_logits(call)
    e = (z - z.amax(1, keepdim=True)).exp().sort(1).values
    # in the middle of each row's widest gap among the upper half, so that no rounding moves an entry across
    gaps = e[:, VOCAB // 2 : -1].log().diff(dim=1)
    assert float(gaps.amax(1).min()) > 1e-4
    at = gaps.argmax(1, keepdim=True) + VOCAB // 2
    threshold = (e.gather(1, at) * e.gather(1, at + 1)).sqrt()[:, 0]
    of_targets = (z.gather(1, call.target[:, None])[:, 0] - z.amax(1)).exp()
    assert (of_targets < threshold).any()  # targets that lose all their other terms

    def terms(found: Statistics, start: int, stop: int) -> LogitGradient:
        kept = pull_back(of_cross_entropy)(found, start, stop)
        return kept._replace(keep_above=threshold[start:stop].to(found.max.dtype))

    assert_right(compute(trained, call, terms, known=known), call, terms)


# --- Layouts ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("known", [False, True], ids=["stored", "known"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_operands_of_any_strides(trained: Kernel, dtype: torch.dtype, known: bool) -> None:
    terms = pull_back(of_cross_entropy)
    call = problem(dtype=dtype, bias=draw(VOCAB, seed=1).to(dtype))
    wide = torch.full((VOCAB, 2 * HIDDEN + 1), 9.0, dtype=dtype)
    wide[:, 1::2] = call.weight
    offset = torch.empty(VOCAB * HIDDEN + 1, dtype=dtype)[1:].view(VOCAB, HIDDEN).copy_(call.weight)
    backwards = call.bias.repeat_interleave(2)[::2]
    for weight in (call.weight.T.contiguous().T, wide[:, 1::2], offset):
        strided = replace(call, input=call.input.T.contiguous().T, weight=weight, bias=backwards)
        found = compute(trained, strided, terms, known=known)
        assert all(each.is_contiguous() for each in found)
        assert_right(found, call, terms)


@pytest.mark.parametrize("known", [False, True], ids=["stored", "known"])
def test_broadcast_and_lazily_negated_operands(trained: Kernel, known: bool) -> None:
    head = torch.complex(draw(600, 16), draw(600, 16, seed=2)).conj().imag
    assert head.is_neg()
    call = operands(draw(1, 16).expand(4, 16), head, bias=torch.ones(1).expand(600), target=torch.arange(4))
    terms = pull_back(of_cross_entropy)
    assert_right(compute(trained, call, terms, known=known), call, terms)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_a_dense_matrix_of_any_dtype_and_strides(trained: Kernel, dtype: torch.dtype) -> None:
    matrix = draw(ROWS, VOCAB, seed=9).to(dtype)
    terms = pull_back(of_centered)
    for dense in (matrix, matrix.T.contiguous().T, matrix[:, :1].expand(ROWS, VOCAB), matrix[:1].expand(ROWS, VOCAB)):
        call = problem(dense=dense)
        assert_right(compute(trained, call, terms, known=False), call, terms)


# --- Which results, which rows, which columns -------------------------------------------------------------------------
@pytest.mark.parametrize("known", [False, True], ids=["stored", "known"])
@pytest.mark.parametrize("wanted", [Wanted(*each) for each in itertools.product([False, True], repeat=3)], ids=str)
def test_only_wanted_gradients_are_returned_with_the_same_bits(trained: Kernel, wanted: Wanted, known: bool) -> None:
    call, terms = problem(bias=draw(VOCAB, seed=1)), pull_back(of_cross_entropy)
    whole = compute(trained, call, terms, known=known)
    some = compute(trained, call, terms, known=known, wanted=wanted)
    for is_wanted, one, other in zip(wanted, some, whole, strict=True):
        assert (one is not None) == is_wanted
        assert one is None or torch.equal(one, other)


@pytest.mark.parametrize("known", [False, True], ids=["stored", "known"])
def test_nothing_wanted_still_asks_for_the_coefficients(trained: Kernel, known: bool) -> None:
    asked: list[tuple[int, int]] = []

    def terms(found: Statistics, start: int, stop: int) -> LogitGradient:
        asked.append((start, stop))
        return pull_back(of_cross_entropy)(found, start, stop)

    compute(trained, problem(), terms, known=known, wanted=Wanted(False, False, False))
    assert asked == [(0, ROWS)]


@pytest.mark.parametrize("known", [False, True], ids=["stored", "known"])
def test_rows_left_out_poison_nothing(trained: Kernel, known: bool) -> None:
    kept = torch.arange(1, ROWS, 3)
    call, terms = problem(kept=kept), pull_back(of_cross_entropy)
    clean = compute(trained, call, terms, known=known)
    out = torch.ones(ROWS, dtype=torch.bool)
    out[kept] = False
    x = call.input.clone()
    x[out] = torch.tensor([NAN, INF, -INF, 3e38]).repeat(HIDDEN // 4)
    found = compute(trained, replace(call, input=x), terms, known=known)
    assert all(torch.equal(one, other) for one, other in zip(found, clean, strict=True))
    assert found.input[out].count_nonzero() == 0


@pytest.mark.parametrize("known", [False, True], ids=["stored", "known"])
@pytest.mark.parametrize("valid", [1, 512, 700])
def test_masked_columns_poison_nothing_and_get_nothing(trained: Kernel, valid: int, known: bool) -> None:
    poison = torch.ones(VOCAB)
    poison[valid:] = torch.tensor([NAN, INF, -INF, 3e38]).repeat(VOCAB)[: VOCAB - valid]
    call = problem(
        bias=draw(VOCAB, seed=1) * poison,
        column_weight=CLASS_WEIGHTS["column_weight"] * poison,
        valid_vocab=valid,
        wants_column_sum=not known,
        dense=None if known else draw(ROWS, VOCAB, seed=9) * poison,
        softcap=4.0,
    )
    call = replace(call, weight=call.weight * poison[:, None])
    terms = pull_back(of_cross_entropy)
    found = compute(trained, call, terms, known=known)
    assert_right(found, call, terms)
    assert found.weight[valid:].count_nonzero() == found.bias[valid:].count_nonzero() == 0


@pytest.mark.parametrize("known", [False, True], ids=["stored", "known"])
@pytest.mark.parametrize("rows", ["none", "all left out"])
def test_without_rows_there_is_nothing_to_pull_back(trained: Kernel, rows: str, known: bool) -> None:
    kept = None if rows == "none" else torch.empty(0, dtype=torch.int64)
    x = torch.full((0 if rows == "none" else 5, HIDDEN), NAN)
    none = torch.empty(0, VOCAB)
    call = operands(
        x,
        draw(VOCAB, HIDDEN),
        target=torch.empty(0, dtype=torch.int64),
        kept=kept,
        temperature=torch.ones(1),
        wants_weighted_sum=True,
        wants_column_sum=not known,
        dense=None if known else none,
    )

    def never(found: Statistics, start: int, stop: int) -> LogitGradient:
        raise AssertionError("pull_back was called")

    found = compute(trained, call, never, known=known)
    assert found.input.shape == x.shape
    assert all(each.count_nonzero() == 0 for each in found)
    statistics = trained.chunk_statistics(call)
    there = [name for name, each in statistics._asdict().items() if each is not None]
    wanted = ["max", "sum_exp", "target_logit", "weighted_sum"]
    assert there == (wanted if known else [*wanted, "column_sum", "dense_total", "dense_sum", "dense_exp"])
    assert all(each.shape == (0,) for each in statistics if each is not None)


# --- Infinite rows ----------------------------------------------------------------------------------------------------
def poisoned(kind: str) -> Operands:
    """Row 2 has a max that is no finite number; the other rows don't see what makes it so."""
    call = problem(rows=6, valid_vocab=900, bias=draw(VOCAB, seed=1))
    x, head = call.input.clone(), call.weight.clone()
    x[:, 0] = 0.0
    x[2] = 0.0
    head[:, 0] = -1.0
    if kind == "+inf":
        head[[3, 600], 0] = 1.0
    x[2, 0] = NAN if kind == "nan" else INF
    return replace(call, input=x, weight=head)


def poisoned_terms(found: Statistics, start: int, stop: int) -> LogitGradient:
    terms = pull_back(of_cross_entropy)(found, start, stop)
    assert terms.exp is not None
    return terms._replace(exp=terms.exp.masked_fill(found.max.isinf(), NAN))


@pytest.mark.parametrize("known", [False, True], ids=["stored", "known"])
@pytest.mark.parametrize("kind", ["nan", "+inf", "-inf"])
def test_a_row_that_is_not_finite_keeps_its_nan_to_itself(trained: Kernel, kind: str, known: bool) -> None:
    call = poisoned(kind)
    largest = trained.chunk_statistics(call).max
    assert str(float(largest[2])).lstrip("+") == kind.lstrip("+")
    found = compute(trained, call, poisoned_terms, known=known)
    others = torch.tensor([0, 1, 3, 4, 5])
    assert found.input[2].isnan().all()
    assert found.weight[:900].isnan().all()
    assert found.bias[:900].isnan().all()
    assert found.weight[900:].count_nonzero() == found.bias[900:].count_nonzero() == 0

    clean = replace(call, input=call.input[others], target=call.target[others])

    def terms_of_others(rest: Statistics, start: int, stop: int) -> LogitGradient:
        numbers = draw(2, 2048, seed=5)[:, others].to(rest.max.dtype)
        return of_cross_entropy(rest, *numbers)

    plain, exact = (restated(clean, terms_of_others, each).gradients.input for each in (torch.float32, torch.float64))
    assert_near(found.input[others], plain, exact, "input")


@pytest.mark.parametrize("known", [False, True], ids=["stored", "known"])
@pytest.mark.parametrize("name", ["exp", "slope", "entropy", "cross entropy"])
def test_logits_of_minus_infinity_contribute_nothing_to_the_exponential_terms(
    trained: Kernel, name: str, known: bool
) -> None:
    bias = draw(VOCAB, seed=1)
    bias[1::2] = -INF  # the targets have even numbers
    call, terms = problem(bias=bias, **TERMS[name].options), pull_back(TERMS[name].coefficients)
    assert_right(compute(trained, call, terms, known=known), call, terms)


@pytest.mark.parametrize("known", [False, True], ids=["stored", "known"])
@pytest.mark.parametrize("kind", ["+inf", "-inf"])
def test_the_gradient_of_an_infinite_max_goes_to_the_logits_that_have_it(
    trained: Kernel, kind: str, known: bool
) -> None:
    call = replace(poisoned(kind), wants_ties=True)
    terms = pull_back(lambda found, *_: LogitGradient(tie=torch.ones_like(found.max) / found.ties))
    only = replace(call, input=call.input[2:3], target=call.target[2:3])
    found = compute(trained, only, terms, known=known, wanted=Wanted(False, False, True))
    wanted = torch.zeros(VOCAB)
    wanted[[3, 600] if kind == "+inf" else slice(0, 900)] = 1.0
    torch.testing.assert_close(found.bias, wanted / wanted.sum())


# --- Chunks and memory ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("known", [False, True], ids=["stored", "known"])
def test_several_chunks_add_up(trained: Kernel, known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "MOST_ROWS", 128)
    kept = torch.arange(330)[torch.arange(330) % 11 != 4]
    assert len(kept) == 300
    call = problem(
        rows=330,
        kept=kept,
        temperature=draw(300, seed=3).abs() + 0.1,
        wants_column_sum=not known,
        dense=None if known else draw(300, VOCAB, seed=9),
        wants_weighted_sum=True,
        **CLASS_WEIGHTS,
    )
    seen: list[tuple[Statistics, int, int]] = []

    def coefficients(found: Statistics, a: Tensor, b: Tensor) -> LogitGradient:
        terms = of_cross_entropy(found, a, b)
        return terms if known else terms._replace(center=of_centered(found, a, b).center, dense=b)

    def terms(found: Statistics, start: int, stop: int) -> LogitGradient:
        seen.append((found, start, stop))
        return pull_back(coefficients)(found, start, stop)

    found = compute(trained, call, terms, known=known)
    spans = [(start, stop) for _, start, stop in seen]
    assert spans == ([(0, 300)] if trained.name == "reference" else [(0, 128), (128, 256), (256, 300)])
    statistics = trained.chunk_statistics(call)
    for name, column in statistics._asdict().items():
        if column is not None:
            assert torch.equal(torch.cat([getattr(part, name) for part, _, _ in seen]), column), name
    assert_right(found, call, pull_back(coefficients))


def test_the_callers_autocast_rounds_nothing(trained: Kernel) -> None:
    call, terms = problem(bias=draw(VOCAB, seed=1)), pull_back(of_cross_entropy)
    for known in (False, True):
        plain = compute(trained, call, terms, known=known)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = compute(trained, call, terms, known=known)
        assert all(torch.equal(one, other) for one, other in zip(found, plain, strict=True))


class LargestTensor(TorchDispatchMode):
    """The number of elements of the largest storage that any operation returned."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for each in out if isinstance(out, tuple | list) else [out]:
            if isinstance(each, Tensor):
                self.elements = max(self.elements, each.untyped_storage().nbytes() // each.element_size())
        return out


@pytest.mark.parametrize("known", [False, True], ids=["stored", "known"])
def test_eager_holds_one_chunk_of_logits_or_one_tile_of_them(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "MOST_ROWS", 256)
    rows, hidden, vocab = 1000, 16, 9000
    x, head = draw(rows, hidden).bfloat16(), draw(vocab, hidden, seed=1).bfloat16()
    call = operands(x, head, target=torch.arange(rows))
    statistics = eager.chunk_statistics(call)
    with LargestTensor() as largest:
        eager.gradients(call, pull_back(of_cross_entropy), ALL, statistics if known else None)
    weight_gradient, tile, chunk = vocab * hidden, 256 * 512, 256 * vocab
    assert largest.elements == (max(weight_gradient, tile) if known else chunk)


def test_known_statistics_may_have_been_rounded_to_fp32() -> None:
    kernel, call = kernels.get("reference"), problem(wants_ties=True)
    rounded = Statistics(*(None if each is None else each.float() for each in kernel.chunk_statistics(call)))
    terms = pull_back(of_max_and_sum)
    assert_right(kernel.gradients(call, terms, ALL, rounded), call, terms)


# --- Statistics -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("carried", ["wants_weighted_sum", "wants_ties"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_chunk_statistics_are_as_good_as_a_plain_fp32_computation(
    trained: Kernel, options: dict[str, Any], dtype: torch.dtype, carried: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taking_part = len(options.get("kept", range(ROWS)))
    call = problem(
        dtype=dtype,
        dense=draw(taking_part, VOCAB, seed=9),
        wants_column_sum=True,
        **{carried: True},
        **CLASS_WEIGHTS,
        **options,
    )
    reason = trained.supports(call.problem())
    if reason is not None:
        pytest.skip(reason)
    found = trained.chunk_statistics(call)
    plain, exact = exact_statistics(call, torch.float32), exact_statistics(call)
    for what, *three in zip(Statistics._fields, found, plain, exact, strict=True):
        if three[2] is None:
            assert three[0] is None
        else:
            assert three[0].shape == (taking_part,)
            # reference's are float64 whatever the operands: they must meet the bound of the operands' precision
            assert_near(three[0].to(call.dtype), *three[1:], what)


@pytest.mark.parametrize(
    ("logits", "wanted"),
    [
        ([0.0, 0.0, -INF], 2),
        ([-1.0, 5.0, 2.0], 1),
        ([-INF, -INF, -INF], 3),
        ([INF, 1.0, INF], 2),
        ([NAN, 1.0, 1.0], NAN),
    ],
)
@pytest.mark.parametrize("repeats", [1, 200, 4000])  # in one tile, in several tiles, in 16 segments
def test_ties_are_the_logits_equal_to_max_and_never_masked_ones(
    trained: Kernel, logits: list[float], wanted: float, repeats: int
) -> None:
    head = torch.tensor(logits)[:, None].repeat(repeats + 3, 1)
    call = operands(torch.ones(2, 1), head, valid_vocab=3 * repeats, wants_ties=True)
    for found in (*trained.statistics([call]), trained.chunk_statistics(call)):
        expected = torch.tensor([wanted * repeats] * 2, dtype=found.max.dtype)
        assert found.ties is not None
        torch.testing.assert_close(found.ties, expected, rtol=0, atol=0, equal_nan=True)
