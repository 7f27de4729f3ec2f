"""safe_fused_linear: a wrong softmax is computed again, a right one is let through, whatever its values are."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import steadysum.compat.torch_npu as torch_npu
from steadysum import linear_max_sum, linear_softmax
from steadysum.compat.torch_npu import safe_linear
from steadysum.errors import AccuracyError, OperandTypeError, RangeError, ShapeError

Fault = Callable[[Tensor], Tensor]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X, WEIGHT = draw(1024, 256), draw(256, 512, seed=1) / 16  # the report's shapes


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Callable[[Fault, int], list[Tensor]]:
    """Arm a fault for the first so many calls of the operator; returns the list of what the calls returned."""
    right = torch_npu.fused_linear_online_max_sum

    def arm(fault: Fault, times: int) -> list[Tensor]:
        results: list[Tensor] = []

        def call(x: Tensor, weight: Tensor) -> Tensor:
            result = right(x, weight)
            results.append(fault(result.clone()) if len(results) < times else result)
            return results[-1]

        monkeypatch.setattr(safe_linear, "fused_linear_online_max_sum", call)
        return results

    return arm


def scaled(p: Tensor) -> Tensor:
    p[17] *= 1.001
    return p


def stale_sum(p: Tensor) -> Tensor:
    """Row 3's statistics lack its last 64 columns: what they give, summed over all columns, is above 1."""
    last = WEIGHT[:, :-64]
    found = linear_max_sum(X[3:4], last.T)
    p[3] = (X[3] @ WEIGHT - found.max).exp() / found.sum_exp
    return p


def nan_row(p: Tensor) -> Tensor:
    p[5] = torch.nan
    return p


def nan_value(p: Tensor) -> Tensor:
    p[5, 7] = torch.nan
    return p


def swapped(p: Tensor) -> Tensor:
    """The sum is kept, but not the range."""
    p[2, 0] -= 2.0
    p[2, 1] += 2.0
    return p


FAULTS = {
    scaled: "1 of 1024 rows with a sum that differs from 1 by more than .* \\(row 17: sum 1\\.00",
    stale_sum: "1 of 1024 rows with a sum that differs from 1 by more than .* \\(row 3: sum 1\\.",
    nan_row: r"1 of 1024 rows with NaN, where its logits have a softmax \(row 5: sum nan\)",
    nan_value: r"1 of 1024 rows with a NaN beside numbers \(row 5",
    swapped: r"1 of 1024 rows with a probability below 0 \(row 2",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_that_passes_is_computed_again(faulty: Callable[[Fault, int], list[Tensor]], fault: Fault) -> None:
    results = faulty(fault, 2)
    found = torch_npu.safe_fused_linear(X, WEIGHT)
    assert len(results) == 3
    assert torch.equal(found, linear_softmax(X, WEIGHT.T))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_that_stays_raises_after_the_last_call(
    faulty: Callable[[Fault, int], list[Tensor]], fault: Fault
) -> None:
    results = faulty(fault, 99)
    with pytest.raises(
        AccuracyError, match=rf"^softmax of fused_linear_online_max_sum: got {FAULTS[fault]}.*, after 4 calls; allowed"
    ) as caught:
        torch_npu.safe_fused_linear(X, WEIGHT, max_retry=3)
    assert len(results) == 4
    assert isinstance(caught.value, RuntimeError)


def test_no_retry_is_one_call(faulty: Callable[[Fault, int], list[Tensor]]) -> None:
    results = faulty(scaled, 99)
    with pytest.raises(AccuracyError, match="after 1 calls"):
        torch_npu.safe_fused_linear(X, WEIGHT, max_retry=0)
    assert len(results) == 1


@settings(max_examples=60)
@given(
    rows=st.integers(0, 20),
    hidden=st.integers(1, 60),
    vocab=st.one_of(st.integers(1, 600), st.just(9000)),
    spread=st.sampled_from((0.0, 1e-3, 1.0, 30.0, 1e4)),
    dtype=st.sampled_from((torch.float32, torch.bfloat16, torch.float16, torch.float64)),
    seed=st.integers(0, 100),
)
def test_a_right_result_is_let_through(
    rows: int, hidden: int, vocab: int, spread: float, dtype: torch.dtype, seed: int
) -> None:
    x, weight = (draw(rows, hidden, seed=seed) * spread).to(dtype), draw(hidden, vocab, seed=seed + 1).to(dtype)
    found = torch_npu.safe_fused_linear(x, weight, max_retry=0)
    assert torch.equal(found, linear_softmax(x, weight.T)) or not found.isfinite().all()


def test_rows_that_have_no_softmax_are_let_through() -> None:
    inf, nan = math.inf, math.nan
    x = torch.tensor([[1.0, 0.0], [inf, 0.0], [nan, 0.0], [-inf, 0.0], [3e38, 3e38]])
    weight = torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, -3.0]])
    found = torch_npu.safe_fused_linear(x, weight, max_retry=0)
    assert found.isnan().all(dim=1).tolist() == [False, True, True, True, True]


def test_leading_dimensions_and_gradients_are_kept() -> None:
    x, weight = draw(2, 3, 8).requires_grad_(), draw(8, 20, seed=1).requires_grad_()
    found = torch_npu.safe_fused_linear(x, weight)
    assert found.shape == (2, 3, 20)
    found[..., 0].sum().backward()
    assert x.grad is not None
    assert weight.grad is not None


def test_mistakes_are_told() -> None:
    with pytest.raises(OperandTypeError, match="type of max_retry: got float; allowed: int"):
        torch_npu.safe_fused_linear(X, WEIGHT, max_retry=1.5)  # type: ignore[arg-type]
    with pytest.raises(RangeError, match="max_retry: got -1; allowed: >= 0"):
        torch_npu.safe_fused_linear(X, WEIGHT, max_retry=-1)
    with pytest.raises(ShapeError, match=r"got x \[1024, 256\], weight \[512, 256\]; allowed: x \[\.\.\., in\]"):
        torch_npu.safe_fused_linear(X, WEIGHT.T)


def test_a_linear_layer_of_no_inputs_has_equal_probabilities() -> None:
    for lead in ((3,), (), (2, 0)):
        found = torch_npu.safe_fused_linear(torch.zeros(*lead, 0), torch.zeros(0, 4))
        assert torch.equal(found, torch.full((*lead, 4), 0.25))
