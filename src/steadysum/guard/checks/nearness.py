"""A finding on a result that has to be near another one: what Redundant and Reference say.

Not here: how far apart elements are (guard/elements.py), and a comparison for people (guard/comparison.py).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from steadysum.guard.checks.protocol import Finding
from steadysum.guard.elements import MOST_PLACES, pairs, parts, places_of, worst_of

__all__ = ["first_difference"]


def first_difference(check: str, output: Any, expected: Any, rtol: float, atol: float) -> Finding:
    """The first tensor of the output with elements that are off, its rows and places.

    Args:
        check: the check's name.
        output, expected: tensors, numbers, or nests of them. Other places, or shapes, are a difference.
        rtol, atol: |output - expected| <= atol + rtol |expected|; integers have to be equal.

    Returns:
        The finding; `measured` is the error of the element that is the farthest beyond, or the nearest to, its limit.
    """
    found = pairs(output, expected)
    if isinstance(found, str):
        return Finding(check, passed=False, summary=f"the output and what it should be hold different tensors: {found}")
    nearest = Finding(check, passed=True)
    over = -1.0
    for name, actual, right in found:
        if actual.shape != right.shape:
            summary = f"{name} has the shape {list(actual.shape)}, and should have {list(right.shape)}"
            return Finding(check, passed=False, summary=summary)
        finding, of_tensor = _difference(check, name, actual, right, rtol, atol)
        if not finding.passed:
            return finding
        if of_tensor > over:
            nearest, over = finding, of_tensor
    return nearest


def _difference(
    check: str, name: str, actual: Tensor, expected: Tensor, rtol: float, atol: float
) -> tuple[Finding, float]:
    """The finding on one tensor, and its largest error over what is allowed."""
    count, wrong_rows = 0, 0
    rows: list[int] = []
    wrong: list[tuple[int, int]] = []
    places = worst_of(())
    for part in parts(actual, expected, rtol, atol):
        bad = torch.unflatten(part.wrong, 1, (-1, part.per_element)).any(dim=2)
        in_rows = bad.any(dim=1).nonzero().flatten()
        count, wrong_rows = count + int(bad.sum()), wrong_rows + len(in_rows)
        rows += (part.start + in_rows[: MOST_PLACES - len(rows)]).tolist()
        found = bad.nonzero()[: MOST_PLACES - len(wrong)].tolist() if len(in_rows) else []
        wrong += [(part.start + row, column) for row, column in found]
        places = worst_of((*places, *places_of(name, actual.shape, part, 1)))
    if not places:
        return Finding(check, passed=True), -1.0
    worst = places[0]
    if not count:
        return Finding(check, passed=True, measured=worst.error, allowed=worst.allowed), worst.over
    finding = Finding(
        check,
        passed=False,
        summary=f"{count} of {actual.numel()} elements of {name} are off, in {wrong_rows} rows; the worst, at "
        f"{list(worst.at)}, is {worst.actual:.9g}, and should be {worst.expected:.9g} within {worst.allowed:.3g}",
        rows=tuple(rows),
        places=tuple(wrong),
        measured=worst.error,
        allowed=worst.allowed,
    )
    return finding, worst.over
