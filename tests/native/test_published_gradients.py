"""The native kernel's gradients have the bits of docs/bits.md: those of a second implementation of that page.

Every comparison is of bits. Only where the page says so is a NaN equal to any other NaN and, with a gradient filter
(L), a zero to a zero of the other sign. Not here: whether the page is right (tests/kernels/test_gradients.py compares
with float64), or where coefficients come from (tests/ops/).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import settings
from torch import Tensor

from steadysum.kernels import native as kernel
from steadysum.kernels.gradients import Gradients, LogitGradient, Wanted
from steadysum.kernels.problem import Operands as Call
from steadysum.kernels.problem import Statistics

from .drawing import check_until_all_kinds_are_drawn
from .floats import assert_same_bits, widened
from .gradient_problems import EVERY_CHOICE, GradientProblem, chunks, gradient_problems, gradient_work
from .published_problems import DTYPES, LAYOUTS, Problem
from .scalar_bits import WHOLE, Beyond, Coefficients, Floats, Partial, RowSums, Scalar, canonical, grid

Threads = Callable[[int], None]
ALL = Wanted(input=True, weight=True, bias=True)


# --- By the page ------------------------------------------------------------------------------------------------------
class Expected(NamedTuple):
    """What the page says about a call."""

    statistics: Partial
    target_logit: Floats
    sums: RowSums
    gradients: tuple[Floats, Floats, Floats]  # of input, weight and bias
    finite: bool  # no infinity and no NaN among what the gradients are made of


def published(scalar: Scalar, call: Call, terms: LogitGradient) -> Expected:
    valid = call.valid_vocab
    kept = np.arange(call.input.shape[0]) if call.kept is None else call.kept.numpy()
    input, weight = widened(call.input)[kept], widened(call.weight)
    temperature = _floats(call.temperature)
    target = None if call.target is None else call.target.numpy()
    options = {"scale": call.scale, "softcap": call.softcap, "temperature": temperature}
    logits = scalar.logits(input, weight, _floats(call.bias), **options)  # type: ignore[arg-type]
    beyond = _beyond(call)
    statistics = scalar.statistics(logits, valid, beyond)
    beside = (_floats(call.column_weight), _floats(call.dense))
    G = scalar.logit_gradient(
        logits,
        valid,
        statistics.max,
        Coefficients(*map(_floats, terms)),
        *beside,
        target,
        **options,  # type: ignore[arg-type]
    )
    of_input = np.zeros(tuple(call.input.shape), dtype=np.float32)
    of_input[kept] = scalar.input_gradient(G, weight, valid, beyond)
    return Expected(
        statistics,
        logits[np.arange(len(kept)), target],
        scalar.row_sums(logits, valid, statistics.max, *beside, beyond),
        (of_input, scalar.weight_gradient(G, input, valid), scalar.bias_gradient(G, valid)),
        all(bool(np.isfinite(each).all()) for each in (G[:, :valid], weight[:valid], input)),
    )


def _beyond(call: Call) -> Beyond:
    if call.shard is None:
        return WHOLE
    return call.shard.start, call.shard.vocab - call.shard.start - call.weight.shape[0]


def _floats(tensor: Tensor | None) -> Floats | None:
    return None if tensor is None else widened(tensor)


# --- By the kernel ----------------------------------------------------------------------------------------------------
class Found(NamedTuple):
    statistics: Statistics  # as the coefficients' function got them
    gradients: Gradients


def run(call: Call, terms: LogitGradient, wanted: Wanted = ALL, known: Statistics | None = None) -> Found:
    given: list[Statistics] = []

    def pull_back(found: Statistics, start: int, stop: int) -> LogitGradient:
        assert sum(each.max.shape[0] for each in given) == start  # chunks in ascending order
        given.append(Statistics(*(None if each is None else each.clone() for each in found)))  # type: ignore[arg-type]
        return LogitGradient(*(None if each is None else each[start:stop] for each in terms))

    gradients = kernel.gradients(call, pull_back, wanted, known)
    columns = zip(*given, strict=True) if given else iter(())
    joined = [None if column[0] is None else torch.cat(column) for column in columns]
    return Found(Statistics(*joined) if joined else kernel.chunk_statistics(call), gradients)  # type: ignore[arg-type]


def assert_published_gradients(found: Gradients, expected: Expected, wanted: Wanted, filtered: bool) -> None:
    for name, values, defined in zip(Gradients._fields, found, expected.gradients, strict=True):
        if not getattr(wanted, name):
            assert values is None
            continue
        assert values is not None
        here, there = canonical(widened(values)), canonical(defined)
        if filtered:
            # Terms that are 0 may be left out: a zero may have the other sign. And 0 * inf may never have been formed.
            here = np.where((here == 0) & (there == 0), there, here)
            here = here if expected.finite else np.where(np.isnan(there), there, here)
        assert_same_bits(here, there, f"gradient of {name}")


def assert_published_statistics(found: Statistics, expected: Expected) -> None:
    """What the kernel found, as far as it was asked for."""
    defined = {**expected.statistics._asdict(), **expected.sums._asdict(), "target_logit": expected.target_logit}
    for name, values in found._asdict().items():
        if values is not None:
            assert_same_bits(canonical(widened(values)), canonical(defined[name]), name)


def assert_published(scalar: Scalar, call: Call, terms: LogitGradient, wanted: Wanted, known: bool) -> Expected:
    expected = published(scalar, call, terms)
    statistics = Statistics(*map(torch.from_numpy, expected.statistics[:2]))
    found = run(call, terms, wanted, statistics if known else None)
    assert_published_statistics(found.statistics, expected)
    assert_published_gradients(found.gradients, expected, wanted, terms.keep_above is not None)
    return expected


# --- Problems ---------------------------------------------------------------------------------------------------------
def test_every_drawn_problem_has_the_published_gradients(
    native: ModuleType, scalar: Scalar, threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = native.isa() == "portable"
    wanted = 200 if slow else max(500, settings().max_examples)  # hypothesis repeats itself
    ran: dict[GradientProblem, Expected] = {}

    def check(problem: GradientProblem) -> None:
        call, terms = gradient_work(problem)
        threads(problem.forward.threads)
        with monkeypatch.context() as patch:
            patch.setattr(kernel, "row_chunks", lambda *_, **__: chunks(problem))
            expected = assert_published(scalar, call, terms, problem.wanted, problem.known)
            assert_published_statistics(kernel.chunk_statistics(call), expected)
        ran[problem] = expected

    check_until_all_kinds_are_drawn(gradient_problems(), check, wanted, lambda: not_drawn(ran, few=2 if slow else 8))
    assert len(ran) >= (100 if slow else 250)


def not_drawn(ran: dict[GradientProblem, Expected], few: int) -> list[str]:
    """Of which kinds of problem less than `few` ran with numbers as results, not NaN or 0 alone."""
    telling = [
        problem
        for problem, expected in ran.items()
        if expected.finite and np.isfinite(expected.gradients[1]).all() and np.any(expected.gradients[1])
    ]
    assert len(telling) >= len(ran) / 4
    assert {problem.forward.dtype for problem in telling} == set(DTYPES)
    assert {problem.forward.input_layout for problem in ran} == set(LAYOUTS)
    assert {problem.forward.weight_layout for problem in ran} == set(LAYOUTS)
    kinds: dict[str, Callable[[GradientProblem], bool]] = {
        "known": lambda p: p.known,
        "several chunks": lambda p: len(list(chunks(p))) > 1,
        "a second block of rows": lambda p: p.forward.N > 128,
        "wide segments": lambda p: p.forward.V >= 8192,
        "masked segments": lambda p: (
            sum(tiles[0][0] >= p.forward.valid_vocab for tiles in grid(p.forward.V, p.forward.beyond or WHOLE)) > 0
        ),
        "shards": lambda p: bool(p.forward.beyond and sum(p.forward.beyond)),
        "rows left out": lambda p: bool(p.left_out),
        "a softcap": lambda p: p.forward.softcap is not None,
        "temperatures": lambda p: len(p.forward.temperature or ()) > 1,
        "fp64 dense": lambda p: p.dense is not None and p.dense_dtype == torch.float64,
        **{f"letter {letter}": lambda p, letter=letter: letter in p.letters for letter in Coefficients._fields},
    }
    assert any(problem.forward.N == 0 for problem in ran)
    return [kind for kind, holds in kinds.items() if sum(map(holds, telling)) < few]


PLAIN = Problem(
    seed=1,
    N=21,
    H=9,
    V=1200,
    valid_vocab=1100,
    dtype=torch.float32,
    kind="normal",
    size=4.0,
    input_layout="contiguous",
    weight_layout="contiguous",
    bias="contiguous",
    bias_dtype=torch.float32,
    bias_tail=None,
    planted=(),
    scale=0.7,
    softcap=9.0,
    temperature=(0.8, 1.7, 1.1),
    threads=1,
)
PLAIN_GRADIENT = GradientProblem(
    forward=PLAIN,
    left_out=None,
    letters="AUDTB",
    size=1.0,
    planted=(),
    column_weight=True,
    dense="contiguous",
    dense_dtype=torch.float32,
    carried="ties",
    known=False,
    blocks=(1,),
    wanted=ALL,
)


def check_plain(scalar: Scalar, known: bool = False, letters: str = "AUDTB", **sizes: Any) -> Expected:
    """PLAIN_GRADIENT with some things changed has the published bits, and they are numbers."""
    problem = replace(PLAIN_GRADIENT, letters=letters, forward=replace(PLAIN, **sizes))
    expected = assert_published(scalar, *gradient_work(problem), ALL, known)
    assert expected.finite
    return expected


@pytest.mark.parametrize("known", [False, True])
def test_every_choice_of_coefficients_has_the_published_bits(native: ModuleType, scalar: Scalar, known: bool) -> None:
    for letters in EVERY_CHOICE:
        check_plain(scalar, known, letters)


@pytest.mark.parametrize("known", [False, True])
def test_every_number_of_rows_has_the_published_bits(
    native: ModuleType, scalar: Scalar, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    for N in range(301):
        blocks = [(1,), (1, 2), (2,), (8,)][N % 4]
        cut = chunks(replace(PLAIN_GRADIENT, forward=replace(PLAIN, N=N), blocks=blocks))
        monkeypatch.setattr(kernel, "row_chunks", lambda *_, cut=cut, **__: cut)
        check_plain(scalar, known, N=N, H=1 + N % 7, V=3 + N % 30, valid_vocab=3 + N % 30)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("V", [*range(511, 8192, 512), *range(513, 8192, 512), 8192, 8193, 30522])
def test_every_shape_of_the_tree_has_the_published_bits(
    native: ModuleType, scalar: Scalar, V: int, known: bool
) -> None:
    check_plain(scalar, known, N=3, H=2, V=V, valid_vocab=V)


@pytest.mark.parametrize("V", [1500, 8191, 8300, 9000])
def test_masked_segments_and_tiles_leave_the_published_bits(native: ModuleType, scalar: Scalar, V: int) -> None:
    edges = {edge for tiles in grid(V) for tile in tiles for edge in tile} | {128, 640}
    for edge in sorted(edges):
        for valid in {min(max(edge + step, 1), V) for step in (-1, 0, 1)}:
            check_plain(scalar, known=valid % 2 == 0, N=2, H=3, V=V, valid_vocab=valid)


@pytest.mark.parametrize("known", [False, True])
def test_many_rows_of_a_wide_vocabulary_have_the_published_bits(
    native: ModuleType, scalar: Scalar, threads: Threads, known: bool
) -> None:
    if native.isa() == "portable":
        pytest.skip("takes long with these instructions, and the drawn problems have all of its parts")
    threads(2)
    check_plain(scalar, known, N=300, H=70, V=9000, valid_vocab=8800)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("size", [1.0, 20.0, 300.0])  # of the logits: nearly all, some, or one of a row's are kept
def test_filtered_gradients_have_the_published_bits(
    native: ModuleType, scalar: Scalar, size: float, known: bool
) -> None:
    for N, H, V, valid in ((3, 9, 1200, 1100), (40, 140, 150, 150), (145, 10, 600, 555), (5, 9, 8300, 8000)):
        for letters in ("AL", "AUTBL", "AKDBL"):
            check_plain(scalar, known, letters, size=size, softcap=None, N=N, H=H, V=V, valid_vocab=valid)


def test_sums_that_underflow_keep_the_sign_that_the_page_gives_them(native: ModuleType, scalar: Scalar) -> None:
    """A chain may end in -0, and so may a segment; one more segment, of masked columns, makes it +0."""
    weight = torch.full((1200, 3), 1e-30)
    call = Call(-torch.ones(5, 3), weight, None, 1.0, None, None, 1200, target=torch.zeros(5, dtype=torch.int64))
    terms = LogitGradient(exp=torch.full((5,), -1e-30))
    for valid, negative in ((1200, True), (900, False), (500, False)):
        masked = replace(call, valid_vocab=valid)
        expected = assert_published(scalar, masked, terms, ALL, known=False)
        assert expected.gradients[0].tolist() == [[0.0] * 3] * 5
        assert bool(np.signbit(expected.gradients[0]).all()) is negative


# --- The caller's floating-point mode ---------------------------------------------------------------------------------
def assert_published_in_mode(scalar: Scalar, mode: str, call: Call, terms: LogitGradient, known: bool) -> None:
    expected = published(scalar, call, terms)
    statistics = Statistics(*map(torch.from_numpy, expected.statistics[:2]))
    if mode == "flush":
        if not torch.set_flush_denormal(True):
            pytest.skip("this processor can't flush subnormals")
    else:
        scalar.set_rounding(mode)
    try:
        found = run(call, terms, ALL, statistics if known else None)
    finally:
        torch.set_flush_denormal(False)
        scalar.set_rounding("nearest")
    assert_published_statistics(found.statistics, expected)
    assert_published_gradients(found.gradients, expected, ALL, filtered=False)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("mode", ["flush", "up", "down", "zero"])
def test_a_callers_floating_point_mode_changes_no_bit_of_a_gradient(
    native: ModuleType, scalar: Scalar, threads: Threads, mode: str, known: bool
) -> None:
    threads(2)
    size = 1e-36 if mode == "flush" else 1.0  # subnormal gradients
    assert_published_in_mode(scalar, mode, *gradient_work(replace(PLAIN_GRADIENT, size=size, letters="ACUDTB")), known)


@pytest.mark.parametrize("mode", ["flush", "up", "down", "zero"])
def test_fp64_elements_are_rounded_the_same_in_every_floating_point_mode_of_the_caller(
    native: ModuleType, scalar: Scalar, mode: str
) -> None:
    call, terms = gradient_work(replace(PLAIN_GRADIENT, dense_dtype=torch.float64))
    assert call.dense is not None
    if mode == "flush":  # doubles that are subnormal floats
        call.dense.mul_(1e-39)
    assert_published_in_mode(scalar, mode, call, terms, known=False)
