"""The `native` kernel's errors against float64 are at most 1.5 times those of torch's own fp32 computation.

The table of all ratios: `pytest tests/kernels/test_accuracy.py -s`, or `python -m benchmarks accuracy` with intervals.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from steadysum import kernels, linear_max_sum
from steadysum.diagnosis.rounding import FAMILIES, HIDDEN_SIZES, VOCABULARY, make_problem, rounding_errors
from steadysum.kernels.problem import Operands, Statistics

pytestmark = pytest.mark.usefixtures("needs_native")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("hidden", HIDDEN_SIZES)
def test_errors_are_at_most_one_and_a_half_of_torchs(family: str, hidden: int) -> None:
    errors = list(rounding_errors("native", make_problem(family, hidden)))
    figures = "  ".join(f"{e.quantity} {e.own:.2e}/{e.torch:.2e} = {e.ratio:.2f}" for e in errors)
    print(f"\nH = {hidden:4}, {family:8} {figures}", end="")
    assert not [e.quantity for e in errors if not e.own <= e.allowed], figures


@pytest.mark.parametrize("hidden", HIDDEN_SIZES)
def test_equal_logits_are_counted_exactly(hidden: int) -> None:
    """Equal columns have logits of equal bits, exp(0) = 1, and fp32 counts exactly up to 2^24."""
    problem = make_problem("equal", hidden, rows=40)
    assert linear_max_sum(problem.input, problem.weight, kernel="native").sum_exp.tolist() == [VOCABULARY] * 40


def test_one_unseen_peak_leaves_the_sum_at_one() -> None:
    """1299 terms of about exp(-80) are less than half a unit in the last place of 1, the nearest fp32 number."""
    problem = make_problem("peaked", 256, rows=40)
    found = linear_max_sum(problem.input, problem.weight, kernel="native")
    torch.testing.assert_close(found.sum_exp, torch.ones(40), rtol=0, atol=0)


@pytest.mark.parametrize(("quantity", "change"), [("max", 1e-6), ("sum_exp", 1e-4), ("logits", 5e-7)])
def test_the_bar_is_missed_by_errors_a_few_times_torchs(
    quantity: str, change: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors of 2e-7 (logits), 4e-7 (max) and 3e-5 (sum_exp) are torch's at H = 256; what comes on top must show."""
    native = kernels.get("native")
    logits = native.logits

    def worse(call: Operands, out: Tensor) -> Statistics:
        found = logits(call, out)
        if quantity == "logits":
            out += change
            return found
        return found._replace(**{quantity: getattr(found, quantity) + change})

    monkeypatch.setattr(native, "logits", worse)
    errors = {e.quantity: e for e in rounding_errors("native", make_problem("random", 256))}
    assert errors[quantity].own > errors[quantity].allowed
