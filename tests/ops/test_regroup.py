"""regroup gives the bits of the separate calls, from one parallel region, and copies nothing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from steadysum import Call, MaxSum, _extension, kernels, linear_max_sum, regroup
from steadysum.errors import OperandTypeError, RangeError, ShapeError


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X, Y = draw(5, 32), draw(3, 2, 32, seed=1)
HEAD, OTHER = draw(9000, 32, seed=2), draw(700, 32, seed=3)
CALLS = {
    "sharing an input": [Call(X, HEAD), Call(X, OTHER)],
    "sharing a head": [Call(X, HEAD), Call(Y, HEAD)],
    "sharing nothing": [
        Call(X.bfloat16(), HEAD.bfloat16(), bias=draw(9000), scale=0.5, temperature=2.0),
        Call(Y, OTHER, softcap=3.0, valid_vocab=600, temperature=2.0 ** torch.arange(6).view(3, 2)),
        Call(X[:0], OTHER),
    ],
    "none": [],
}


def separately(call: Call, kernel: str) -> MaxSum:
    return linear_max_sum(
        call.input,
        call.weight,
        bias=call.bias,
        scale=call.scale,
        softcap=call.softcap,
        temperature=call.temperature,
        valid_vocab=call.valid_vocab,
        kernel=kernel,
    )


@pytest.mark.parametrize("calls", CALLS.values(), ids=CALLS)
def test_bits_equal_the_separate_calls(kernel: str, calls: list[Call]) -> None:
    together = regroup(calls, kernel=kernel)
    assert len(together) == len(calls)
    for found, call in zip(together, calls, strict=True):
        alone = separately(call, kernel)
        assert torch.equal(found.max, alone.max)
        assert torch.equal(found.sum_exp, alone.sum_exp)
        assert found.max.shape == call.input.shape[:-1]


def test_native_runs_the_union_in_one_parallel_region(needs_native: object, monkeypatch: pytest.MonkeyPatch) -> None:
    regions: list[int] = []

    class Watched:
        def __getattr__(self, name: str) -> object:
            return getattr(needs_native, name)

        def run(self, calls: list[object], threads: int) -> None:
            regions.append(len(calls))
            needs_native.run(calls, threads)  # type: ignore[attr-defined]

    monkeypatch.setattr(_extension, "module", Watched())
    regroup([Call(X, HEAD), Call(Y, HEAD), Call(X, OTHER)])
    assert regions == [3]


def test_each_call_goes_to_its_own_kernel(needs_native: object) -> None:
    mixed = regroup([Call(X.double(), HEAD.double()), Call(X, HEAD), Call(Y.double(), OTHER.double())])
    assert [found.max.dtype for found in mixed] == [torch.float64, torch.float32, torch.float64]
    assert torch.equal(mixed[1].sum_exp, linear_max_sum(X, HEAD, kernel="native").sum_exp)
    assert torch.equal(mixed[2].sum_exp, linear_max_sum(Y.double(), OTHER.double(), kernel="eager").sum_exp)


def test_a_context_names_the_kernel() -> None:
    with kernels.use("reference"):
        (found,) = regroup([Call(X, OTHER)])
    assert torch.equal(found.sum_exp, linear_max_sum(X, OTHER, kernel="reference").sum_exp)


def test_the_reports_own_rewrite_computes_something_else() -> None:
    joined = linear_max_sum(torch.cat([X, X], 1), torch.cat([OTHER, OTHER], 1))  # x W1 + x W2
    together = regroup([Call(X, OTHER), Call(X, OTHER)])
    torch.testing.assert_close(joined.max, together[0].max + together[1].max)
    assert not torch.allclose(joined.max, together[0].max)


def test_a_mistake_in_one_call_is_told_before_any_work() -> None:
    with pytest.raises(OperandTypeError, match=r"type of calls\[1\]: got tuple; allowed: steadysum\.Call"):
        regroup([Call(X, HEAD), (X, HEAD)])  # type: ignore[list-item]
    with pytest.raises(ShapeError, match="hidden sizes"):
        regroup([Call(X, HEAD), Call(X[:, :3], HEAD)])
    with pytest.raises(RangeError, match=r"softcap: got .*allowed: a finite number > 0"):
        regroup([Call(X, HEAD, softcap=0.0)])
    with pytest.raises(ShapeError, match="rank of weight"):
        regroup([Call(X, torch.tensor(1.0))])


def test_calls_may_come_from_a_generator() -> None:
    x, head = torch.randn(2, 4), torch.randn(5, 4)
    found = regroup(Call(x, head) for _ in range(2))
    assert len(found) == 2
    assert torch.equal(found[1].sum_exp, linear_max_sum(x, head).sum_exp)
