"""SampledRows: some rows of a result, drawn at random, computed once more in float64 on the CPU.

Not here: the bounds that they are held to (rounding.py for products, exact_statistics.py for this package's operators).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from random import SystemRandom
from typing import Any, Final, NamedTuple

import torch

from steadysum.errors import RangeError
from steadysum.guard.checks.calls import LinearProduct, Operands, linear_product
from steadysum.guard.checks.exact_statistics import exact_results
from steadysum.guard.checks.logits import LogitCall, logit_call
from steadysum.guard.checks.protocol import Finding, Made
from steadysum.guard.checks.rounding import judge_elements, units_of
from steadysum.kernels.autocast import without_autocast

__all__ = ["SampledRows"]

MOST_PLACES: Final = 16
_AT_ONCE: Final = 1 << 20  # elements of a weight that are widened to float64 at a time: 8 MiB

# Seeded by the operating system at each draw: the random states of torch, numpy and Python stay as they are, and
# processes after a fork draw different rows.
_random: Final = SystemRandom()


@dataclass(frozen=True)
class SampledRows:
    """Computes some rows again, and holds each of their elements to the bound of rounding errors.

    It sees what no checksum does: faults after the product, in exp and in sums. A fault in one row of N is seen with
    the chance rows / N, one in all rows always. The cost is that of reading the weight and widening it, for any number
    of rows that is small. Once a row was found wrong, it is looked at again in the thread's next results, until one
    passes: a rerun isn't believed for having been drawn elsewhere.

    Known are linear products, and this package's operators, but for losses that are added up, and have no rows.

    Args:
        rows: how many, at least 1.
        operands: for other callables than linear_product knows: (made) -> (input, weight, bias).

    Raises:
        RangeError: rows.

    >>> x, w = torch.ones(2, 3), torch.ones(4, 3)
    >>> SampledRows(rows=2).judge(Made(torch.nn.functional.linear, (x, w), {}, torch.full((2, 4), 3.5))).rows
    (0, 1)
    """

    rows: int = 4
    operands: Operands | None = None

    def __post_init__(self) -> None:
        given: Any = self.rows
        if isinstance(given, bool) or not isinstance(given, int) or given < 1:
            raise RangeError("rows", repr(given), "a whole number of at least 1", "The default is 4.")

    @property
    def name(self) -> str:
        """sampled_rows."""
        return "sampled_rows"

    def fits(self, made: Made) -> str | None:
        """A linear product, or an operator of this package whose output has rows."""
        found = self._subject(made)
        return found if isinstance(found, str) else None

    def judge(self, made: Made) -> Finding:
        """`measured` and `allowed`: the error of the worst element, and its bound."""
        subject = self._subject(made)
        if isinstance(subject, str):
            return Finding(self.name, passed=False, summary=f"the check doesn't fit: {subject}")
        total = subject.input.shape[0]
        suspects = _suspects()
        again = [row for row in suspects.get(self, ()) if row < total]
        drawn = sorted({*_random.sample(range(total), min(self.rows, total)), *again})
        with torch.no_grad(), without_autocast(subject.input.device.type):
            if isinstance(subject, LinearProduct):
                faults = _of_product(subject, drawn)
            else:
                faults = _of_operator(made, subject, drawn)
        if not faults:
            suspects.pop(self, None)
            return Finding(self.name, passed=True)
        rows = tuple(sorted({fault.row for fault in faults}))[:MOST_PLACES]
        suspects[self] = rows
        worst = max(faults, key=lambda fault: fault.error / fault.allowed if fault.error == fault.error else torch.inf)
        return Finding(
            self.name,
            passed=False,
            summary=f"{worst.what} of row {worst.row} is {worst.seen:.9g} where float64 gives {worst.exact:.9g}: off "
            f"by {worst.error:.3g}, where rounding explains {worst.allowed:.3g}; {len(rows)} of {len(drawn)} rows that "
            f"were computed again, of {total}, are wrong",
            rows=rows,
            places=tuple((fault.row, fault.column) for fault in faults if fault.column is not None)[:MOST_PLACES],
            measured=worst.error,
            allowed=worst.allowed,
        )

    def _subject(self, made: Made) -> LinearProduct | LogitCall | str:
        product = linear_product(made, self.operands)
        if not isinstance(product, str) or self.operands is not None:
            return product
        call = logit_call(made)
        if isinstance(call, str):
            return f"{product}, and {call}"
        found = exact_results(made, call, [])
        return found if isinstance(found, str) else call


class _Fault(NamedTuple):
    what: str
    row: int
    column: int | None
    seen: float
    exact: float
    error: float
    allowed: float


_local = threading.local()


def _suspects() -> dict[SampledRows, tuple[int, ...]]:
    """Of this thread: the rows that a check has found wrong in the last result."""
    if not hasattr(_local, "rows"):
        _local.rows = {}
    found: dict[SampledRows, tuple[int, ...]] = _local.rows
    return found


def _of_product(product: LinearProduct, drawn: list[int]) -> list[_Fault]:
    units = units_of(product)
    x = product.input[drawn].to(product.operand_dtype).cpu()
    faults = []
    step = max(1, _AT_ONCE // max(product.weight.shape[1], 1))
    for start in range(0, product.weight.shape[0], step):
        columns = slice(start, start + step)
        weight = product.weight.detach()[columns].to(product.operand_dtype).cpu()
        bias = None if product.bias is None else product.bias[columns].to(product.operand_dtype).cpu()
        seen = product.output[drawn, columns].cpu()
        judged = judge_elements(x, weight, bias, seen, units)
        for row, column in judged.fault.nonzero()[:MOST_PLACES].tolist():
            numbers = (float(each[row, column]) for each in (seen, judged.exact, judged.error, judged.allowed))
            faults.append(_Fault(f"column {start + column}", drawn[row], start + column, *numbers))
    return sorted(faults, key=lambda fault: (fault.row, fault.column))


def _of_operator(made: Made, call: LogitCall, drawn: list[int]) -> list[_Fault]:
    results = exact_results(made, call, drawn)
    assert not isinstance(results, str)  # it fits
    faults = []
    for what, seen, exact in results:
        error = (seen - exact.value).abs()
        is_same = (seen == exact.value) | (seen.isnan() & exact.value.isnan())
        wrong = ~(is_same | (error <= exact.bound) | (exact.bound == torch.inf))
        for place in wrong.nonzero()[:MOST_PLACES].tolist():
            numbers = (float(each[tuple(place)]) for each in (seen, exact.value, error, exact.bound))
            column = place[1] if len(place) > 1 else None
            name = what if column is None else f"column {column}"
            faults.append(_Fault(name, drawn[place[0]], column, *numbers))
    return faults
