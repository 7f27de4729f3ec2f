"""Kept outputs against a reference: is the difference rounding?

The bound has no knowledge of the operator: it is for telling a wrong result from a rounded one, not for accuracy. Not
here: where and how bits differ (outline.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from steadysum.diagnosis.isolation.kept import Outputs, read_outputs

__all__ = ["bound", "error", "nearest", "read_all", "rounded_like"]

_MOST_READ: Final = 16
_SPARE: Final = 16.0  # conditioning of what isn't a sum: exp of numbers up to 16, quotients of sums


def read_all(paths: Sequence[Path]) -> list[Outputs]:
    """Some of the kept outputs, from their files."""
    return [read_outputs(path) for path in paths[:_MOST_READ]]


def error(outputs: Outputs, reference: Outputs) -> float:
    """The largest error, over the largest finite magnitude of the reference's tensor; inf where they can't be compared.

    A NaN or infinity where the reference has a finite number is an infinite error; the same one in both is none.
    """
    if list(outputs.tensors) != list(reference.tensors):
        return math.inf
    return max((_error(one, reference.tensors[name]) for name, one in outputs.tensors.items()), default=0.0)


def bound(outputs: Outputs, inputs: Sequence[Any]) -> float:
    """The relative error that rounding explains, for sums of as many terms as the inputs have along a dimension.

    Args:
        outputs: of a run, for their precision.
        inputs: (dtype, shape, device) of each tensor among the arguments, as a supervisor tells them.

    Source: random rounding errors of a sum of K terms grow as sqrt(K) (Higham and Mary, SIAM J. Sci. Comput. 41, 2019).
    """
    dtypes = [one.dtype for one in outputs.tensors.values() if one.is_floating_point()]
    dtypes += [named for name, *_ in inputs if (named := getattr(torch, name)).is_floating_point]
    coarsest = max((torch.finfo(dtype).eps for dtype in dtypes), default=0.0)
    longest = max((size for _, shape, *_ in inputs for size in shape), default=1)
    return _SPARE * coarsest * math.sqrt(max(1, longest))


def nearest(candidates: Sequence[Outputs], reference: Outputs) -> tuple[int, float]:
    """The place of the candidate with the least error, and that error."""
    errors = [error(one, reference) for one in candidates]
    place = min(range(len(errors)), key=errors.__getitem__)
    return place, errors[place]


def rounded_like(reference: Outputs, like: Outputs) -> Outputs:
    """The reference in the dtypes of the outputs, so that their bits can be compared."""
    tensors = {
        name: one.to(like.tensors[name].dtype) if name in like.tensors else one
        for name, one in reference.tensors.items()
    }
    return Outputs(tensors, like.rest)


def _error(one: Tensor, reference: Tensor) -> float:
    if one.shape != reference.shape:
        return math.inf
    if one.numel() == 0:
        return 0.0
    wide = torch.complex128 if one.is_complex() or reference.is_complex() else torch.float64
    left, right = one.to(wide), reference.to(wide)
    apart = (left - right).abs()
    apart = torch.where((left == right) | (left.isnan() & right.isnan()), 0.0, apart)
    if bool(apart.isnan().any()) or bool(apart.isinf().any()):
        return math.inf
    finite = right[right.isfinite()].abs()
    scale = float(finite.max()) if finite.numel() else 0.0
    largest = float(apart.max())
    return 0.0 if largest == 0.0 else largest / scale if scale > 0.0 else math.inf
