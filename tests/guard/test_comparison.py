"""compare_accuracy: what it counts, where it points, what it refuses, and how it is shown."""

from __future__ import annotations

import math
from collections import OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from steadysum.errors import DtypeError, LayoutError, OperandTypeError, RangeError, ShapeError
from steadysum.guard.comparison import AccuracyComparison, compare_accuracy
from steadysum.maxsum import MaxSum

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def test_equal_results_are_right_and_nothing_apart() -> None:
    x = torch.tensor([[1.0, -2.0, 0.0], [math.nan, math.inf, -math.inf]])
    found = compare_accuracy(x, x.clone(), rtol=0.0, atol=0.0)
    assert found.ok
    assert (found.wrong_share, found.wrong_row_share, found.ulps) == (0.0, 0.0, 0)
    assert found.tensors[0].row_errors.tolist() == [0.0, 0.0]
    assert found.tensors[0].lowest_cosine == (0, pytest.approx(1.0, abs=1e-15))


def test_one_wrong_row_of_256_is_found_though_norms_agree() -> None:
    expected = torch.randn(256, 512, generator=torch.Generator().manual_seed(1))
    actual = expected.clone()
    actual[77] = -expected[77]  # the norm is the same to the last digit
    found = compare_accuracy(actual, expected)
    tensor = found.tensors[0]
    assert float(actual.norm()) == float(expected.norm())
    assert not found.ok
    assert tensor.rows == (77,)
    assert found.wrong_row_share == 1 / 256
    assert tensor.lowest_cosine == (77, pytest.approx(-1.0, abs=1e-12))


@given(
    st.sampled_from(DTYPES),
    st.lists(st.floats(-100, 100, width=16), min_size=12, max_size=12),
    st.lists(st.floats(-100, 100, width=16), min_size=12, max_size=12),
    st.floats(0, 0.5),
    st.floats(0, 0.5),
)
def test_elements_are_judged_as_the_definition_says(
    dtype: torch.dtype, left: list[float], right: list[float], rtol: float, atol: float
) -> None:
    actual, expected = (torch.tensor(each, dtype=dtype).reshape(2, 2, 3) for each in (left, right))
    errors = [
        (abs(float(a) - float(e)), atol + rtol * abs(float(e)))
        for a, e in zip(actual.flatten(), expected.flatten(), strict=True)
    ]
    wrong = [error > allowed for error, allowed in errors]
    found = compare_accuracy(actual, expected, rtol, atol)
    assert found.tensors[0].wrong_elements == sum(wrong)
    assert found.ok == (not any(wrong))
    assert found.tensors[0].rows == tuple(row for row in range(4) if any(wrong[3 * row : 3 * row + 3]))


def test_nan_equals_nan_alone_and_an_infinity_itself_alone() -> None:
    nan, inf = math.nan, math.inf
    expected = torch.tensor([nan, nan, inf, inf, inf, 1.0, 1.0])
    actual = torch.tensor([nan, 1.0, inf, -inf, 3e38, nan, inf])
    found = compare_accuracy(actual, expected, rtol=1.0, atol=1e30)
    assert found.tensors[0].rows == (1, 3, 4, 5, 6)
    assert {place.at for place in found.worst if place.error == inf} == {(1,), (3,), (4,), (5,), (6,)}


def test_places_are_ranked_by_error_over_what_is_allowed() -> None:
    expected = torch.tensor([[1.0, 1000.0], [0.0, 1.0]], dtype=torch.float64)
    actual = expected + torch.tensor([[0.02, 1.0], [1e-4, 0.0]], dtype=torch.float64)
    found = compare_accuracy(actual, expected, rtol=1e-2, atol=1e-5)
    assert [place.at for place in found.worst][:3] == [(1, 0), (0, 0), (0, 1)]
    worst = found.worst[0]
    assert (worst.actual, worst.expected, worst.error, worst.allowed) == (1e-4, 0.0, 1e-4, 1e-5)
    assert worst.over == pytest.approx(10.0)
    assert found.tensors[0].row_errors.tolist() == pytest.approx([0.02 / (1e-5 + 1e-2), 10.0])


def test_the_worst_places_of_large_results_are_those_of_all_elements() -> None:
    generator = torch.Generator().manual_seed(2)
    expected = torch.zeros(3000, 1000)  # cut into several parts
    actual = torch.rand(3000, 1000, generator=generator)
    found = compare_accuracy(actual, expected, rtol=0.0, atol=1.0)
    values, flat = actual.flatten().topk(16)
    assert [place.error for place in found.worst] == values.tolist()
    assert {place.at for place in found.worst} == {divmod(place, 1000) for place in flat.tolist()}
    assert found.tensors[0].row_errors.shape == (3000,)
    assert torch.equal(found.tensors[0].row_errors, actual.double().amax(dim=1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_ulps_are_steps_between_neighbours(dtype: torch.dtype) -> None:
    one = torch.tensor([[1.0, 1.0, -1.0]], dtype=dtype)
    eps = torch.finfo(dtype).eps
    other = torch.tensor([[1.0 + 3 * eps, 1.0 - eps, -1.0 - eps]], dtype=dtype)
    found = compare_accuracy(other, one, rtol=0.0, atol=0.0)
    assert found.tensors[0].row_ulps.tolist() == [3]
    assert sorted(place.ulps for place in found.worst if place.ulps is not None) == [1, 2, 3]  # below 1, steps halve


def test_ulps_of_two_dtypes_are_counted_in_the_coarser() -> None:
    fine = torch.tensor([1.0 + 2**-10], dtype=torch.float32)
    coarse = torch.tensor([1.0 + 2**-7], dtype=torch.bfloat16)
    assert compare_accuracy(fine, coarse).ulps == 1
    assert compare_accuracy(coarse, fine).ulps == 1


def test_cosines_follow_the_definition_at_any_scale() -> None:
    actual = torch.tensor([[3.0, 4.0], [0.0, 0.0], [0.0, 0.0], [1e300, 1e300], [5e-324, 0.0], [math.nan, 1.0]]).double()
    actual[3:5] = torch.tensor([[1e300, 1e300], [5e-324, 0.0]], dtype=torch.float64)
    expected = actual.clone()
    expected[0] = torch.tensor([4.0, 3.0])
    expected[2] = 1.0
    expected[3] = torch.tensor([1e-300, 1e-300], dtype=torch.float64)
    cosines = compare_accuracy(actual, expected).tensors[0].row_cosines
    assert cosines[:5].tolist() == pytest.approx([24 / 25, 1.0, 0.0, 1.0, 1.0], abs=1e-15)
    assert math.isnan(cosines[5])
    assert compare_accuracy(actual, expected).tensors[0].lowest_cosine == (2, 0.0)


def test_a_vector_has_one_cosine_and_a_row_an_element() -> None:
    tensor = compare_accuracy(torch.tensor([3.0, 4.0]), torch.tensor([4.0, 3.0])).tensors[0]
    assert tensor.row_cosines.tolist() == pytest.approx([24 / 25])
    assert tensor.rows == (0, 1)


def test_integers_and_booleans_have_to_be_equal() -> None:
    large = torch.tensor([[2**60, 7]])
    found = compare_accuracy(large + torch.tensor([[1, 0]]), large, rtol=1.0, atol=1e9)
    assert found.tensors[0].wrong_elements == 1
    assert found.worst[0].at == (0, 0)
    assert found.ulps == 1
    assert not compare_accuracy(torch.tensor([True, False]), torch.tensor([True, True]), rtol=2.0).ok


def test_both_parts_of_complex_numbers_count() -> None:
    expected = torch.tensor([[1 + 1j, 2 + 2j]])
    actual = torch.tensor([[1 + 1j, 2 + 3j]])
    tensor = compare_accuracy(actual, expected).tensors[0]
    assert (tensor.wrong_elements, tensor.elements) == (1, 4)
    assert tensor.worst[0].at == (0, 1)
    assert tensor.worst[0].error == 1.0
    assert compare_accuracy(actual.conj(), actual.conj().resolve_conj(), 0.0, 0.0).ok


def test_nests_are_compared_tensor_by_tensor() -> None:
    actual = OrderedDict(stats=MaxSum(torch.zeros(2), torch.ones(2)), loss=1.5, note="x", none=None)
    expected = {"stats": MaxSum(torch.zeros(2), torch.tensor([1.0, 3.0])), "loss": 1.5}
    found = compare_accuracy(actual, expected)
    assert [tensor.name for tensor in found.tensors] == ["stats/max", "stats/sum_exp", "loss"]
    assert [tensor.ok for tensor in found.tensors] == [True, False, True]
    assert found.worst[0][:2] == ("stats/sum_exp", (1,))
    assert found.wrong_share == 1 / 5


def test_a_tuple_stands_for_a_named_one() -> None:
    assert compare_accuracy(MaxSum(torch.zeros(2), torch.ones(2)), (torch.zeros(2), torch.ones(2))).ok


def test_arrays_and_numbers_are_taken() -> None:
    assert compare_accuracy(np.ones((2, 2), dtype=np.float32), torch.ones(2, 2)).ok
    assert not compare_accuracy(1.0, np.float64(1.1)).ok


@pytest.mark.parametrize("shape", [(), (0,), (0, 4), (4, 0), (2, 0, 3)])
def test_scalars_and_empty_results_compare(shape: tuple[int, ...]) -> None:
    found = compare_accuracy(torch.ones(shape), torch.ones(shape))
    assert found.ok
    assert str(found)


def test_a_graph_is_left_alone() -> None:
    x = torch.ones(2, 2, requires_grad=True)
    assert compare_accuracy(x * 2, x + 1).ok


def test_a_result_prints_as_text_and_as_a_table() -> None:
    expected = torch.ones(2, 3)
    actual = expected.clone()
    actual[1, 2] = 1.5
    found = compare_accuracy(actual, expected)
    text = str(found)
    assert text.splitlines()[0] == "not all within |actual - expected| <= 1e-05 + 0.001 |expected|"
    for cell in (
        "value",
        "2x3",
        "1 of 6 (16.67%)",
        "1 of 2 (50.00%)",
        "value[1, 2]",
        "1.5",
        "0.5",
        "0.00101",
        "4194304",
    ):
        assert cell in text
        assert cell in _shown(found)
    assert "farthest off" not in str(compare_accuracy(expected, expected))


def _shown(found: AccuracyComparison) -> str:
    console = Console(width=120)
    with console.capture() as captured:
        console.print(found.table())
    return captured.get()


@pytest.mark.parametrize("value", [-1e-3, math.nan, math.inf, True, "1e-3"])
def test_tolerances_that_say_nothing_are_refused(value: object) -> None:
    with pytest.raises(RangeError, match=r"rtol: got .*; allowed: a finite number of at least 0\."):
        compare_accuracy(torch.ones(1), torch.ones(1), rtol=value)  # type: ignore[arg-type]


def test_results_that_do_not_fit_each_other_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"shapes of value: got \[2\] and \[3\]; allowed: equal shapes"):
        compare_accuracy(torch.ones(2), torch.ones(3))
    with pytest.raises(OperandTypeError, match=r"tensors to compare: got a and b; allowed: at least one, and the same"):
        compare_accuracy({"a": torch.ones(2)}, {"b": torch.ones(2)})
    with pytest.raises(OperandTypeError, match="tensors to compare: got none and none"):
        compare_accuracy("text", None)


def test_tensors_without_dense_values_are_refused() -> None:
    with pytest.raises(LayoutError, match=r"layout of value: got torch.sparse_coo; allowed: dense tensors with values"):
        compare_accuracy(torch.eye(2).to_sparse(), torch.eye(2))
    with pytest.raises(LayoutError, match="layout of value: got a tensor without values"):
        compare_accuracy(torch.ones(2, device="meta"), torch.ones(2))
    with pytest.raises(DtypeError, match=r"dtype of value: got torch.float8_e5m2; allowed: fp64, fp32, fp16 or bf16"):
        compare_accuracy(torch.ones(2).to(torch.float8_e5m2), torch.ones(2))
