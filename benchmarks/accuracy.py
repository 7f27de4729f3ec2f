"""The bar on accuracy: errors against float64 of the `native` kernel over those of torch's own fp32 computation.

Not here: the problems and the errors themselves (steadysum.diagnosis.rounding, which the tests use as well).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from benchmarks.results import Measure
from steadysum.diagnosis.accuracy import ALLOWED_RATIO
from steadysum.diagnosis.rounding import (
    FAMILIES,
    HIDDEN_SIZES,
    ROWS,
    VOCABULARY,
    RoundingError,
    make_problem,
    rounding_errors,
)

KERNEL = "native"
QUICK_HIDDEN_SIZES = HIDDEN_SIZES[:2]


def measure_errors(quick: bool) -> Iterator[Measure]:
    """One measure for each hidden size, family of logits and quantity."""
    for hidden in QUICK_HIDDEN_SIZES if quick else HIDDEN_SIZES:
        for family in FAMILIES:
            for error in rounding_errors(KERNEL, make_problem(family, hidden)):
                yield Measure(
                    work=f"{ROWS} x {hidden} x {VOCABULARY}, {family}",
                    contender=f"{KERNEL}: {error.quantity}",
                    against="torch fp32",
                    value=error.interval(),
                    bar=_bar(error),
                    note=f"root mean square error {error.own:.2e} against {error.torch:.2e}",
                )


def _bar(error: RoundingError) -> float:
    """What the ratio may be. Where torch is exact, it is 0 or infinite, the latter within one rounding."""
    if error.torch:
        return error.allowed / error.torch
    return math.inf if 0 < error.own <= error.allowed else ALLOWED_RATIO
