"""`native` gives a row the same bits whatever surrounds it: threads, batch, instruction set, strides, load, callers.

What is compared are all outputs of the public functions, bit for bit, with one computation of the same problem that
differs in the one thing under test. That these bits are the published ones is the business of tests/native; what
happens around a fork, of test_fork.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from types import ModuleType
from typing import Any, Final

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from steadysum import kernels, linear_logprobs, linear_max_sum, linear_softmax
from steadysum.diagnosis.compare import bits_equal
from steadysum.kernels.problem import Operands

pytestmark = pytest.mark.usefixtures("needs_native")

ISAS: Final = ("avx512", "avx2", "portable")
DTYPES: Final = (torch.float32, torch.bfloat16, torch.float16)
THREADS: Final = (1, 2, 3, 8)

# Each list surrounds a boundary: the reduction index is cut every 128, tiles have 512 columns, and from 8192 columns on
# there are 16 segments. Rows are packed in panels and shared out in tasks of 512.
ROWS: Final = (*range(1, 41), 511, 512, 513, 530)
HIDDENS: Final = (1, 7, 127, 128, 129, 200, 255, 256, 257)
VOCABS: Final = (1, 15, 16, 17, 300, 511, 512, 513, 1023, 1025, 1300, 8191, 8192, 8193, 8209)

# The portable code emulates the fused multiply-add, about 0.3 of them a nanosecond: drawn problems are kept this small.
MOST_WORK: Final = 4_000_000

# The kernel leaves problems below 2^20 multiply-adds to one thread: those that test threads are larger.
LARGE: Final = ((513, 257, 513), (33, 300, 9000), (40, 129, 8193), (1, 256, 8192), (4, 128, 16400), (5, 300, 1300))


@dataclass(frozen=True, eq=False)
class Case:
    """The operands of one problem."""

    input: Tensor  # [N, H]
    weight: Tensor  # [V, H]
    target: Tensor  # [N]
    options: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:  # what hypothesis prints
        N, (V, H) = self.input.shape[0], self.weight.shape
        return f"<N={N}, H={H}, V={V}, {self.input.dtype}, options: {', '.join(self.options) or 'none'}>"

    def rows(self, index: Tensor) -> Case:
        """The same problem for some of its rows."""
        options = dict(self.options)
        if isinstance(temperature := options.get("temperature"), Tensor):
            options["temperature"] = temperature[index]
        return Case(self.input[index], self.weight, self.target[index], options)


def draw_case(
    shape: tuple[int, int, int], dtype: torch.dtype = torch.float32, *, everything: bool = False, seed: int = 0
) -> Case:
    """A random problem; with every option, if `everything`."""
    N, H, V = shape
    generator = torch.Generator().manual_seed(seed)
    input = torch.randn(N, H, generator=generator).to(dtype)
    weight = torch.randn(V, H, generator=generator).div(H**0.5).to(dtype)
    valid = max(1, V - 3) if everything else V
    target = torch.randint(valid, (N,), generator=generator)
    options = {
        "bias": torch.randn(V, generator=generator),
        "scale": 3.0,
        "softcap": 5.0,
        "temperature": torch.rand(N, generator=generator) + 0.5,
        "valid_vocab": valid,
    }
    return Case(input, weight, target, options if everything else {})


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


def assert_same(seen: dict[str, Tensor], expected: dict[str, Tensor], what: object = "") -> None:
    """Every bit of every output is equal."""
    for name, values in expected.items():
        assert bits_equal(seen[name], values), f"{name} {what}"


def picked(found: dict[str, Tensor], index: Tensor | slice) -> dict[str, Tensor]:
    """The outputs of some rows."""
    return {name: values[index] for name, values in found.items()}


def joined(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The outputs of batches put together."""
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


@contextmanager
def instructions(native: ModuleType, isa: str) -> Iterator[None]:
    """Compute with this instruction set, inside the context."""
    before = native.isa()
    native.set_isa(isa)
    try:
        yield
    finally:
        native.set_isa(before)


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest, needs_native: ModuleType) -> Iterator[str]:
    """Each instruction set in turn, in use during the test."""
    if request.param not in needs_native.runnable_isas():
        lacking = [name for name, there in needs_native.cpu_features().items() if not there]
        pytest.skip(f"this CPU can't run the {request.param} code: it lacks {', '.join(lacking)}")
    with instructions(needs_native, request.param):
        assert needs_native.isa() == request.param
        yield request.param


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Problems around the boundaries of blocks, tiles and segments."""
    hidden, vocab = draw(st.sampled_from(HIDDENS)), draw(st.sampled_from(VOCABS))
    rows = draw(st.sampled_from([rows for rows in ROWS if rows == 1 or rows * hidden * vocab <= MOST_WORK]))
    dtype, everything = draw(st.sampled_from(DTYPES)), draw(st.booleans())
    return draw_case((rows, hidden, vocab), dtype, everything=everything, seed=draw(st.integers(0, 99)))


# Function-scoped fixtures hold no state that an example could leave to the next.
drawn = settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])


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


def transposed(matrix: Tensor) -> Tensor:
    return matrix.T.contiguous().T


def offset_by_one_element(matrix: Tensor) -> Tensor:
    return torch.cat([matrix.new_full((1,), torch.nan), matrix.flatten()])[1:].view_as(matrix)


def row_padded(matrix: Tensor) -> Tensor:
    padded = matrix.new_full((matrix.shape[0], matrix.shape[1] + 3), torch.nan)
    padded[:, : matrix.shape[1]] = matrix
    return padded[:, : matrix.shape[1]]


def sliced_with_step(matrix: Tensor) -> Tensor:
    sparse = matrix.new_full((2 * matrix.shape[0], 3 * matrix.shape[1]), torch.nan)
    sparse[::2, ::3] = matrix
    return sparse[::2, ::3]


LAYOUTS: Final = (transposed, offset_by_one_element, row_padded, sliced_with_step)


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


@pytest.fixture
def load() -> Iterator[None]:
    """Other processes keep every core busy; they end by themselves after a minute, whatever happens to this one."""
    program = "import time; end = time.monotonic() + 60\nwhile time.monotonic() < end: pass"
    processes = [subprocess.Popen([sys.executable, "-S", "-c", program]) for _ in range((os.cpu_count() or 1) + 1)]
    try:
        yield
        assert all(process.poll() is None for process in processes), "the load ended before the test"
    finally:
        for process in processes:
            process.kill()
            process.wait()


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
