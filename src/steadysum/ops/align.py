"""align: a copy of a tensor whose rows each start on a 64-byte boundary.

Not here: any need for it. All kernels take any strides and give the same bits; alignment is for speed, and for
accelerators whose cores overwrite each other when two write into one 64-byte line. Padding the *number of elements*
to a multiple of 64, as the field report does, aligns no row but the first.
"""

from __future__ import annotations

import torch
from torch import Tensor

from steadysum.errors import DeviceError, LayoutError, OperandTypeError, RangeError, ShapeError

__all__ = ["align"]


def align(tensor: Tensor, alignment: int = 64) -> Tensor:
    """The same values, each row (last dimension) starting on a boundary of `alignment` bytes.

    Args:
        tensor: [..., H], rank >= 1, dense, of any dtype.
        alignment: bytes; a power of two, at least the size of an element.

    Returns:
        The tensor itself if its rows are contiguous and aligned already; else a view [..., H] of a new buffer whose
        rows are padded with zeros, by the bytes that the dtype's size calls for. Gradients flow through it.

    Raises:
        OperandTypeError, ShapeError, RangeError, LayoutError, DeviceError.

    >>> align(torch.ones(3, 5)).stride()  # 5 fp32 elements take 20 bytes: a row is padded to 64 bytes, 16 elements
    (16, 1)
    >>> align(torch.ones(3, 5, dtype=torch.bfloat16)).stride()
    (32, 1)
    """
    _check(tensor, alignment)
    if _is_aligned(tensor, alignment):
        return tensor
    size = tensor.element_size()
    row = -(-tensor.shape[-1] * size // alignment) * alignment // size  # elements from row to row
    rows = tensor.shape[:-1].numel()
    slack = alignment // size  # the allocator's own alignment is not ours to know
    buffer = torch.zeros(rows * row + slack, dtype=tensor.dtype, device=tensor.device)
    offset = -buffer.data_ptr() % alignment // size
    aligned = buffer[offset : offset + rows * row].view(*tensor.shape[:-1], row)[..., : tensor.shape[-1]]
    return aligned.copy_(tensor)


def _is_aligned(tensor: Tensor, alignment: int) -> bool:
    if tensor.numel() == 0:
        return True
    *leading, last = zip(tensor.shape, tensor.stride(), strict=True)
    steps = [stride for length, stride in leading if length > 1]
    inside = last[0] == 1 or last[1] == 1
    size = tensor.element_size()
    return inside and tensor.data_ptr() % alignment == 0 and all(step * size % alignment == 0 for step in steps)


def _check(tensor: Tensor, alignment: int) -> None:
    if not isinstance(tensor, Tensor):
        raise OperandTypeError("type of tensor", type(tensor).__name__, "torch.Tensor", "Use torch.as_tensor(...).")
    if isinstance(alignment, bool) or not isinstance(alignment, int):
        raise OperandTypeError("type of alignment", type(alignment).__name__, "int", "Pass a number of bytes.")
    if tensor.layout != torch.strided or tensor.is_nested:
        seen = "a nested tensor" if tensor.is_nested else str(tensor.layout)
        raise LayoutError("layout of tensor", seen, "torch.strided", "Use .to_dense(), or pad nested rows.")
    if tensor.device.type == "meta":
        seen = "meta, which holds no values"
        raise DeviceError("device of tensor", seen, "a device that holds values", "Materialise the tensor first.")
    if tensor.dim() == 0:
        raise ShapeError("rank of tensor", "[]", "[..., H], rank >= 1", "A single number has no rows to align.")
    size = tensor.element_size()
    if alignment < size or alignment & (alignment - 1):
        raise RangeError(
            "alignment",
            seen=str(alignment),
            allowed=f"a power of two, at least {size} bytes, the size of an element",
            remedy="A cache line has 64 bytes.",
        )
