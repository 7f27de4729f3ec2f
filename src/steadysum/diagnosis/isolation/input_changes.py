"""Conditions that change what the operator is called with: other numbers, other addresses, other strides.

Each takes a call and gives another; tensors are copied, never changed. Not here: changes of the batch (ways.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor

from steadysum.diagnosis.isolation.arranged import Acted
from steadysum.diagnosis.isolation.inputs import Call
from steadysum.guard.tensors import map_tensors

__all__ = ["exact", "float64", "misaligned", "other_values", "strided"]

_LINE: Final = 64  # bytes: torch's CPU allocator aligns to them, vector instructions need no more
_LARGEST: Final = 3  # of small integers: sums of 2^20 products of two stay below 2^24, where fp32 is exact


def exact(call: Call, values: Mapping[str, Any], acted: Acted) -> Call:
    """Small integers in place of floating-point numbers: every order of summation gives the same bits.

    In fp32 that holds for up to 2^24 / 9 = 1.8 million products in a sum, in fp16 for 227, in bf16 for 28.
    """
    generator = torch.Generator().manual_seed(int(values.get("seed", 0)))

    def drawn(one: Tensor) -> Tensor:
        return torch.randint(-_LARGEST, _LARGEST + 1, one.shape, generator=generator).to(one.device, one.dtype)

    return _changed(call, acted, drawn)


def float64(call: Call, values: Mapping[str, Any], acted: Acted) -> Call:  # noqa: ARG001 - of all changes alike
    """The same numbers in float64: the reference."""
    return _changed(call, acted, lambda one: one.detach().to(torch.float64))


def misaligned(call: Call, values: Mapping[str, Any], acted: Acted) -> Call:
    """The same numbers `elements` behind an address that is a multiple of 64 bytes."""
    elements = int(values.get("elements", 1))

    def moved(one: Tensor) -> Tensor:
        size = one.element_size()
        room = torch.empty(one.numel() + elements + _LINE // size, dtype=one.dtype, device=one.device)
        to_line = -room.data_ptr() % _LINE // size
        view = room[to_line + elements : to_line + elements + one.numel()].view(one.shape)
        return view.copy_(one.detach())

    return _changed(call, acted, moved, lambda one: one.data_ptr() % _LINE == elements * one.element_size() % _LINE)


def strided(call: Call, values: Mapping[str, Any], acted: Acted) -> Call:
    """The same numbers in rows that are `padding` elements longer than they need be."""
    padding = int(values.get("padding", 1))

    def padded(one: Tensor) -> Tensor:
        if one.ndim < 2:
            return one
        room = torch.empty(*one.shape[:-1], one.shape[-1] + padding, dtype=one.dtype, device=one.device)
        return room[..., : one.shape[-1]].copy_(one.detach())

    return _changed(call, acted, padded, lambda one: not one.is_contiguous())


def other_values(call: Call) -> Call:
    """Arguments of the same shapes with other values, valid where the first ones are: for a caller that disturbs.

    >>> other_values(Call((torch.tensor([1.0, 2.0]), torch.tensor([0, 5])), {}, "")).args
    (tensor([4., 2.]), tensor([5, 0]))
    """

    def other(one: Tensor) -> Tensor:
        flipped = one.detach().flip(0) if one.ndim else one.detach().clone()
        return flipped * 2 if one.is_floating_point() else flipped  # integers may be indices: only their order changes

    return Call(map_tensors(other, call.args), map_tensors(other, call.kwargs), call.source)


def _changed(
    call: Call,
    acted: Acted,
    change: Callable[[Tensor], Tensor],
    did: Callable[[Tensor], bool] = lambda _: True,
) -> Call:
    """The call with its floating-point tensors changed, those counted that show it."""

    def one(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point() or tensor.numel() == 0:
            return tensor
        made = change(tensor)
        acted.add(int(did(made)))
        return made.requires_grad_(tensor.requires_grad)

    return Call(map_tensors(one, call.args), map_tensors(one, call.kwargs), call.source)
