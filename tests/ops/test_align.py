"""align starts each row on a boundary, keeps the values, and leaves aligned tensors alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steadysum import align, linear_max_sum
from steadysum.errors import DeviceError, LayoutError, OperandTypeError, RangeError, ShapeError

DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int8, torch.complex128, torch.bool]


@given(
    shape=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    dtype=st.sampled_from(DTYPES),
    alignment=st.sampled_from([16, 64, 256]),
)
def test_every_row_starts_on_a_boundary_and_has_its_values(
    shape: list[int], dtype: torch.dtype, alignment: int
) -> None:
    tensor = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    aligned = align(tensor, alignment)
    assert torch.equal(aligned, tensor)
    assert aligned.dtype == dtype
    if tensor.numel() > 0:
        rows = aligned.flatten(0, -2) if aligned.dim() > 1 else aligned[None]
        assert all(row.data_ptr() % alignment == 0 for row in rows)
        assert rows.shape[1] == 1 or rows.stride(1) == 1


def test_rows_are_padded_for_the_dtypes_size() -> None:
    # the report pads the number of elements: 3 x 20 = 60 fp32 elements to 64, which leaves rows 80 bytes apart
    assert align(torch.ones(3, 20)).stride() == (32, 1)
    assert align(torch.ones(3, 20, dtype=torch.bfloat16)).stride() == (32, 1)
    assert align(torch.ones(3, 20, dtype=torch.float64)).stride() == (24, 1)


def test_an_aligned_tensor_is_returned_itself() -> None:
    once = align(torch.ones(3, 5))
    assert align(once) is once
    assert align(once[1:]) is not once
    assert align(once[:1]).data_ptr() == once.data_ptr()


def test_offset_and_transposed_tensors_are_moved() -> None:
    base = torch.arange(17.0 * 32).view(17, 32)
    for tensor in (base.view(-1)[1 : 1 + 16 * 32].view(16, 32), base[:16].T, base[:, ::2]):
        aligned = align(tensor)
        assert aligned is not tensor
        assert aligned.data_ptr() % 64 == 0
        assert torch.equal(aligned, tensor)


def test_padding_is_zero_and_gradients_flow() -> None:
    weight = torch.ones(2, 5, requires_grad=True)
    aligned = align(weight)
    padded = aligned.detach().as_strided((2, 16), (16, 1))
    assert padded[:, 5:].eq(0).all()
    aligned.sum().backward()
    assert torch.equal(weight.grad, torch.ones(2, 5))


def test_alignment_changes_no_bit_of_native(needs_native: object) -> None:
    generator = torch.Generator().manual_seed(0)
    x, head = torch.randn(5, 37, generator=generator), torch.randn(700, 37, generator=generator)
    assert torch.equal(linear_max_sum(align(x), align(head)).sum_exp, linear_max_sum(x, head).sum_exp)


@pytest.mark.parametrize(
    ("tensor", "alignment", "error", "text"),
    [
        ([1.0], 64, OperandTypeError, "type of tensor: got list; allowed: torch.Tensor"),
        (torch.ones(3), 64.0, OperandTypeError, "type of alignment: got float; allowed: int"),
        (torch.ones(3), True, OperandTypeError, "type of alignment: got bool"),
        (torch.tensor(1.0), 64, ShapeError, r"rank of tensor: got \[\]; allowed: \[..., H\]"),
        (torch.ones(3), 48, RangeError, "alignment: got 48; allowed: a power of two, at least 4 bytes"),
        (torch.ones(3), 0, RangeError, "alignment: got 0"),
        (torch.ones(3, dtype=torch.float64), 4, RangeError, "at least 8 bytes"),
        (torch.ones(3, 3).to_sparse(), 64, LayoutError, "layout of tensor: got torch.sparse_coo"),
        (torch.ones(3, device="meta"), 64, DeviceError, "device of tensor: got meta"),
    ],
)
def test_what_cannot_be_aligned_is_refused(tensor, alignment, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        align(tensor, alignment)
