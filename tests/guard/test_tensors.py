"""Nested values: taken apart and put together again, copied, measured, and compared bit by bit."""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from steadysum.guard.bundle_reading import Part, Unsaved, build
from steadysum.guard.storages import lay_out, materialise
from steadysum.guard.tensors import (
    as_rows,
    differing_rows,
    flatten,
    map_tensors,
    nbytes,
    same_bits,
    snapshot,
    tensors_of,
)


class Pair(NamedTuple):
    """A NamedTuple of a test."""

    left: Any
    right: Any


def saved_and_read(value: Any) -> Any:
    """What a bundle gives back."""
    flat = flatten(value)
    stretches, layouts = lay_out(flat.tensors)
    return build(Part(flat.skeleton, layouts, {name: materialise(each) for name, each in stretches.items()}))


plain = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.complex_numbers(allow_nan=True)
)
shapes = st.lists(st.integers(0, 3), max_size=3)
tensors = st.builds(lambda shape: torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape), shapes)
nests = st.recursive(
    st.one_of(plain, tensors),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=5), st.integers(), st.none()), inner, max_size=3),
    ),
    max_leaves=8,
)


@given(nests)
def test_any_nest_comes_back_as_it_was(value: Any) -> None:
    found = saved_and_read(value)
    assert same_bits(found, value)
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool, torch.complex64, torch.complex128),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
        *(torch.float8_e4m3fn, torch.float8_e5m2, torch.complex32),
    ],
)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_tensors_of_every_dtype_come_back_with_their_bits(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    bits = torch.randint(0, 2, (math.prod(shape), dtype.itemsize), dtype=torch.uint8)
    if dtype is not torch.bool:
        bits *= 173  # also NaNs with payloads, and infinities
    tensor = bits.flatten().view(dtype).reshape(shape)
    found = saved_and_read([tensor])[0]
    assert (found.dtype, found.shape) == (dtype, tensor.shape)
    raw = [each.reshape(-1).view(torch.uint8) for each in (found, tensor)]
    assert torch.equal(*raw)


def views(base: Tensor) -> dict[str, Tensor]:
    return {
        "transposed": base.T,
        "every second": base[:, ::2],
        "column": base[:, 1:2],
        "expanded": base[:, :1].expand(-1, 50),
        "offset": base[1:],
        "flipped dimensions": base.permute(1, 0).unsqueeze(0),
    }


@pytest.mark.parametrize("view", list(views(torch.zeros(2, 2))))
def test_strides_come_back(view: str) -> None:
    tensor = views(torch.randn(4, 6))[view]
    found = saved_and_read(tensor)
    assert found.stride() == tensor.stride()
    assert torch.equal(found, tensor)


def test_operands_that_share_memory_share_it_again() -> None:
    base = torch.randn(4, 6)
    found = saved_and_read((base, base.T, base[2:], base))
    found[0][3, 0] = 7.0
    assert found[1][0, 3] == found[2][1, 0] == found[3][3, 0] == 7.0
    assert base[3, 0] != 7.0


def test_views_of_one_memory_are_saved_once() -> None:
    base = torch.randn(100, 10)
    stretches, _ = lay_out({"a": base, "b": base.T, "c": base[5]})
    assert sum(each.nbytes for each in stretches.values()) == 4000


def test_a_small_view_of_large_memory_is_saved_alone_and_says_so() -> None:
    wide = torch.randn(100, 1000)
    stretches, layouts = lay_out({"a": wide[:, 7], "b": torch.ones(2)})
    assert sum(each.nbytes for each in stretches.values()) == 408
    assert "strides [1000]" in layouts["a"]["note"]
    assert layouts["b"]["note"] == ""
    assert torch.equal(saved_and_read(wide[:, 7]), wide[:, 7])


def test_the_first_and_last_row_of_large_memory_are_saved_apart() -> None:
    base = torch.randn(100_000, 4)
    stretches, layouts = lay_out({"a": base[0], "b": base[99_999]})
    assert sum(each.nbytes for each in stretches.values()) == 32
    assert "shared memory" in layouts["b"]["note"]
    assert torch.equal(saved_and_read([base[0], base[99_999]])[1], base[99_999])


def test_conjugated_and_negated_views_keep_their_values() -> None:
    z = torch.randn(3, dtype=torch.complex64)
    assert torch.equal(saved_and_read(z.conj()), z.conj())
    assert torch.equal(saved_and_read(z.conj().imag), z.conj().imag)


def test_tensors_that_cannot_be_saved_say_why() -> None:
    found = saved_and_read([torch.zeros(2, device="meta"), torch.eye(3).to_sparse(), torch.ones(1)])
    assert found[0] == Unsaved("torch.Tensor", "a tensor without values (device meta)")
    assert found[1] == Unsaved("torch.Tensor", "a tensor of layout torch.sparse_coo")
    assert found[2] == torch.ones(1)


def test_memory_that_was_given_back_is_not_read() -> None:
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    assert saved_and_read(tensor).reason == "a tensor whose memory has been given back"


def test_parameters_and_what_requires_gradients_are_noted_and_come_back_without_a_graph() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    _, layouts = lay_out({"w": weight, "y": weight * 2, "x": torch.ones(2)})
    assert [layouts[path]["requires_grad"] for path in "wyx"] == [True, True, False]
    assert not saved_and_read(weight).requires_grad


@pytest.mark.parametrize("value", [object(), len, {1, 2}, b"bytes", 1 << 5000, "x" * 3_000_000])
def test_other_values_are_named_by_their_type(value: object) -> None:
    found = saved_and_read([value, 1])
    assert isinstance(found[0], Unsaved)
    assert found[0].type.endswith(type(value).__name__)
    assert found[1] == 1


def test_a_nest_that_holds_itself_or_a_million_numbers_ends() -> None:
    loop: list[Any] = []
    loop.append(loop)
    flatten(loop)
    found = saved_and_read({"long": list(range(1_000_000)), "short": list(range(1000))})
    assert found["long"] == Unsaved("list", "with it there would be more than 20000 values")
    assert found["short"] == list(range(1000))


def test_torch_values_and_named_tuples_come_back() -> None:
    value = (torch.float16, torch.device("cuda:1"), slice(1, None), ..., torch.Size([2, 3]), Pair(1, torch.ones(2)))
    found = saved_and_read(value)
    assert found[:5] == (torch.float16, torch.device("cuda:1"), slice(1, None), ..., (2, 3))
    assert same_bits(found[5], (1, torch.ones(2)))
    assert list(flatten({"out": value}).tensors) == ["out/5/right"]


def test_mapping_keeps_the_types_of_containers() -> None:
    largest = torch.max(torch.ones(2, 2), dim=1)  # one of torch's own tuples
    found = map_tensors(lambda each: each + 1, {"a": Pair([torch.ones(1)], 3), "b": largest})
    assert isinstance(found["a"], Pair)
    assert found["a"].left[0] == 2
    assert type(found["b"]) is type(largest)
    assert torch.equal(found["b"].values, torch.full((2,), 2.0))


def test_a_dict_class_of_ones_own_stays_one() -> None:
    class Output(OrderedDict[str, Any]):
        pass

    output = Output(logits=torch.ones(2))
    assert isinstance(map_tensors(torch.clone, output), Output)
    assert output["logits"] is next(tensors_of(output))


def test_a_snapshot_has_no_graph_and_does_not_follow_its_origin() -> None:
    x = torch.ones(3, requires_grad=True)
    kept = snapshot({"y": x * 2})["y"]
    assert kept.grad_fn is None
    assert not kept.requires_grad
    origin = torch.ones(2)
    copied = snapshot(origin)
    origin.zero_()
    assert torch.equal(copied, torch.ones(2))


def test_bytes_are_counted() -> None:
    assert nbytes((torch.zeros(3, 2), {"a": [torch.zeros(5, dtype=torch.int8), 3]}, torch.zeros(0))) == 29


@given(nests)
def test_every_nest_has_the_bits_of_its_copy(value: Any) -> None:
    assert same_bits(value, copy.deepcopy(value))


def test_equal_nan_payloads_are_the_same_and_others_are_not() -> None:
    quiet, other = (torch.tensor([bits], dtype=torch.int32).view(torch.float32) for bits in (0x7FC00000, 0x7FC00001))
    assert same_bits(quiet, quiet.clone())
    assert not same_bits(quiet, other)
    assert same_bits(float("nan"), float("nan"))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (torch.tensor(0.0), torch.tensor(-0.0)),
        (0.0, -0.0),
        (torch.ones(2), torch.ones(2, 1)),
        (torch.ones(2), torch.ones(2, dtype=torch.float64)),
        ([torch.ones(2)], [torch.ones(2), torch.ones(2)]),
        ({"a": 1}, {"b": 1}),
        (torch.ones(1), 1.0),
        (1, 1.0),
        (True, 1),
        (None, torch.ones(1)),
        (torch.ones(1, device="meta"), torch.ones(1)),
        (torch.ones(1, dtype=torch.complex64), torch.ones(1, dtype=torch.complex64) * 1j),
    ],
)
def test_what_differs_is_not_the_same(left: Any, right: Any) -> None:
    assert not same_bits(left, right)
    assert not same_bits(right, left)


def test_strides_graphs_and_kinds_of_sequence_do_not_matter_to_bits() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    assert same_bits((x.T,), [x.detach().T.contiguous()])
    assert same_bits(x.detach().to_sparse(), x.detach().to_sparse())


def test_objects_whose_comparison_fails_are_not_the_same() -> None:
    class Awkward:
        def __eq__(self, other: object) -> bool:
            raise RuntimeError

        __hash__ = None  # type: ignore[assignment]

    one = Awkward()
    assert same_bits(one, one)
    assert not same_bits(one, Awkward())


def test_rows_that_differ_are_named() -> None:
    right = torch.randn(2, 50, 3)
    left = right.clone()
    left[0, 7, 2] += 1.0
    left[1, 0, 0] = torch.nan
    assert differing_rows(left, right) == (7, 50)
    assert differing_rows((left, left), (right, right)) == (7, 50)
    assert differing_rows(right + 1, right) == tuple(range(16))
    assert differing_rows(right, right.clone()) == ()
    assert differing_rows(right, right.double(), most=2) == (0, 1)


@pytest.mark.parametrize("shape", [(), (3,), (0,), (2, 0), (0, 4), (2, 3, 4), (2, 0, 3)])
def test_rows_are_all_leading_dimensions(shape: tuple[int, ...]) -> None:
    expected = (math.prod(shape[:-1]), shape[-1]) if len(shape) > 1 else (math.prod(shape), 1)
    assert as_rows(torch.zeros(shape)).shape == expected
