"""Checksum: no false alarm on any kind of input; every fault beyond a few thresholds is found where it is."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from steadysum.guard.checks import weight_checksums
from steadysum.guard.checks.calls import linear_product
from steadysum.guard.checks.checksum import Checksum
from steadysum.guard.checks.protocol import Finding, Made
from steadysum.guard.checks.rounding import units_of

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
KINDS = (
    "random", "peaked", "shifted", "tiny", "huge", "constant", "sparse", "integers", "one feature", "subnormal",
    "scales",
)  # fmt: skip


def made(function: Any, *args: Any, **kwargs: Any) -> Made:
    """The call, and what it gave."""
    with torch.no_grad():
        return Made(function, args, kwargs, function(*args, **kwargs))


def inputs(kind: str, dtype: torch.dtype, shape: tuple[int, int, int], seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Input [N, K], weight [V, K] and bias [V] of one kind."""
    rows, hidden, columns = shape
    generator = torch.Generator().manual_seed(seed)

    def drawn(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    x, w, b = drawn(rows, hidden), drawn(columns, hidden), drawn(columns)
    chosen = seed % hidden
    if kind == "peaked":
        x[seed % rows] *= 50
        w[seed % columns] *= 100
    elif kind == "shifted":
        x, w = x + 30, w + 3
    elif kind == "tiny":
        x, w, b = x * 1e-3, w * 1e-4, b * 1e-7
    elif kind == "huge":
        x, w, b = x * 100, w * 20, b * 1e4
    elif kind == "constant":
        x, w = torch.full_like(x, float(x[0, 0])), torch.full_like(w, float(w[0, 0]))
    elif kind == "sparse":
        x *= torch.rand(rows, hidden, generator=generator) < 0.02
        w *= torch.rand(columns, hidden, generator=generator) < 0.1
    elif kind == "integers":
        x, w, b = (5 * x).round(), (5 * w).round(), (5 * b).round()
    elif kind == "one feature":
        x[:, chosen] *= 1e4
        w[:, chosen] *= 1e3
    elif kind == "subnormal":
        scale = 1e-3 if dtype == torch.float16 else 1e-22
        x, w, b = x * scale, w * scale, b * scale**2
    elif kind == "scales" and dtype != torch.float16:
        x *= torch.logspace(-20, 15, rows, dtype=torch.float64)[:, None]
    return x.to(dtype), w.to(dtype), b.to(dtype)


@settings(max_examples=200)
@given(
    st.sampled_from(KINDS),
    st.sampled_from(DTYPES),
    st.tuples(
        st.sampled_from([1, 2, 7, 40]), st.sampled_from([1, 3, 64, 700]), st.sampled_from([1, 17, 512, 600, 1100])
    ),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_nothing_that_rounding_explains_is_reported(
    kind: str, dtype: torch.dtype, shape: tuple[int, int, int], has_bias: bool, seed: int
) -> None:
    x, w, b = inputs(kind, dtype, shape, seed)
    finding = Checksum().judge(made(F.linear, x, w, b if has_bias else None))
    assert finding.passed, finding


@settings(max_examples=40)
@given(st.sampled_from(KINDS), st.sampled_from([torch.bfloat16, torch.float16]), st.integers(0, 2**31))
def test_autocast_is_no_fault(kind: str, dtype: torch.dtype, seed: int) -> None:
    x, w, b = inputs(kind, torch.float32, (6, 300, 600), seed)
    with torch.autocast("cpu", dtype):
        call = made(F.linear, x, w, b)
        assert call.output.dtype == dtype
        assert Checksum().judge(call).passed
    assert Checksum().judge(call).passed


def threshold(call: Made, row: int, column: int) -> float:
    """Six standard deviations of the sum of a fault's segment, by the law in Checksum's docstring, from float64."""
    x, w = call.args[0].double(), call.args[1].double()
    start = column // 512 * 512
    segment = w[start : start + 512]
    y = segment @ x[row]
    u = torch.finfo(torch.float64 if call.output.dtype == torch.float64 else torch.float32).eps / 2
    v = torch.finfo(call.output.dtype).eps / 2
    y2, norms = float(y.square().sum()), float(x[row].square().sum() * segment.square().sum())
    hidden = w.shape[1]
    variance = u**2 / 3 * (y2 * hidden / 3 + norms / 2) + v**2 / 3 * y2
    left = u**2 / 3 * (float(y.sum()) ** 2 / 3 + y2 / 2) * 512 / 8
    checksum = segment.sum(0)
    right = (
        u**2
        / 3
        * (float(checksum @ x[row]) ** 2 * hidden / 3 + float(x[row].square().sum() * checksum.square().sum()) / 2)
    )
    return 6 * math.sqrt(variance + left + right)


@settings(max_examples=150)
@given(
    st.sampled_from(["random", "peaked", "tiny", "huge", "sparse", "integers", "one feature"]),
    st.sampled_from(DTYPES),
    st.integers(0, 11),
    st.integers(0, 1099),
    st.floats(3, 1e6),
    st.sampled_from([-1, 1]),
    st.integers(0, 2**31),
)
def test_an_error_of_three_thresholds_is_found_where_it_is(
    kind: str, dtype: torch.dtype, row: int, column: int, times: float, sign: int, seed: int
) -> None:
    x, w, _ = inputs(kind, dtype, (12, 64, 1100), seed)
    call = made(F.linear, x, w)
    before = call.output[row, column].double()
    limit = threshold(call, row, column)
    call.output[row, column] += sign * times * limit
    moved = float((call.output[row, column].double() - before).abs())
    if not 3 * limit <= moved or limit == 0:  # rounded away, or a row of zeros
        return
    finding = Checksum().judge(call)
    assert finding.rows == (row,)
    assert finding.places == ((row, column),)
    assert finding.measured == pytest.approx(moved, rel=0.5) or not math.isfinite(moved)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_flip_beyond_three_thresholds_is_found_and_every_other_is_small(dtype: torch.dtype) -> None:
    x, w, _ = inputs("random", dtype, (8, 256, 600), 4)
    call = made(F.linear, x, w)
    words = call.output.view(torch.int32 if dtype == torch.float32 else torch.int16)
    bits = 8 * dtype.itemsize
    found = missed = 0
    for number in range(10):
        row, column = (5 * number) % 8, (97 * number) % 600
        before, limit = call.output[row, column].double(), threshold(call, row, column)
        for bit in range(bits):
            mask = 1 << bit if bit < bits - 1 else -(1 << bit)
            words[row, column] ^= mask
            moved = float((call.output[row, column].double() - before).abs())
            finding = Checksum().judge(call)
            words[row, column] ^= mask
            if moved > 3 * limit or math.isnan(moved):
                assert finding.places == ((row, column),)
                found += 1
            elif not finding.passed:
                assert finding.places == ((row, column),)
            else:
                missed += 1
    assert found > 10 * (bits // 4)
    assert missed > 0
    assert Checksum().judge(call).passed


def test_swapped_elements_show_by_their_positions() -> None:
    x, w, _ = inputs("random", torch.float32, (4, 64, 512), 1)
    call = made(F.linear, x, w)
    row = call.output[2]
    one, other = int(row.argmax()), int(row.argmin())
    row[[one, other]] = row[[other, one]]  # their sum stays
    assert Checksum().judge(call).places == tuple(sorted([(2, one), (2, other)]))


def test_a_stale_row_and_a_lost_tile_are_named() -> None:
    x, w, _ = inputs("random", torch.float32, (300, 64, 1100), 2)
    call = made(F.linear, x, w)
    call.output[77] = call.output[76]
    assert Checksum().judge(call).rows == (77,)
    call.output[64:128, 512:768] = 0
    finding = Checksum().judge(call)
    assert finding.rows == (64,)  # its first 16 places
    assert finding.places == tuple((64, column) for column in range(512, 528))
    assert "64 of 300 rows have sums that don't fit their operands" in finding.summary


def test_the_worst_element_is_told_with_its_error_and_its_bound() -> None:
    x, w, _ = inputs("random", torch.float32, (3, 64, 40), 3)
    call = made(F.linear, x, w)
    exact = float(x[1].double() @ w[7].double())
    call.output[1, 7] = exact + 0.5
    finding = Checksum().judge(call)
    assert finding.summary.startswith("element (1, 7) of the product is ")
    assert finding.measured == pytest.approx(0.5, abs=1e-6)
    assert finding.allowed is not None
    assert 0 < finding.allowed < 1e-3


class TestNotFinite:
    """NaN and infinities: those of operands are no faults, others are."""

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_operands_that_hold_some_are_no_faults(self, bad: float, dtype: torch.dtype) -> None:
        x, w, b = inputs("random", dtype, (6, 64, 600), 5)
        x[2, 3], w[17, 0], b[530] = bad, bad, bad
        assert Checksum().judge(made(F.linear, x, w, b)).passed

    def test_a_fault_beside_them_is_found(self) -> None:
        x, w, b = inputs("random", torch.float32, (6, 64, 600), 5)
        x[2, 3], w[17, 0], b[530] = math.nan, math.inf, -math.inf
        call = made(F.linear, x, w, b)
        call.output[4, 18] += 1
        call.output[5, 529] = math.nan
        assert Checksum().judge(call).places == ((4, 18), (5, 529))

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_results_without_a_reason_are_faults(self, bad: float, dtype: torch.dtype) -> None:
        x, w, _ = inputs("random", dtype, (6, 64, 600), 6)
        call = made(F.linear, x, w)
        call.output[3, 599] = bad
        assert Checksum().judge(call).places == ((3, 599),)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_an_overflow_is_the_right_result_of_large_operands(self, dtype: torch.dtype) -> None:
        large = math.sqrt(torch.finfo(dtype).max)
        x, w, _ = inputs("random", torch.float64, (6, 64, 600), 7)
        x[1] *= large
        call = made(F.linear, x.to(dtype), (w * large).to(dtype))
        assert call.output[1].isinf().any()
        assert Checksum().judge(call).passed
        column = int(call.output[1].isposinf().nonzero()[0])
        call.output[1, column] = -math.inf
        if dtype == torch.float16:  # its sums don't overflow, only its results; other sums may end as anything
            assert Checksum().judge(call).places == ((1, column),)


class TestWeights:
    """Checksums that are kept, and weights that change."""

    def test_an_update_is_seen_by_its_version(self) -> None:
        layer = nn.Linear(64, 600)
        x = torch.randn(4, 64)
        assert Checksum().judge(made(layer, x)).passed
        with torch.no_grad():
            layer.weight.mul_(3)
        assert Checksum().judge(made(layer, x)).passed

    def test_a_write_behind_torchs_back_is_no_fault_and_is_warned_of_once(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(weight_checksums, "_was_mentioned", False)
        layer = nn.Linear(64, 600)
        x = torch.randn(4, 64)
        assert Checksum().judge(made(layer, x)).passed
        layer.weight.data[3] *= 2
        with pytest.warns(UserWarning, match="weight has changed though its version has not"):
            assert Checksum().judge(made(layer, x)).passed
        layer.weight.data[3] *= 2
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            call = made(layer, x)
            assert Checksum().judge(call).passed
            call.output[1, 3] += 1
            assert Checksum().judge(call).places == ((1, 3),)

    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    def test_a_row_that_has_become_finite_behind_torchs_back_is_compared_again(self, bad: float) -> None:
        layer = nn.Linear(64, 600)
        x = torch.randn(4, 64)
        good = layer.weight.detach().clone()
        layer.weight.data[[3, 580], [60, 5]] = bad
        for _ in range(2):  # as long as it is so, sums are kept
            assert Checksum().judge(made(layer, x)).passed
        layer.weight.data[3] = good[3]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call = made(layer, x)
            assert Checksum().judge(call).passed
            call.output[1, 3] += 1
            assert Checksum().judge(call).places == ((1, 3),)

    def test_weights_under_inference_mode_count_no_versions(self) -> None:
        with torch.inference_mode():
            weight = torch.randn(600, 64)
            x = torch.randn(4, 64)
            assert Checksum().judge(made(F.linear, x, weight)).passed
            weight.mul_(2)
            call = made(F.linear, x, weight)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                assert Checksum().judge(call).passed
            call.output[0, 0] += 1
            assert Checksum().judge(call).places == ((0, 0),)

    def test_sums_are_taken_once_and_go_with_their_weight(self, monkeypatch: pytest.MonkeyPatch) -> None:
        taken = []
        plain = weight_checksums._computed
        monkeypatch.setattr(weight_checksums, "_computed", lambda *args: taken.append(1) or plain(*args))
        weight, x = torch.randn(600, 64), torch.randn(4, 64)
        before = len(weight_checksums._kept)
        for _ in range(3):
            assert Checksum().judge(made(F.linear, x, weight)).passed
            assert Checksum().judge(made(torch.matmul, x, weight.T)).passed  # another object each time
        assert len(taken) == 1
        del weight
        assert len(weight_checksums._kept) == before

    def test_views_of_one_storage_have_their_own(self) -> None:
        fused, x = torch.randn(1800, 64), torch.randn(4, 64)
        for part in fused.chunk(3):
            assert Checksum().judge(made(F.linear, x, part)).passed


@pytest.mark.parametrize("shape", [(0, 4, 3), (2, 0, 3), (2, 4, 0)])
def test_empty_products_pass(shape: tuple[int, int, int]) -> None:
    rows, hidden, columns = shape
    assert Checksum().judge(made(F.linear, torch.ones(rows, hidden), torch.ones(columns, hidden))).passed
    assert (
        Checksum()
        .judge(made(F.linear, torch.ones(rows, hidden), torch.ones(columns, hidden), torch.ones(columns)))
        .passed
    )


@pytest.mark.parametrize("strides", ["transposed", "every second"])
def test_strides_do_not_matter(strides: str) -> None:
    x, w = torch.randn(40, 64), torch.randn(600, 64)
    if strides == "transposed":
        x, w = x.T.contiguous().T, w.T.contiguous().T
    else:
        x, w = torch.randn(80, 128)[::2, ::2], torch.randn(1200, 128)[::2, ::2]
    call = made(F.linear, x, w)
    call = call._replace(output=call.output.T.contiguous().T)
    assert Checksum().judge(call).passed
    call.output[39, 599] += 1
    assert Checksum().judge(call).places == ((39, 599),)


def test_leading_dimensions_are_flattened() -> None:
    layer = nn.Linear(64, 600)
    call = made(layer, torch.randn(2, 3, 5, 64))
    call.output[1, 2, 4, 7] += 1
    assert Checksum().judge(call).places == ((29, 7),)


def test_a_users_own_product_is_described_by_its_operands() -> None:
    w = torch.randn(600, 64)

    def layer(x: Tensor) -> Tensor:
        return x @ w.T

    check = Checksum(operands=lambda call: (call.args[0], w, None))
    call = made(layer, torch.randn(4, 64))
    assert Checksum().fits(call) == "layer isn't a linear product that is known"
    assert check.fits(call) is None
    assert check.judge(call).passed
    call.output[2, 2] += 1
    assert check.judge(call).places == ((2, 2),)


def test_nothing_of_the_call_is_changed() -> None:
    layer = nn.Linear(64, 600)
    x = torch.randn(4, 64, requires_grad=True)
    output = layer(x)
    node, version, state = output.grad_fn, layer.weight._version, torch.get_rng_state()
    before = output.detach().clone()
    output.data[0, 0] += 1
    assert not Checksum().judge(Made(layer, (x,), {}, output)).passed
    output.data[0, 0] -= 1
    assert output.grad_fn is node
    assert layer.weight._version == version
    assert torch.equal(state, torch.get_rng_state())
    assert torch.allclose(output, before)
    output.sum().backward()


def test_gpus_that_add_up_parts_in_16_bits_get_room() -> None:
    product = linear_product(Made(F.linear, (torch.ones(2, 8), torch.ones(3, 8)), {}, torch.ones(2, 3)))
    assert not isinstance(product, str)
    on_gpu = product._replace(output=torch.empty(2, 3, dtype=torch.bfloat16, device="meta"))
    settings_of_torch = torch.backends.cuda.matmul
    before = settings_of_torch.allow_bf16_reduced_precision_reduction
    try:
        settings_of_torch.allow_bf16_reduced_precision_reduction = True
        assert units_of(on_gpu).partial == 2**-8
        settings_of_torch.allow_bf16_reduced_precision_reduction = False
        assert units_of(on_gpu).partial == 0.0
    finally:
        settings_of_torch.allow_bf16_reduced_precision_reduction = before
    assert units_of(product).partial == 0.0


def test_a_pass_says_how_near_it_was() -> None:
    finding = Checksum().judge(made(F.linear, torch.randn(40, 64), torch.randn(600, 64)))
    assert isinstance(finding, Finding)
    assert finding.allowed == 6.0
    assert finding.measured is not None
    assert 0 < finding.measured < 6
