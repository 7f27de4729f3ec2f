"""Attribution: whose fault it was that a result failed its checks, from what the reruns and the fallback gave.

    transient     a rerun was right
    persistent    reruns were wrong again, and another kernel or device was right
    application   all agree with the first result, against the check: the inputs, or the check itself
    undecided     none of these, with the reason

Not here: the runs (healing.py).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

import torch
from torch import Tensor

from steadysum.guard.checks.protocol import Finding
from steadysum.guard.tensors import as_rows, differing_rows, same_bits, tensors_of

__all__ = ["RANDOM", "Attribution", "Result", "Verdict", "agree", "agree_where_right", "attribute"]

Attribution = Literal["transient", "persistent", "application", "undecided"]

MOST_ROWS: Final = 16  # that a finding names
RANDOM: Final = (
    "runs differ from each other where no check objects: it draws random numbers that can't be put back, or reads what "
    "changes"
)


class Result(NamedTuple):
    """One run's output, outside of any graph, and what failed of it."""

    output: Any
    findings: tuple[Finding, ...]  # those that object; empty: it passed

    @property
    def passed(self) -> bool:
        """Whether no check objects."""
        return not self.findings


class Verdict(NamedTuple):
    """Whose fault it was."""

    attribution: Attribution
    reason: str  # a sentence for people
    rows: tuple[int, ...] = ()  # rows of the output at fault, at most 16, ascending


def attribute(
    first: Result,
    reruns: Sequence[Result],
    fallback: Result | None,
    refusal: str | None,
    ended: str | None = None,
    no_fallback: str = "there is no fallback to compare with",
) -> Verdict:
    """Decides.

    Args:
        first: the call's own result.
        reruns: in order; one before the last can only have passed without being taken.
        fallback: by another kernel, device or callable, if there was one.
        refusal: why there were no reruns, or no more of them.
        ended: what a rerun ended with in place of a result.
        no_fallback: why there is no result of the fallback.
    """
    rows = _rows_of(first.findings)
    if first.passed:
        return Verdict("undecided", "it was right here, and wrong on another rank")
    if refusal == RANDOM:
        return Verdict("undecided", RANDOM, rows)
    if ended is not None:
        return Verdict("undecided", f"a rerun gave no result: {ended}", rows)
    if reruns and reruns[-1].passed:
        return Verdict("transient", "a rerun was right", rows or differing_rows(first.output, reruns[-1].output))
    if fallback is not None and fallback.passed:
        rows = rows or differing_rows(first.output, fallback.output)
    if refusal is not None:
        return Verdict("undecided", f"it was not run again: {refusal}", rows)
    if not reruns:
        return Verdict("undecided", "it was not run again: max_retries is 0", rows)
    results = [first, *reruns]
    if _differ_where_right(results):
        return Verdict("undecided", RANDOM, rows)
    if fallback is not None and fallback.passed:
        return Verdict("persistent", "reruns were wrong again, and the fallback was right", rows)
    if _differ_all_over(results):
        return Verdict("undecided", f"reruns were wrong too, in most elements in another way: {RANDOM}", rows)
    outputs = [result.output for result in (*reruns, *([] if fallback is None else [fallback]))]
    agreeing = all(agree(first.output, output) for output in outputs)
    if fallback is None:
        told = "gave the same" if agreeing else "differ from each other"
        return Verdict("undecided", f"reruns {told}, and {no_fallback}", rows)
    if agreeing:
        return Verdict("application", "reruns and the fallback agree with the first result, against the check", rows)
    return Verdict("undecided", "reruns and the fallback were wrong too, and differ from each other", rows)


def agree(one: Any, other: Any) -> bool:
    """Whether two results are the same up to what another order of summation would change.

    Each tensor may differ by the square root of its dtype's eps, relative to its largest finite value; NaN and
    infinities must be in the same places. That is no bound of rounding, but far above what another order changes, and
    far below a fault that anybody would care about.

    >>> agree(torch.tensor([1.0, torch.nan]), torch.tensor([1.0001, torch.nan]))
    True
    >>> agree(torch.tensor([1.0]), torch.tensor([1.1]))
    False
    """
    ones, others = list(tensors_of(one)), list(tensors_of(other))
    if not ones or len(ones) != len(others):
        return same_bits(one, other)
    return all(_near(left, right) for left, right in zip(ones, others, strict=True))


def agree_where_right(first: Result, passing: Result) -> bool:
    """Whether two results agree in the rows that no check objected to; False if there are none, or none are known."""
    rows = set(_rows_of(first.findings))
    if not any(set(range(min(as_rows(each).shape[0], MOST_ROWS))) - rows for each in tensors_of(first.output)):
        return False  # every row was objected to: nothing is left that could agree
    return 0 < len(rows) < MOST_ROWS and _agree_outside(first.output, passing.output, rows)


def _near(left: Tensor, right: Tensor) -> bool:
    if left.shape != right.shape:
        return False
    if not (left.is_floating_point() or left.is_complex()) or left.numel() == 0:
        return same_bits(left, right)
    eps = max(torch.finfo(left.dtype).eps, torch.finfo(right.dtype).eps)
    wide = torch.complex128 if left.is_complex() else torch.float64
    a, b = (tensor.detach().cpu().to(wide) for tensor in (left, right))
    size = a.abs()
    largest = float(size[size.isfinite()].max()) if bool(size.isfinite().any()) else 0.0
    return torch.allclose(a, b, rtol=0.0, atol=math.sqrt(eps) * largest, equal_nan=True)


def _differ_where_right(results: Sequence[Result]) -> bool:
    """Whether every run differs from the one before in rows that no check complains of: no fault explains that."""
    bad: set[int] = set()
    for result in results:
        rows = _rows_of(result.findings)
        if len(rows) >= MOST_ROWS or not rows:  # there may be more than are named, or none was named
            return False
        bad.update(rows)
    return len(results) > 2 and not any(
        _agree_outside(one.output, other.output, bad) for one, other in itertools.pairwise(results)
    )


def _differ_all_over(results: Sequence[Result]) -> bool:
    """Whether every run differs from the one before in most elements: a fault that comes back damages the same ones."""
    return len(results) > 2 and all(
        _mostly_different(one.output, other.output) for one, other in itertools.pairwise(results)
    )


def _mostly_different(one: Any, other: Any) -> bool:
    for left, right in zip(tensors_of(one), tensors_of(other), strict=False):
        if left.shape != right.shape:
            return True
        if left.numel() == 0 or not left.is_floating_point():
            continue
        allowed = math.sqrt(torch.finfo(left.dtype).eps) * left.abs().nan_to_num(posinf=0.0).max()
        different = ~((left - right).abs() <= allowed) & ~(left.isnan() & right.isnan())
        if float(different.float().mean()) >= 0.5:
            return True
    return False


def _agree_outside(one: Any, other: Any, rows: set[int]) -> bool:
    for left, right in zip(tensors_of(one), tensors_of(other), strict=False):
        if left.shape != right.shape:
            return False
        kept = [row for row in range(as_rows(left).shape[0]) if row not in rows]
        if not _near(as_rows(left)[kept], as_rows(right)[kept]):
            return False
    return True


def _rows_of(findings: tuple[Finding, ...]) -> tuple[int, ...]:
    return tuple(sorted({row for finding in findings for row in finding.rows})[:MOST_ROWS])
