"""How much outputs differ from the right one: elements, rows, distances. Names no pattern."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from steadysum.diagnosis.isolation.kept import Outputs
from steadysum.diagnosis.records import Pattern
from steadysum.ulps import NAN_ULPS, absolute_deviation, ulp_distance

__all__ = ["outline"]

_MOST_ROWS: Final = 64
_WITH_ULPS: Final = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def outline(right: Outputs, deviating: Sequence[Outputs]) -> Pattern | None:
    """The numbers of a pattern, of the output that differs most often; None: no tensor differs, or none is like it."""
    found = [
        (name, one, [other.tensors[name] for other in deviating if _is_like(one, other.tensors.get(name))])
        for name, one in right.tensors.items()
    ]
    patterns = [_of(name, one, others) for name, one, others in found if others]
    return max((one for one in patterns if one.elements), key=lambda one: one.elements, default=None)


def _is_like(one: Tensor, other: Tensor | None) -> bool:
    return other is not None and other.shape == one.shape and other.dtype == one.dtype


def _of(name: str, right: Tensor, others: Sequence[Tensor]) -> Pattern:
    masks = [(other != right) & ~(other.isnan() & right.isnan()) for other in others]  # [*shape] each
    touched = [_rows(mask) for mask in masks]
    rows = sorted(set().union(*touched))
    errors = [0.0 if right.is_complex() else _largest(absolute_deviation(other, right)) for other in others]
    ulps = [
        int(ulp_distance(other, right).max()) if right.dtype in _WITH_ULPS and right.numel() else 0 for other in others
    ]
    finite = right[right.isfinite()].abs()
    scale = float(finite.max()) if finite.numel() else 0.0
    facts = {"nan"} if any(ulp == NAN_ULPS for ulp in ulps) else set()
    return Pattern(
        output=name,
        shape=tuple(right.shape),
        dtype=str(right.dtype).removeprefix("torch."),
        runs=len(others),
        elements=max(int(mask.sum()) for mask in masks),
        rows=tuple(rows[:_MOST_ROWS]),
        rows_touched=max(map(len, touched)),
        largest_ulp=max(ulps),
        largest_error=max(errors),
        relative_error=max(errors) / scale if scale > 0.0 else max(errors),
        facts=frozenset(facts),
    )


def _rows(mask: Tensor) -> set[int]:
    if mask.ndim == 0:
        return {0} if bool(mask) else set()
    return set(mask.reshape(mask.shape[0], -1).any(1).nonzero().flatten().tolist())


def _largest(apart: Tensor) -> float:
    return float(apart.max()) if apart.numel() else 0.0
