"""`native` gives a row the same bits whatever surrounds it: threads, batch, instruction set, strides, load, callers.

What is compared are all outputs of the public functions, bit for bit, with one computation of the same problem that
differs in the one thing under test. That these bits are the published ones is the business of tests/native; what
happens around a fork, of test_fork.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from steadysum import kernels, linear_logprobs, linear_max_sum, linear_softmax
from steadysum.diagnosis.compare import bits_equal
from steadysum.kernels.problem import Operands

from .same_bits import (
    DTYPES,
    HIDDENS,
    ISAS,
    LARGE,
    LAYOUTS,
    MOST_WORK,
    ROWS,
    THREADS,
    VOCABS,
    Case,
    assert_same,
    draw_case,
    drawn,
    instructions,
    joined,
    picked,
)

pytestmark = pytest.mark.usefixtures("needs_native")


def outputs(case: Case) -> dict[str, Tensor]:
    """Everything that the public functions say about the problem."""
    operands, options = (case.input, case.weight), {"kernel": "native", **case.options}
    largest, sum_exp = linear_max_sum(*operands, **options)
    logprobs, entropy = linear_logprobs(*operands, case.target, **options, return_entropy=True)
    return {
        "max": largest,
        "sum_exp": sum_exp,
        "softmax": linear_softmax(*operands, **options),
        "logprobs": logprobs,
        "logprobs without entropy": linear_logprobs(*operands, case.target, **options),
        "entropy": entropy,
    }


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Problems around the boundaries of blocks, tiles and segments."""
    hidden, vocab = draw(st.sampled_from(HIDDENS)), draw(st.sampled_from(VOCABS))
    rows = draw(st.sampled_from([rows for rows in ROWS if rows == 1 or rows * hidden * vocab <= MOST_WORK]))
    dtype, everything = draw(st.sampled_from(DTYPES)), draw(st.booleans())
    return draw_case((rows, hidden, vocab), dtype, everything=everything, seed=draw(st.integers(0, 99)))


# ---- instruction sets ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isa", [isa for isa in ISAS if isa != "portable"], indirect=True)
@settings(drawn, max_examples=60)
@given(case=cases())
def test_bits_do_not_depend_on_the_instruction_set(needs_native: ModuleType, isa: str, case: Case) -> None:
    found = outputs(case)
    with instructions(needs_native, "portable"):
        assert_same(outputs(case), found)


# ---- threads -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", LARGE, ids=str)
def test_bits_do_not_depend_on_the_number_of_threads(
    shape: tuple[int, int, int], dtype: torch.dtype, threads: Callable[[int], None]
) -> None:
    case = draw_case(shape, dtype, everything=dtype != torch.float32)
    threads(THREADS[0])
    alone = outputs(case)
    for count in THREADS[1:]:
        threads(count)
        assert_same(outputs(case), alone, f"with {count} threads")


def test_two_callers_at_a_time_get_the_bits_of_each_alone(threads: Callable[[int], None]) -> None:
    cases = [draw_case((65, 257, 1300)), draw_case((7, 130, 9000), torch.bfloat16, everything=True)]
    alone = [outputs(case) for case in cases]
    together = threading.Barrier(len(cases), timeout=60)

    def call(case: Case) -> list[dict[str, Tensor]]:
        torch.set_num_threads(3)  # a new thread starts with the default number
        found = []
        for _ in range(10):
            together.wait()
            found.append(outputs(case))
        return found

    with ThreadPoolExecutor(len(cases)) as callers:
        for found, expected in zip(callers.map(call, cases), alone, strict=True):
            for each in found:
                assert_same(each, expected)


# ---- batch ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_number_of_rows_has_the_bits_of_each_row_alone(
    isa: str, dtype: torch.dtype, threads: Callable[[int], None]
) -> None:
    case = draw_case((max(ROWS), 130, 513), dtype)
    threads(1)
    alone = joined([outputs(case.rows(torch.tensor([row]))) for row in range(max(ROWS))])
    threads(3)
    for rows in ROWS:
        found = linear_max_sum(case.input[:rows], case.weight, kernel="native")
        assert_same(found._asdict(), {name: alone[name][:rows] for name in found._fields}, f"of {rows} rows")


@drawn
@given(case=cases(), data=st.data())
def test_bits_do_not_depend_on_order_and_cuts_of_the_batch(
    isa: str, threads: Callable[[int], None], case: Case, data: st.DataObject
) -> None:
    N = case.input.shape[0]
    threads(data.draw(st.sampled_from(THREADS), label="threads"))
    whole = outputs(case)

    order = torch.tensor(data.draw(st.permutations(range(N)), label="order"))
    assert_same(outputs(case.rows(order)), picked(whole, order), "shuffled")

    cuts = data.draw(st.lists(st.integers(1, N), max_size=4, unique=True).map(sorted), label="cuts")
    edges = [0, *(cut for cut in cuts if cut < N), N]
    parts = [outputs(case.rows(torch.arange(*edge))) for edge in pairwise(edges)]
    assert_same(joined(parts), whole, "split")

    again = torch.tensor(data.draw(st.lists(st.integers(0, N - 1), min_size=1, max_size=9), label="some rows"))
    assert_same(outputs(case.rows(again)), picked(whole, again), "some rows, some of them repeatedly")


def test_bits_do_not_depend_on_the_batch_where_threads_share_it(threads: Callable[[int], None]) -> None:
    """Cases above are small enough for the portable code, and mostly run on one thread."""
    generator = torch.Generator().manual_seed(0)
    threads(3)
    for shape in ((600, 257, 1025), (40, 300, 9000)):
        case = draw_case(shape, everything=True)
        whole = outputs(case)
        order = torch.randperm(shape[0], generator=generator)
        assert_same(outputs(case.rows(order)), picked(whole, order), "shuffled")
        parts = [outputs(case.rows(part)) for part in order.split([1, 3, 17, shape[0] - 21])]
        assert_same(joined(parts), picked(whole, order), "split")


# ---- memory --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [3, 37])  # a handful of rows has a product of its own
@pytest.mark.parametrize("layout", LAYOUTS)
def test_bits_do_not_depend_on_strides_and_alignment(
    isa: str, layout: Callable[[Tensor], Tensor], rows: int, dtype: torch.dtype
) -> None:
    case = draw_case((rows, 130, 529), dtype, everything=True)
    x, head = layout(case.input), layout(case.weight)
    assert torch.equal(x, case.input)
    assert (x.stride(), x.storage_offset()) != (case.input.stride(), case.input.storage_offset())
    expected = outputs(case)
    for name, input, weight in (("input", x, case.weight), ("weight", case.input, head), ("both", x, head)):
        assert_same(outputs(Case(input, weight, case.target, case.options)), expected, f"with {name} so")


def test_bits_of_strided_operands_are_the_same_where_threads_share_them(threads: Callable[[int], None]) -> None:
    threads(3)
    case = draw_case((65, 257, 1300), everything=True)
    expected = outputs(case)
    for layout in LAYOUTS:
        strided = Case(layout(case.input), layout(case.weight), case.target, case.options)
        assert_same(outputs(strided), expected, layout.__name__)


def test_bits_of_one_row_seen_many_times_are_those_of_its_copies(isa: str) -> None:
    case = draw_case((1, 130, 529))
    seen = linear_max_sum(case.input.expand(40, -1), case.weight, kernel="native")
    copied = linear_max_sum(case.input.expand(40, -1).contiguous(), case.weight, kernel="native")
    assert_same(seen._asdict(), copied._asdict())


# ---- the machine, the caller -----------------------------------------------------------------------------------------


def test_bits_are_equal_in_100_calls_under_load_from_other_processes(
    load: None, threads: Callable[[int], None]
) -> None:
    case = draw_case((64, 257, 2000))
    threads(1)
    expected = linear_max_sum(case.input, case.weight, kernel="native")._asdict()
    for call in range(100):
        threads(THREADS[call % len(THREADS)])
        assert_same(linear_max_sum(case.input, case.weight, kernel="native")._asdict(), expected, f"in call {call}")


@pytest.fixture
def flush_to_zero() -> Iterator[Callable[[bool], None]]:
    """torch.set_flush_denormal, undone after the test."""
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU has no flush-to-zero mode that torch can set")
    torch.set_flush_denormal(False)
    yield lambda flush: bool(torch.set_flush_denormal(flush))
    torch.set_flush_denormal(False)


def flushes() -> bool:
    return float(torch.tensor(2.0**-126) * 0.5) == 0.0


def subnormal(values: Tensor) -> Tensor:
    return (values != 0) & (values.abs() < torch.finfo(values.dtype).tiny)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16], ids=str)
def test_the_callers_flush_to_zero_changes_no_bit_and_stays_set(
    isa: str,
    dtype: torch.dtype | None,
    flush_to_zero: Callable[[bool], None],
    threads: Callable[[int], None],
) -> None:
    threads(3)
    faint = draw_case((40, 129, 520))
    faint = Case(faint.input * 2.0**-64, faint.weight * 2.0**-68, faint.target)  # subnormal logits
    steep = draw_case((40, 129, 520))  # subnormal probabilities: exp is +0 only below -87.3
    steep = Case(steep.input * 16, steep.weight, steep.target)

    def everything() -> dict[str, Tensor]:
        found = {
            f"{name}: {output}": values
            for name, case in (("faint", faint), ("steep", steep))
            for output, values in outputs(case).items()
        }
        found["narrow softmax"] = linear_softmax(steep.input, steep.weight, kernel="native", dtype=dtype)
        return found

    expected = everything()
    for name in ("faint: max", "steep: softmax", "narrow softmax"):
        assert bool(subnormal(expected[name]).any()), f"{name} shows nothing"
    flush_to_zero(True)
    assert flushes()
    found = everything()
    assert flushes()
    flush_to_zero(False)
    assert_same(found, expected)
    everything()
    assert not flushes()


def test_the_callers_flush_to_zero_takes_no_subnormal_scale_for_zero(flush_to_zero: Callable[[bool], None]) -> None:
    case = draw_case((5, 16, 20))
    case.options["scale"] = 2.0**-130
    expected = outputs(case)
    assert bool(subnormal(expected["max"]).any())
    flush_to_zero(True)
    found = outputs(case)
    flush_to_zero(False)
    assert_same(found, expected)


# ---- the max is a logit ----------------------------------------------------------------------------------------------


def statistics_and_logits(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """max and sum_exp of linear_max_sum, and the logits that the kernel writes."""
    N, V = case.input.shape[0], case.weight.shape[0]
    options = {"bias": None, "scale": 1.0, "softcap": None, "temperature": None, "valid_vocab": V, **case.options}
    logits = torch.full((N, V), torch.nan)
    found = kernels.get("native").logits(Operands(case.input, case.weight, **options), logits)
    separate = linear_max_sum(case.input, case.weight, kernel="native", **case.options)
    assert bits_equal(found.max, separate.max)
    assert bits_equal(found.sum_exp, separate.sum_exp)
    return separate.max, separate.sum_exp, logits


@drawn
@given(case=cases())
def test_max_is_one_of_the_rows_logits_bit_for_bit(isa: str, case: Case) -> None:
    largest, sum_exp, logits = statistics_and_logits(case)
    assert bool((logits.view(torch.int32) == largest.view(torch.int32)[:, None]).any(1).all())
    assert bool((logits <= largest[:, None]).all())
    assert bool(((sum_exp >= 1) & (sum_exp <= logits.shape[1])).all())


@pytest.mark.parametrize("vocab", [1, 16, 513, 8209])
def test_max_of_zeros_is_positive_unless_all_are_negative(isa: str, vocab: int) -> None:
    # Products of 2^-160 and -2^-160 underflow to a zero of their sign; a product with 0 is +0, since sums start at +0.
    weight = torch.full((vocab, 1), -(2.0**-80))
    x = torch.tensor([[2.0**-80], [-(2.0**-80)], [0.0]])
    largest, sum_exp, logits = statistics_and_logits(Case(x, weight, torch.zeros(3)))
    assert torch.signbit(logits).all(1).tolist() == [True, False, False]
    assert torch.signbit(largest).tolist() == [True, False, False]
    assert sum_exp.tolist() == [vocab] * 3

    for column in {0, vocab // 2, vocab - 1}:  # one +0 among -0, wherever it is, and one -0 among +0
        mixed = weight.clone()
        mixed[column] *= -1
        largest, sum_exp, logits = statistics_and_logits(Case(x, mixed, torch.zeros(3)))
        assert torch.signbit(logits[:2, column]).tolist() == [False, True]
        assert torch.signbit(largest).tolist() == [False, vocab == 1, False]
        assert sum_exp.tolist() == [vocab] * 3
