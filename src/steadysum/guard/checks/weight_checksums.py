"""Sums of a weight's rows, segment by segment, with two weights each; kept for as long as the weight is the same.

A weight is the same if it is the same tensor (or a view of the same one, at the same place) in the same version. Writes
that torch doesn't count (through .data, NumPy, another process) make kept sums stale: whoever finds a mismatch takes
`fresh` ones before believing it. Rows that were left out for a NaN or an infinity match anything: one such element of
each is looked at again whenever kept sums are asked for. Not here: what is compared with them (checksum.py).
"""

from __future__ import annotations

import math
import warnings
from collections import OrderedDict
from threading import Lock
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from steadysum.tiling import segments

__all__ = ["ORDINARY", "WeightChecksums", "fresh", "kept_or_fresh", "mention_changed_weight", "positions_in"]

_KEPT: Final = 4  # per tensor: views of one storage, such as q, k and v of one projection
_AT_ONCE: Final = 1 << 20  # elements of a weight that are widened to float64 at a time: 8 MiB
# Norms between which fp32 sums of squares neither overflow nor lose what counts: (2^28 2^28)^2 times 2^14 elements is
# below 2^128.
ORDINARY: Final = (2.0**-28, 2.0**28)


class WeightChecksums(NamedTuple):
    """Of a weight [V, K], rounded to its operand dtype, cut into B segments of its rows."""

    segments: tuple[range, ...]  # B
    positions: Tensor  # float64 [V]: the second weight of each row, by its place in its segment
    sums: Tensor  # float64 [K, 2 B]: per segment the sum of its rows; then the same, weighted by positions
    narrow: Tensor  # fp32 [K, 2 B], the same
    squares: Tensor  # float64 [B]: the sum of the squares of all of a segment's elements
    sum_squares: Tensor  # float64 [2 B]: of each column of sums
    is_finite: Tensor | None  # [V], rows of the weight without NaN and infinity; None: all
    odd: tuple[Tensor, Tensor] | None  # of the other rows: their numbers, and a column each with NaN or an infinity
    is_ordinary: bool  # whether fp32 will do
    largest: float  # no element is larger in size


def positions_in(cut: tuple[range, ...], device: torch.device) -> Tensor:  # float64 [V]
    """The second weight of each row: in each segment from -1 to 1 in equal steps, so that a swap of two shows.

    >>> positions_in((range(0, 3), range(3, 5)), torch.device("cpu"))
    tensor([-0.6667,  0.0000,  0.6667, -0.5000,  0.5000], dtype=torch.float64)
    """
    width = len(cut[0])
    rows = torch.arange(cut[-1].stop, device=device)
    sizes = torch.full_like(rows, width)
    sizes[cut[-1].start :] = len(cut[-1])  # the last may be shorter
    return (2 * (rows % width) + 1 - sizes).double() / sizes


def fresh(weight: Tensor, dtype: torch.dtype) -> WeightChecksums:
    """The sums, computed now and kept for later calls.

    Args:
        weight: [V, K], V >= 1. dtype: what its elements are rounded to before they are multiplied.
    """
    found = _computed(weight.detach(), dtype)
    base = _base(weight)
    with _lock:
        if base not in _kept:
            _kept[base] = OrderedDict()
        of_base = _kept[base]
        of_base[_key(weight, dtype)] = found
        while len(of_base) > _KEPT:
            of_base.popitem(last=False)
    return found


def kept_or_fresh(weight: Tensor, dtype: torch.dtype) -> tuple[WeightChecksums, bool]:
    """The sums kept for this weight in this version, or fresh ones; and whether they were kept."""
    with _lock:
        base = _base(weight)
        found = _kept[base].get(_key(weight, dtype)) if base in _kept else None
    if found is None:
        return fresh(weight, dtype), False
    if found.odd is not None and bool(weight.detach()[found.odd].to(dtype).isfinite().any()):
        mention_changed_weight()
        return fresh(weight, dtype), False
    return found, True


def mention_changed_weight() -> None:
    """Warn, once, that a weight isn't what its version says."""
    global _was_mentioned
    if not _was_mentioned:
        _was_mentioned = True
        warnings.warn(
            "a linear layer's weight has changed though its version has not, so its checksums were taken again: it was "
            "written through .data or under inference_mode, or its memory is damaged; a checksum can't tell which. "
            "This is said once.",
            UserWarning,
            stacklevel=2,
        )


_lock = Lock()
_was_mentioned = False
_kept: WeakIdKeyDictionary = WeakIdKeyDictionary()  # tensor -> {key: WeightChecksums}


def _base(weight: Tensor) -> Tensor:
    """The tensor that views are views of: x.T is another object in every call."""
    return weight if weight._base is None else weight._base


def _key(weight: Tensor, dtype: torch.dtype) -> tuple[Any, ...]:
    version = -1 if weight.is_inference() else weight._version  # inference tensors count no versions
    return version, weight.data_ptr(), tuple(weight.shape), weight.stride(), weight.dtype, weight.device, dtype


def _computed(
    weight: Tensor,  # [V, K], V >= 1
    dtype: torch.dtype,
) -> WeightChecksums:
    rows, hidden = weight.shape
    cut = segments(rows)
    step = max(1, _AT_ONCE // max(hidden, 1))
    places = positions_in(cut, weight.device)
    plain, placed, squares = [], [], []
    finite: list[Tensor] = []
    odd: list[Tensor] = []  # [n, 2] each
    for segment in cut:
        total = torch.zeros(2, hidden, dtype=torch.float64, device=weight.device)
        square = torch.zeros((), dtype=torch.float64, device=weight.device)
        for start in range(segment.start, segment.stop, step):
            stop = min(start + step, segment.stop)
            wide = weight[start:stop].to(dtype).double()
            square_of_rows = wide.square().sum(dim=1)
            is_finite = square_of_rows.isfinite()
            if not bool(is_finite.all()):
                elements = wide.isfinite()
                is_finite = elements.all(dim=1)  # squares of fp64 may overflow by themselves
                bad = (~is_finite).nonzero().flatten()
                if len(bad):
                    odd.append(torch.stack((bad + start, (~elements[bad]).byte().argmax(dim=1)), dim=1))
                wide = wide.masked_fill(~is_finite[:, None], 0.0)
                square_of_rows = wide.square().sum(dim=1)
            place = places[start:stop]
            total += torch.stack((torch.ones_like(place), place)) @ wide
            square += square_of_rows.sum()
            finite.append(is_finite)
        plain.append(total[0])
        placed.append(total[1])
        squares.append(square)
    sums = torch.stack((*plain, *placed), dim=1)
    is_finite = torch.cat(finite)
    all_squares = torch.stack(squares)
    norms = all_squares.sqrt().tolist()
    low, high = ORDINARY
    return WeightChecksums(
        segments=cut,
        positions=places,
        sums=sums,
        narrow=sums.float(),
        squares=all_squares,
        sum_squares=sums.square().sum(dim=0),
        is_finite=None if bool(is_finite.all()) else is_finite,
        odd=None if not odd else (torch.cat(odd)[:, 0], torch.cat(odd)[:, 1]),
        is_ordinary=all(norm == 0.0 or low <= norm <= high for norm in norms),
        largest=math.sqrt(float(all_squares.max())),
    )
