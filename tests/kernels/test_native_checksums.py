"""verify="checksum": native's bits, no alarm where nothing is wrong, and what happens where something is."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import steadysum
from steadysum import notices
from steadysum.errors import AccuracyError
from steadysum.kernels import native, native_checksums, weight_checksums
from steadysum.kernels.problem import Operands

pytestmark = pytest.mark.skipif(native.missing() is not None, reason=f"kernel native is missing: {native.missing()}")

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def call_of(x: Tensor, w: Tensor, **options: object) -> Operands:
    defaults: dict[str, object] = {
        "bias": None,
        "scale": 1.0,
        "softcap": None,
        "temperature": None,
        "valid_vocab": len(w),
    }
    return Operands(input=x, weight=w, **(defaults | options))  # type: ignore[arg-type]


def bits(tensor: Tensor) -> Tensor:
    return tensor.view(torch.int32)


@given(
    rows=st.sampled_from([1, 2, 4, 5, 31, 33, 64, 100]),
    hidden=st.integers(0, 300),
    vocab=st.integers(1, 1300),
    dtype=st.sampled_from(DTYPES),
    options=st.booleans(),
    seed=st.integers(0, 2**20),
)
@settings(deadline=None)
def test_bits_are_those_of_native(
    rows: int, hidden: int, vocab: int, dtype: torch.dtype, options: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    x, w = torch.randn(rows, hidden).to(dtype), torch.randn(vocab, hidden).to(dtype)
    more: dict[str, object] = {"target": torch.randint(vocab, (rows,))}
    if options:
        valid = max(1, vocab - 5)
        more = {
            "bias": torch.randn(vocab),
            "softcap": 7.0,
            "scale": 0.5,
            "temperature": torch.rand(rows) + 0.5,
            "valid_vocab": valid,
            "target": torch.randint(valid, (rows,)),
            "wants_weighted_sum": True,
        }
    call = call_of(x, w, **more)
    (plain,) = native.statistics([call])
    found = native.empty_results(call)
    report = native_checksums.run([call], [found], [None])
    for a, b in zip(plain, found, strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            assert torch.equal(bits(a), bits(b))
    assert report["cleared"] == 0
    assert not any(report["healed"].values())


@pytest.mark.parametrize("dtype", DTYPES)
def test_loss_and_gradients_are_those_of_native(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, w, target = torch.randn(70, 130), torch.randn(900, 130), torch.randint(900, (70,))
    results = []
    for verify in ("off", "checksum"):
        a, b = x.to(dtype).requires_grad_(), w.to(dtype).requires_grad_()
        loss = steadysum.linear_cross_entropy(a, b, target, kernel="native", verify=verify)
        loss.backward()  # type: ignore[no-untyped-call]
        results.append((loss, a.grad, b.grad))
    for off, on in zip(*results, strict=True):
        assert torch.equal(off, on)


@pytest.mark.parametrize("strided", [Tensor.contiguous, lambda w: w.T.contiguous().T], ids=["rows", "columns"])
@pytest.mark.parametrize("rows", [3, 40])
def test_strides_of_the_weight_do_not_matter(strided: Callable[[Tensor], Tensor], rows: int) -> None:
    torch.manual_seed(1)
    x, w = torch.randn(rows, 100), strided(torch.randn(600, 100))
    off = steadysum.linear_max_sum(x, w, kernel="native")
    on = steadysum.linear_max_sum(x, w, kernel="native", verify="checksum")
    assert torch.equal(off.max, on.max)
    assert torch.equal(off.sum_exp, on.sum_exp)


def test_rows_and_weights_that_are_not_finite_are_no_faults() -> None:
    torch.manual_seed(2)
    x, w = torch.randn(40, 64), torch.randn(1200, 64)
    x[3, 5], x[7, 1], w[700, 2] = torch.nan, torch.inf, torch.inf
    off = steadysum.linear_max_sum(x, w, kernel="native")
    on = steadysum.linear_max_sum(x, w, kernel="native", verify="checksum")
    assert torch.equal(bits(off.max), bits(on.max))
    assert torch.equal(bits(off.sum_exp), bits(on.sum_exp))


def test_logits_that_overflow_are_no_faults() -> None:
    torch.manual_seed(3)
    x, w = torch.randn(20, 64) * 1e25, torch.randn(600, 64) * 1e13
    off = steadysum.linear_max_sum(x, w, kernel="native")
    on = steadysum.linear_max_sum(x, w, kernel="native", verify="checksum")
    assert not bool(off.max.isfinite().all())
    assert torch.equal(bits(off.max), bits(on.max))
    assert torch.equal(bits(off.sum_exp), bits(on.sum_exp))


def test_a_weight_written_without_a_new_version_gets_new_checksums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_checksums, "_warned", False)
    torch.manual_seed(4)
    x, w = torch.randn(40, 64), torch.randn(1200, 64)
    steadysum.linear_max_sum(x, w, kernel="native", verify="checksum")
    w.data.mul_(1.5)
    with pytest.warns(UserWarning, match=r"changed though its version has not.*\.data"):
        on = steadysum.linear_max_sum(x, w, kernel="native", verify="checksum")
    assert torch.equal(on.max, steadysum.linear_max_sum(x, w, kernel="native").max)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_tile_that_has_become_finite_without_a_new_version_is_compared_again(
    bad: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_checksums, "_warned", False)
    torch.manual_seed(4)
    x, w = torch.randn(40, 64), torch.randn(1200, 64)
    good = w[700, 5].clone()
    w.data[700, 5] = bad
    call, ratios = call_of(x, w), torch.zeros(3, 40)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # as long as it is so, checksums are kept
        for _ in range(2):
            native_checksums.run([call], [native.empty_results(call)], [None], [ratios])
    assert not bool((ratios[1] > 0).any())
    w.data[700, 5] = good
    with pytest.warns(UserWarning, match="changed though its version has not"):
        native_checksums.run([call], [native.empty_results(call)], [None], [ratios])
    assert bool((ratios[1] > 0).any())


def test_a_weight_written_in_place_by_torch_needs_no_second_look() -> None:
    torch.manual_seed(5)
    x, w = torch.randn(40, 64), torch.randn(1200, 64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            w.mul_(1.1)
            steadysum.linear_max_sum(x, w, kernel="native", verify="checksum")


def test_memory_of_a_weight_that_is_gone_is_not_taken_for_it() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed in range(20):  # the allocator gives the same memory again
            torch.manual_seed(seed)
            x, w = torch.randn(8, 64), torch.randn(1200, 64)
            steadysum.linear_max_sum(x, w, kernel="native", verify="checksum")


def test_it_works_under_inference_mode() -> None:
    with torch.inference_mode():
        x, w = torch.randn(8, 64), torch.randn(1200, 64)
        off = steadysum.linear_max_sum(x, w, kernel="native")
        on = steadysum.linear_max_sum(x, w, kernel="native", verify="checksum")
    assert torch.equal(off.max, on.max)


def test_several_calls_at_once_are_verified() -> None:
    torch.manual_seed(6)
    w = torch.randn(1000, 64)
    calls = [steadysum.Call(torch.randn(n, 64), w) for n in (1, 40, 7)]
    for off, on in zip(steadysum.regroup(calls), steadysum.regroup(calls, verify="checksum"), strict=True):
        assert torch.equal(off.max, on.max)
        assert torch.equal(off.sum_exp, on.sum_exp)


# ---- With faults: the build in which values can be struck ------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "what"), [("weight", "logits"), ("logit", "logits"), ("late_logit", "logits"), ("sum", "maximum or sum")]
)
def test_a_fault_at_each_attempt_raises_and_names_rows_and_tile(traps: ModuleType, target: str, what: str) -> None:
    torch.manual_seed(7)
    x, w = torch.randn(20, 64), torch.randn(400, 64)
    add = -500.0 if target == "sum" else 50.0  # below 1: a sum that can't be
    traps.strike(traps.TARGETS.index(target), index=5, add=add, persistent=True)
    with pytest.raises(AccuracyError, match=rf"{what} of rows? .* in tile 0, by kernel 'native'") as caught:
        steadysum.linear_max_sum(x, w, kernel="native", verify="checksum")
    assert caught.value.attribution == "persistent"
    assert "computed twice more" in str(caught.value)


def test_input_that_is_damaged_each_time_raises_and_names_its_row(traps: ModuleType) -> None:
    torch.manual_seed(8)
    x, w = torch.randn(20, 64), torch.randn(400, 64)
    traps.strike(traps.TARGETS.index("input"), index=11, add=1.0, persistent=True)
    with pytest.raises(AccuracyError, match="packed input of row 11 in tile 0"):
        steadysum.linear_max_sum(x, w, kernel="native", verify="checksum")


@pytest.mark.parametrize("target", ["input", "weight", "logit", "late_logit", "partial"])
def test_a_fault_that_passes_is_healed_and_told(traps: ModuleType, target: str) -> None:
    torch.manual_seed(9)
    x, w, bias = torch.randn(40, 64), torch.randn(1400, 64), torch.randn(1400)
    clean = steadysum.linear_max_sum(x, w, bias=bias, kernel="native")
    traps.strike(traps.TARGETS.index(target), after=1, index=3, add=3.0)
    heard: list[notices.Notice] = []
    with notices.listen(heard.append):
        found = steadysum.linear_max_sum(x, w, bias=bias, kernel="native", verify="checksum")
    assert traps.struck() == 1
    assert torch.equal(clean.max, found.max)
    assert torch.equal(clean.sum_exp, found.sum_exp)
    kinds = {notice.kind: notice.labels for notice in heard}
    assert kinds["check"]["outcome"] == "failed"
    assert kinds["healed_tile"]["operator"].startswith("native ")
    assert kinds["anomaly"]["attribution"] == "transient"


def test_a_struck_checksum_of_its_own_is_cleared(traps: ModuleType) -> None:
    torch.manual_seed(10)
    x, w = torch.randn(40, 64), torch.randn(400, 64)
    call = call_of(x, w)
    (clean,) = native.statistics([call])
    found = native.empty_results(call)
    traps.strike(traps.TARGETS.index("weight"), after=0, index=3, add=3.0)  # the first block: the checksums' columns
    report = native_checksums.run([call], [found], [None])
    assert report["cleared"] > 0
    assert torch.equal(clean.max, found.max)


def test_a_fault_in_a_loss_is_healed_before_its_gradients(traps: ModuleType) -> None:
    torch.manual_seed(11)
    x, w, target = torch.randn(40, 64), torch.randn(1400, 64), torch.randint(1400, (40,))
    results = []
    for verify in ("off", "checksum"):
        a, b = x.clone().requires_grad_(), w.clone().requires_grad_()
        if verify == "checksum":
            traps.strike(traps.TARGETS.index("logit"), after=2, index=3, add=3.0)
        loss = steadysum.linear_cross_entropy(a, b, target, kernel="native", verify=verify)
        loss.backward()  # type: ignore[no-untyped-call]
        results.append((loss, a.grad, b.grad))
    assert traps.struck() == 1
    for off, on in zip(*results, strict=True):
        assert torch.equal(off, on)
