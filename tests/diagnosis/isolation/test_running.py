"""Tests of the loop over the runs, of what it keeps, and of the conditions, in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from steadysum.diagnosis.isolation.arranged import Condition
from steadysum.diagnosis.isolation.inputs import Call, OwnInputs, make_call
from steadysum.diagnosis.isolation.journal import Journal, Result
from steadysum.diagnosis.isolation.kept import outputs_of, read_outputs, write_outputs
from steadysum.diagnosis.isolation.quick_digest import quick_digest
from steadysum.diagnosis.isolation.running import Ran, run_all
from steadysum.diagnosis.isolation.target import load_target, parse_target

Make = Callable[..., tuple[Ran, tuple[Result, ...]]]


@pytest.fixture
def make(operators: Path, tmp_path: Path) -> Make:
    """Runs an operator: of the file by its name, or any callable with arguments."""
    count = [0]

    def run(operator: Any, *conditions: Condition, runs: int = 10, args: Any = None) -> tuple[Ran, tuple[Result, ...]]:
        call = Call(args or (), {}, "")
        if isinstance(operator, str):
            loaded = load_target(parse_target(f"{operators}:{operator}"))
            operator, call = loaded.call, make_call(OwnInputs(), loaded, operator)
        count[0] += 1
        folder = tmp_path / f"batch-{count[0]}"
        folder.mkdir()
        with Journal(folder / "journal", runs) as journal:
            return run_all(operator, call, runs, conditions, journal, folder), journal.read()

    return run


def test_outputs_may_be_nested_and_arrays(tmp_path: Path) -> None:
    value = {"sum": torch.ones(2, dtype=torch.complex64), "largest": (torch.ones(2).numpy(), 8), "flag": True}
    write_outputs(tmp_path / "a.safetensors", outputs_of(value))
    outputs = read_outputs(tmp_path / "a.safetensors")
    assert list(outputs.tensors) == ["sum", "largest/0"]
    assert torch.equal(outputs.tensors["sum"], value["sum"])
    assert outputs.rest == outputs_of(value).rest


def test_a_plain_number_belongs_to_the_result(make: Make) -> None:
    numbers = iter([1.0, 1.0, 2.0, 1.0])
    _, results = make(lambda: (torch.ones(2), next(numbers)), runs=4)
    assert [result.digest == results[0].digest for result in results] == [True, True, False, True]


def test_a_run_that_deviates_is_seen_and_its_output_kept(make: Make) -> None:
    ran, results = make("third_deviates")
    assert [run for run, result in enumerate(results, 1) if result.digest != results[0].digest] == [3]
    assert sorted(ran.kept) == sorted({result.digest for result in results})


def test_of_many_outputs_seventeen_are_kept(make: Make) -> None:
    ran, results = make("always_another", runs=40)
    assert (len({result.digest for result in results}), len(ran.kept)) == (40, 17)


def test_the_end_of_memory_is_told_from_other_exceptions(make: Make) -> None:
    ran, results = make("too_large")
    assert (ran.ending, len(results)) == ("out_of_memory", 1)
    ran, results = make("seventh")
    assert (ran.ending, len(results)) == ("exception", 6)


@pytest.mark.parametrize("name", ["writes", "writes_by_numpy"])
def test_an_operator_that_writes_to_its_inputs_gets_them_as_they_were(make: Make, name: str) -> None:
    ran, results = make(name)
    assert (ran.writes_inputs, len({result.digest for result in results})) == (True, 1)


@pytest.mark.parametrize("size", [1, 7, 1000, 40000])
@pytest.mark.parametrize("bit", [0, 15, 31])
def test_flips_of_one_bit_in_any_two_places_change_the_digest(size: int, bit: int) -> None:
    words = torch.randint(-(2**31), 2**31 - 1, (size,), generator=torch.Generator().manual_seed(0)).to(torch.int32)
    mask = torch.tensor(1 << bit if bit < 31 else -(2**31), dtype=torch.int32)
    first = quick_digest([("", words)])
    for place in (0, size // 2, size - 1):
        flipped = words.clone()
        flipped[place] ^= mask
        assert quick_digest([("", flipped)]) != first
    assert quick_digest([("", words ^ mask)]) != first  # as when all signs change


def test_names_shapes_and_dtypes_belong_to_the_digest_and_strides_do_not() -> None:
    values = torch.arange(12.0).view(3, 4)
    assert quick_digest([("", values.T.contiguous().T)]) == quick_digest([("", values)])
    others = [("a", values), ("", values.view(4, 3)), ("", values.view(torch.int32)), ("", values.flip(0))]
    assert len({quick_digest([one]) for one in [("", values), *others]}) == 5


X = torch.arange(48.0).view(8, 6)
W = torch.arange(30.0).view(5, 6)


def product(x: Tensor, weight: Tensor) -> Tensor:
    return (x[:, None] * weight).sum(2)


@pytest.mark.parametrize(
    ("name", "values", "least"),
    [
        ("rows_alone", {}, 10 * 4),
        ("rows_alone", {"rows": [3]}, 10),
        ("split", {"cuts": [1, 5]}, 10 * 3),
        ("shuffled", {"seed": 1}, 10 * 2),
        ("misaligned", {"elements": 3}, 2),
        ("strided", {}, 2),
        ("prefilled_memory", {}, 1),
        ("synchronised", {}, 10),
        ("delays", {"rate": 1.0, "seconds": 1e-4}, 10),
        ("cpu_load", {"processes": 1}, 1),
        ("memory_load", {}, 1),
        ("two_callers", {}, 1),
        ("threads", {"count": 2}, 10),
        ("dirty_workspace", {}, 10),
        ("same_random_state", {}, 10),
    ],
)
def test_a_right_operator_keeps_its_bits_under_a_condition_that_acted(
    make: Make, name: str, values: dict[str, Any], least: int
) -> None:
    _, plain = make(product, args=(X, W), runs=1)
    ran, results = make(product, Condition(name, values), args=(X, W))
    assert ran.ending == "complete", ran.detail
    assert ran.acted[name] >= least
    assert {result.digest for result in results} == {plain[0].digest}


def test_rows_that_differ_alone_are_seen(make: Make) -> None:
    def differs_alone(x: Tensor) -> Tensor:
        return x.sum(1) + float(x.shape[0] == 1)

    _, plain = make(differs_alone, args=(X,), runs=1)
    _, alone = make(differs_alone, Condition("rows_alone"), args=(X,), runs=1)
    assert alone[0].digest != plain[0].digest


def test_memory_that_is_never_written_shows_by_two_sentinels(make: Make) -> None:
    def forgets_the_last(x: Tensor) -> Tensor:
        out = torch.empty(4096)
        out[:-1] = 1.0
        return out

    for name in ("prefilled_memory", "filled_empties"):
        seen = {make(forgets_the_last, Condition(name, {"byte": byte}), args=(X,))[1][-1].digest for byte in (123, 195)}
        assert len(seen) == 2, name


def test_a_result_that_is_not_waited_for_is_right_when_every_start_is_synchronised(make: Make) -> None:
    import threading
    import time

    def unwaited(x: Tensor) -> Tensor:
        out = torch.zeros(8)

        def fill() -> None:
            time.sleep(0.02)
            out.copy_(x.sum(1))

        thread = threading.Thread(target=fill)
        thread.start()
        copied = out.clone()
        thread.join()
        return copied

    right = quick_digest([("value", X.sum(1))])
    assert make(unwaited, args=(X,), runs=2)[1][0].digest != right
    ran, results = make(unwaited, Condition("synchronised"), args=(X,), runs=2)
    assert [result.digest for result in results] == [right, right]
    assert ran.acted["synchronised"] > 0


def test_a_buffer_shared_by_callers_shows_with_two_of_them_alone(make: Make) -> None:
    import time

    staging = torch.zeros(8)

    def staged(x: Tensor) -> Tensor:
        staging.copy_(x.sum(1))
        time.sleep(0.001)
        return staging.clone()

    alone, beside = (make(staged, *under, args=(X,), runs=50)[1] for under in ((), (Condition("two_callers"),)))
    assert {result.digest for result in alone} == {quick_digest([("value", X.sum(1))])}
    assert {result.digest for result in beside} - {result.digest for result in alone}


def test_exact_inputs_give_every_order_of_summation_the_same_bits(make: Make) -> None:
    values = torch.randn(64, 1000, generator=torch.Generator().manual_seed(0))
    orders = [lambda x: x.sum(1), lambda x: x.flip(1).cumsum(1)[:, -1]]
    real = {make(order, args=(values,), runs=1)[1][0].digest for order in orders}
    exact = {make(order, Condition("exact_inputs"), args=(values,), runs=1)[1][0].digest for order in orders}
    assert (len(real), len(exact)) == (2, 1)


@pytest.mark.parametrize(
    ("conditions", "says"),
    [
        ([Condition("split"), Condition("shuffled")], "one of rows_alone, split, shuffled at most"),
        ([Condition("split", {"cuts": [0]})], "cuts [0] don't cut 8 rows"),
        ([Condition("split", {"batched": ["y"]})], "not all of them are tensors among the arguments"),
    ],
)
def test_conditions_that_cannot_be_set_up_are_void(make: Make, conditions: list[Condition], says: str) -> None:
    ran, results = make(product, *conditions, args=(X, W))
    assert (ran.ending, results) == ("void", ())
    assert says in ran.detail


@pytest.mark.parametrize("name", ["rows_alone", "split", "shuffled", "dirty_workspace"])
def test_an_operator_that_writes_to_its_inputs_has_its_bits_under_conditions_too(make: Make, name: str) -> None:
    plain = make("writes", runs=1)[1][0].digest
    ran, results = make("writes", Condition(name), runs=4)
    assert ran.ending == "complete", ran.detail
    assert {result.digest for result in results[1:]} == {plain}


def test_the_reference_has_the_same_numbers_in_float64(make: Make) -> None:
    expected = quick_digest([("value", product(X.double(), W.double()))])
    ran, results = make(product, Condition("float64"), args=(X, W), runs=1)
    assert (ran.acted, results[0].digest) == ({"float64": 2}, expected)


def test_outputs_without_rows_make_a_row_alone_void(make: Make) -> None:
    ran, _ = make(lambda x: x.sum(), Condition("rows_alone"), args=(X,))
    assert (ran.ending, ran.detail) == ("void", "an output of shape [] hasn't a row for each of 8 rows")
