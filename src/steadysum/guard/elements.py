"""Two results, element by element: which tensors they hold, how far apart these are, and the worst places.

Not here: what is told of it (comparison.py for people, checks/nearness.py for checks), and distances in ulp themselves
(steadysum/ulps.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from steadysum.guard.tensors import as_rows
from steadysum.ulps import absolute_deviation, ulp_distance

__all__ = [
    "MOST_PLACES",
    "WITH_ULPS",
    "Leaf",
    "Pair",
    "Part",
    "Place",
    "leaves",
    "pairs",
    "parts",
    "places_of",
    "real_rows",
    "ulps",
    "worst_of",
]

MOST_PLACES: Final = 16
WITH_ULPS: Final = (torch.float64, torch.float32, torch.float16, torch.bfloat16)  # from the finest to the coarsest
_AT_ONCE: Final = 1 << 20  # elements that are widened to float64 at a time: 8 MiB
_LEAST: Final = 2.0**-900  # stands for a tolerance of 0 where errors are ranked: they still are, and don't overflow


class Place(NamedTuple):
    """One element of both results."""

    tensor: str  # its path in the results; "value" if they are one tensor
    at: tuple[int, ...]  # its index in the tensor
    actual: float
    expected: float
    error: float
    allowed: float
    over: float  # error over allowed; by this places are ranked
    ulps: int | None  # None: of a dtype in which they aren't counted


class Part(NamedTuple):
    """Some rows [n, C] of one tensor of both results; the two parts of a complex number are two columns."""

    start: int  # the first one's number
    per_element: int  # columns of one element
    actual: Tensor
    expected: Tensor
    error: Tensor  # float64
    allowed: Tensor  # float64
    wrong: Tensor  # bool
    over: Tensor  # float64: error over what is allowed


class Leaf(NamedTuple):
    """A tensor in a nest."""

    name: str  # its path, by the names of fields where there are some; "value" of a tensor alone
    place: tuple[str, ...]  # its path, by numbers: a tuple stands for any NamedTuple
    tensor: Tensor


def leaves(value: Any, name: tuple[str, ...] = (), place: tuple[str, ...] = ()) -> Iterator[Leaf]:
    """Tensors by path; arrays and numbers as tensors. Other things (None, strings) have no accuracy.

    >>> [leaf.name for leaf in leaves({"loss": 1.5, "parts": (torch.zeros(2), None)})]
    ['loss', 'parts/0']
    """
    tensor = _as_tensor(value)
    if tensor is not None:
        yield Leaf("/".join(name) or "value", place, tensor)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, (*name, str(key)), (*place, str(key)))
    elif isinstance(value, (tuple, list)):
        for number, item in enumerate(value):
            own = value._fields[number] if hasattr(value, "_fields") else str(number)
            yield from leaves(item, (*name, own), (*place, str(number)))


def _as_tensor(value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, (np.ndarray, np.generic)):
        return torch.as_tensor(np.asarray(value))
    if isinstance(value, (bool, int, float, complex)):
        return torch.tensor(value, dtype={float: torch.float64, complex: torch.complex128}.get(type(value)))
    return None


class Pair(NamedTuple):
    """The tensors in one place of two nests."""

    name: str  # in the first
    actual: Tensor
    expected: Tensor


def pairs(actual: Any, expected: Any) -> list[Pair] | str:
    """The tensors of two nests, place by place; or what each holds, where that isn't the same.

    >>> pairs((1.0, 2.0), {"loss": 1.0})
    '0, 1 and loss'
    """
    left, right = list(leaves(actual)), list(leaves(expected))
    by_place = {leaf.place: leaf.tensor for leaf in right}
    if not left or {leaf.place for leaf in left} != by_place.keys():
        return " and ".join(", ".join(leaf.name for leaf in each) or "none" for each in (left, right))
    return [Pair(leaf.name, leaf.tensor, by_place[leaf.place]) for leaf in left]


def parts(actual: Tensor, expected: Tensor, rtol: float, atol: float) -> Iterator[Part]:
    """The rows of two tensors of one shape, some at a time, with their errors.

    An element is right if |actual - expected| <= atol + rtol |expected|; NaN equals NaN, and an infinity itself.
    Integers and booleans have to be equal.
    """
    left, right = as_rows(actual), as_rows(expected)
    is_exact = not any(tensor.is_floating_point() or tensor.is_complex() for tensor in (left, right))
    step = max(1, _AT_ONCE // max(left.shape[1], 1))
    for start in range(0, left.shape[0], step):
        one, other = real_rows(left[start : start + step]), real_rows(right[start : start + step])
        error = absolute_deviation(one, other)
        allowed = torch.zeros_like(error) if is_exact else atol + rtol * other.double().abs()
        if is_exact:  # among them large ones that float64 can't tell apart
            error = torch.where(one == other, 0.0, error.clamp(min=1.0))
        is_right = (error == 0) | ((error <= allowed) & error.isfinite())
        # What an infinity would allow is no measure: nothing but itself is right. The same goes for NaN.
        over = error / allowed.nan_to_num(nan=0.0, posinf=0.0).clamp(min=_LEAST)
        per_element = one.shape[1] // left.shape[1] if left.shape[1] else 1
        yield Part(start, per_element, one, other, error, allowed, ~is_right, over)


def real_rows(rows: Tensor) -> Tensor:  # [n, C], of complex numbers [n, 2 C]
    """Real numbers on the CPU, which has float64."""
    rows = rows.cpu().resolve_conj().resolve_neg()
    return torch.view_as_real(rows).flatten(1) if rows.is_complex() else rows


def ulps(actual: Tensor, expected: Tensor) -> Tensor:  # int64
    """Distances in the coarser dtype of the two; of integers their difference."""
    dtypes = [tensor.dtype for tensor in (actual, expected) if tensor.is_floating_point()]
    if not dtypes:
        return (actual.to(torch.int64) - expected.to(torch.int64)).abs()
    coarser = max(dtypes, key=WITH_ULPS.index)
    return ulp_distance(actual.to(coarser), expected.to(coarser))


def places_of(name: str, shape: torch.Size, part: Part, most: int = MOST_PLACES) -> list[Place]:
    """The worst elements of some rows."""
    over = part.over.flatten()
    found = []
    for flat in torch.topk(over, min(most, over.numel())).indices.tolist():
        row, column = divmod(flat, part.over.shape[1])
        one, other = part.actual[row, column], part.expected[row, column]
        is_counted = all(each.dtype in WITH_ULPS or not each.is_floating_point() for each in (one, other))
        found.append(
            Place(
                name,
                _index(part.start + row, column // part.per_element, shape),
                float(one),
                float(other),
                float(part.error[row, column]),
                float(part.allowed[row, column]),
                float(over[flat]),
                int(ulps(one[None], other[None])) if is_counted else None,
            )
        )
    return found


def worst_of(places: Iterable[Place]) -> tuple[Place, ...]:
    """The worst places, at most 16, the worst one first."""
    return tuple(sorted(places, key=lambda place: (-place.over, -place.error, place.at))[:MOST_PLACES])


def _index(row: int, column: int, shape: torch.Size) -> tuple[int, ...]:
    """The place in the tensor of an element of its rows."""
    if len(shape) < 2:
        return (row,)[: len(shape)]
    index = [column]
    for size in reversed(shape[:-1]):
        row, place = divmod(row, size)
        index.append(place)
    return tuple(reversed(index))
