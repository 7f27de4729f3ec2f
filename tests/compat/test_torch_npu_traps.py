"""Where the vendor's document and its kernel disagree, and where the field's loss operators went wrong: one test each.

The numbers 1 to 6 are those of the traps in docs/torch-npu.md. Trap 5, tolerances, is test_torch_npu_golden.py.
"""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import steadysum.compat.torch_npu as torch_npu
from steadysum.ops import online_max_sum

from .vendor_restatement import Problem, backward, forward, packed

BACKWARD = torch_npu.npu_fused_linear_cross_entropy_loss_with_max_sum_backward


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X, HEAD = draw(6, 16), draw(50, 16, seed=1)


# ---- 1: the end of the range -------------------------------------------------------------------------------------


def test_1_the_end_of_the_range_is_exclusive() -> None:
    found = torch_npu.npu_fused_linear_online_max_sum(X, HEAD, torch.tensor([100, 148, 149, 150, 99, -100]), 100, 150)
    assert found.masked_target.tolist() == [0, 48, 49, 0, 0, 0]
    assert found.target_mask.tolist() == [0b11111000]  # rows 3, 4 and 5; pad bits 1


def test_1_an_inclusive_end_warns_once_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(online_max_sum, "_has_warned", False)
    target = torch.zeros(6, dtype=torch.int64)
    with pytest.warns(UserWarning, match=r"vocab_end_index: got 149, one less than .* = 150\. It is excl") as caught:
        torch_npu.npu_fused_linear_online_max_sum(X, HEAD, target, 100, 149)
    assert caught[0].filename == __file__  # the warning names the caller's line
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch_npu.npu_fused_linear_online_max_sum(X, HEAD, target, 100, 149)
        torch_npu.npu_fused_linear_online_max_sum(X, HEAD, target, 7, 7 + 49)


def test_1_other_ends_do_not_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(online_max_sum, "_has_warned", False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for end in (100, 148, 150, 151, 300):
            torch_npu.npu_fused_linear_online_max_sum(X, HEAD, torch.zeros(6, dtype=torch.int32), 100, end)


def test_1_compiled_code_warns_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(online_max_sum, "_has_warned", False)
    compiled = torch.compile(torch_npu.npu_fused_linear_online_max_sum, fullgraph=True, backend="eager")
    with pytest.warns(UserWarning, match="vocab_end_index: got 49, one less"):
        compiled(X, HEAD, torch.zeros(6, dtype=torch.int64), 0, 49)


# ---- 2: the mask -------------------------------------------------------------------------------------------------


@given(st.lists(st.booleans(), max_size=40), st.sampled_from((0, 5)))
def test_2_the_mask_is_packed_lowest_bit_first_and_padded_as_the_kernel_does(outside: list[bool], start: int) -> None:
    target = torch.tensor([-1 if each else start + 2 for each in outside], dtype=torch.int64)
    x = torch.ones(len(outside), 16)
    mask = torch_npu.npu_fused_linear_online_max_sum(x, HEAD, target, start, start + 50).target_mask
    assert mask.tolist() == packed(outside, pad=int(start > 0))


@pytest.mark.parametrize("rows", [1, 7, 8, 9])
def test_2_backward_reads_no_pad_bit_and_takes_a_longer_mask(rows: int) -> None:
    x, grad = draw(rows, 16), draw(rows, seed=2)
    found = torch_npu.npu_fused_linear_online_max_sum(x, HEAD, torch.arange(rows) - 2, 0, 50)
    real = 2 ** (rows % 8) - 1 if rows % 8 else 255
    other_pad = found.target_mask.clone()
    other_pad[-1] |= 255 - real
    longer = torch.cat([other_pad, torch.tensor([171], dtype=torch.uint8)])
    results = [BACKWARD(grad, x, HEAD, mask, *found[4:5], 0.0, *found[:2]) for mask in (found[3], other_pad, longer)]
    for input_grad, weight_grad in results[1:]:
        assert torch.equal(input_grad, results[0][0])
        assert torch.equal(weight_grad, results[0][1])


# ---- 3: targets beyond 2^24 --------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [2**24, 2**24 + 1, 2**30 + 1])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_3_targets_that_fp32_cannot_tell_apart_are_told_apart(start: int, dtype: torch.dtype) -> None:
    offsets = torch.tensor([-1, 0, 1, 48, 49, 50])
    found = torch_npu.npu_fused_linear_online_max_sum(X, HEAD, (offsets + start).to(dtype), start, start + 50)
    assert found.masked_target.tolist() == [0, 0, 1, 48, 49, 0]
    assert found.target_mask.tolist() == [0b11100001]


def test_3_targets_that_float64_cannot_tell_apart_are_told_apart() -> None:
    start = 2**53
    target = torch.tensor([start - 1, start, start + 1, start + 49, start + 50, -(2**63)])
    found = torch_npu.npu_fused_linear_online_max_sum(X, HEAD, target, start, start + 50)
    assert found.masked_target.tolist() == [0, 0, 1, 49, 0, 0]


# ---- 4: rounded logits -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_4_logits_keep_fp32_unless_rounding_is_asked_for(dtype: torch.dtype) -> None:
    arguments = (X.to(dtype), HEAD.to(dtype), torch.arange(6), 0, 50)
    kept = torch_npu.npu_fused_linear_online_max_sum(*arguments).logits_max
    rounded = torch_npu.npu_fused_linear_online_max_sum(*arguments, round_logits=True).logits_max
    assert not torch.equal(kept, kept.to(dtype).float())
    assert torch.equal(rounded, kept.to(dtype).float())


def test_4_rounding_changes_nothing_for_fp32_operands() -> None:
    arguments = (X, HEAD, torch.arange(6), 0, 50)
    for one, other in zip(
        torch_npu.npu_fused_linear_online_max_sum(*arguments, True),
        torch_npu.npu_fused_linear_online_max_sum(*arguments, True, round_logits=True),
        strict=True,
    ):
        assert one is not None
        assert other is not None
        assert torch.equal(one, other)


GRADIENTS_TOO = """
found = forward(4000)
backward(200, found)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
backward(4000, found)
"""
STATISTICS = """
forward(200)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
forward(4000)
"""


@pytest.mark.parametrize("measured", [STATISTICS, GRADIENTS_TOO], ids=["statistics", "gradients"])
def test_4_rounding_holds_some_rows_of_logits_at_a_time(measured: str) -> None:
    """At 4000 x 20000 all logits are 320 MB; the bar is 64 MiB + 1 KiB * V, and results and operands are small."""
    program = f"""
import resource, torch, steadysum.compat.torch_npu as torch_npu
torch.set_num_threads(1)
x, w, target = torch.randn(4000, 4).bfloat16(), torch.randn(20000, 4).bfloat16(), torch.arange(4000)
def forward(rows):
    return torch_npu.npu_fused_linear_online_max_sum(x[:rows], w, target[:rows], 0, 20000, round_logits=True)
def backward(rows, found):
    torch_npu.npu_fused_linear_cross_entropy_loss_with_max_sum_backward(
        torch.ones(rows), x[:rows], w, found.target_mask, found.masked_target[:rows],
        logits_max=found.logits_max[:rows], sum_exp_logits=found.sum_exp_logits[:rows], round_logits=True)
{measured}
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    paths = f"import sys; sys.path[:0] = {sys.path!r}\n"
    done = subprocess.run([sys.executable, "-c", paths + program], capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 64 * 1024 + 20000


# ---- 6: determinism ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_6_bits_depend_neither_on_threads_nor_on_the_batch(
    needs_native: object, threads: Callable[[int], None], dtype: torch.dtype
) -> None:
    x, w, target = draw(300, 64).to(dtype), draw(3000, 64, seed=1).to(dtype), torch.arange(300) * 10
    threads(1)
    expected = torch_npu.npu_fused_linear_online_max_sum(x, w, target, 0, 3000, True)
    for count in (2, 3, 8):
        threads(count)
        found = torch_npu.npu_fused_linear_online_max_sum(x, w, target, 0, 3000, True)
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one, other)
    for rows in (slice(0, 1), slice(17, 160), slice(299, 300)):
        found = torch_npu.npu_fused_linear_online_max_sum(x[rows], w, target[rows], 0, 3000)
        for one, other in zip(found[:3], expected[:3], strict=True):
            assert torch.equal(one, other[rows])


# ---- traps of other libraries' operators -------------------------------------------------------------------------


def test_a_common_offset_of_the_logits_does_not_reach_the_loss() -> None:
    """Loss as lse - z_t loses everything at 2^24, where neighbouring fp32 numbers are 2 apart."""
    x = torch.tensor([[2.0**12, 0.0], [2.0**12, 2.0]])
    w = torch.tensor([[2.0**12, 0.0], [2.0**12, 2.0]])  # logits 2^24 + (0, 0) and 2^24 + (0, 4)
    found = torch_npu.npu_fused_linear_online_max_sum(x, w, torch.tensor([0, 1]), 0, 2)
    loss = torch_npu.npu_fused_cross_entropy_loss_with_max_sum(*found[:3]).loss
    expected = torch.tensor([2.0, 1 + torch.tensor(-4.0, dtype=torch.float64).exp().item()], dtype=torch.float64).log()
    # fp32 numbers from 1 on, such as the sums, are 2^-23 apart
    torch.testing.assert_close(loss.double(), expected, rtol=0, atol=2.0**-23)


def test_logits_far_below_zero_do_not_underflow() -> None:
    found = torch_npu.npu_fused_linear_online_max_sum(
        torch.ones(1, 1), torch.full((600, 1), -500.0), torch.tensor([3]), 0, 600
    )
    assert found.logits_max.item() == -500.0
    assert found.sum_exp_logits.item() == 600.0
    assert found.predicted_logits.item() == 0.0


@pytest.mark.parametrize("form", ["statistics", "softmax"])
@pytest.mark.parametrize("p", [0.99, 0.999, 0.99999])
def test_the_gradient_of_a_sure_prediction_keeps_its_digits_in_bfloat16(p: float, form: str) -> None:
    """P - 1 formed after rounding P to 16 bits: 20 % wrong at P = .99, all of it at .999."""
    logit = torch.tensor(p / (1 - p), dtype=torch.float64).log().to(torch.bfloat16)
    x, w = torch.ones(1, 1, dtype=torch.bfloat16), torch.stack([logit, torch.zeros_like(logit)])[:, None]
    found = torch_npu.npu_fused_linear_online_max_sum(x, w, torch.tensor([0]), 0, 2, True)
    softmax = torch_npu.npu_fused_cross_entropy_loss_with_max_sum(*found[:3], vocab_parallel_logits=found[5]).softmax
    known = {"softmax": softmax} if form == "softmax" else {"logits_max": found[0], "sum_exp_logits": found[1]}
    _, weight_grad = BACKWARD(torch.ones(1), x, w, found.target_mask, found.masked_target, **known)
    rest = 1 / (1 + logit.double().exp())  # 1 - P
    torch.testing.assert_close(weight_grad[:, 0].double(), torch.stack([-rest, rest]), rtol=2.0**-8, atol=0)


@pytest.mark.parametrize("form", ["statistics", "softmax"])
def test_gradients_are_summed_in_fp32_over_many_rows(form: str) -> None:
    """In bf16, 1 + 1 + ... stops at 256."""
    rows = 3000
    x, w = torch.ones(rows, 1, dtype=torch.bfloat16), torch.zeros(2, 1, dtype=torch.bfloat16)
    found = torch_npu.npu_fused_linear_online_max_sum(x, w, torch.zeros(rows, dtype=torch.int32), 0, 2, True)
    softmax = torch.full((rows, 2), 0.5)
    known = {"softmax": softmax} if form == "softmax" else {"logits_max": found[0], "sum_exp_logits": found[1]}
    _, weight_grad = BACKWARD(torch.ones(rows), x, w, found.target_mask, found.masked_target, **known)
    assert weight_grad[:, 0].tolist() == [-1504.0, 1504.0]  # 1500, rounded to bf16: there they are 8 apart


@pytest.mark.parametrize("round_logits", [False, True])
def test_infinite_and_nan_logits_stay_in_their_rows(round_logits: bool) -> None:
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([[1.0, 0.0], [inf, 0.0], [nan, 0.0], [-inf, 0.0]]).bfloat16()
    w = torch.tensor([[1.0, 1.0], [2.0, 1.0], [3.0, 1.0]]).bfloat16()
    target = torch.tensor([2, 0, 0, 0])
    found = torch_npu.npu_fused_linear_online_max_sum(x, w, target, 0, 3, True, round_logits=round_logits)
    assert found.logits_max[[0, 1, 3]].tolist() == [3.0, inf, -inf]
    assert found.sum_exp_logits[[1, 3]].tolist() == [3.0, 0.0]
    loss, softmax = torch_npu.npu_fused_cross_entropy_loss_with_max_sum(*found[:3], vocab_parallel_logits=found[5])
    assert softmax is not None
    expected = torch.nn.functional.cross_entropy(x.float() @ w.float().T, target, reduction="none")
    assert loss.isnan().tolist() == expected.isnan().tolist() == [False, True, True, True]
    assert softmax.isnan().all(dim=1).tolist() == [False, True, True, True]
    for known in ({"softmax": softmax}, {"logits_max": found[0], "sum_exp_logits": found[1]}):
        input_grad, _ = BACKWARD(
            torch.ones(4), x, w, found.target_mask, found.masked_target, round_logits=round_logits, **known
        )
        assert input_grad.isnan().any(dim=1).tolist() == [False, True, True, True]


@pytest.mark.parametrize("largest", [float("inf"), float("-inf")])
def test_a_row_with_an_infinite_maximum_has_no_loss_even_where_its_target_is_masked(largest: float) -> None:
    w = torch.full((5, 1), largest)
    found = torch_npu.npu_fused_linear_online_max_sum(torch.ones(2, 1), w, torch.tensor([0, 77]), 0, 5, True)
    loss, softmax = torch_npu.npu_fused_cross_entropy_loss_with_max_sum(*found[:3], vocab_parallel_logits=found[5])
    assert softmax is not None
    assert bool(loss.isnan().all())
    assert bool(softmax.isnan().all())


def test_every_byte_of_a_result_is_written_and_none_of_an_operand() -> None:
    """Poisoned memory, as a caching allocator gives it back."""
    operands = (X, HEAD, torch.arange(6) * 10, 0, 50)
    before = [each.clone() for each in operands[:3]]
    for _ in range(3):
        torch.full((100_000,), float("nan"))
        found = torch_npu.npu_fused_linear_online_max_sum(*operands, True)
        softmax = torch_npu.npu_fused_cross_entropy_loss_with_max_sum(*found[:3], vocab_parallel_logits=found[5])[1]
        gradients = BACKWARD(torch.ones(6), X, HEAD, *found[3:5], softmax=softmax)
        assert all(bool(each.isfinite().all()) for each in (*found, softmax, *gradients) if each is not None)
    assert softmax is not None
    kept = softmax.clone()
    BACKWARD(torch.ones(6), X, HEAD, *found[3:5], softmax=softmax)
    assert torch.equal(softmax, kept)  # a given softmax isn't used as scratch memory
    for one, other in zip(operands, before, strict=False):
        assert torch.equal(one, other)


def test_autocast_rounds_nothing() -> None:
    arguments = (X, HEAD, torch.arange(6), 0, 50)
    for kernel in ("auto", "eager"):
        expected = torch_npu.npu_fused_linear_online_max_sum(*arguments, True, kernel=kernel)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = torch_npu.npu_fused_linear_online_max_sum(*arguments, True, kernel=kernel)
            softmax = torch_npu.npu_fused_cross_entropy_loss_with_max_sum(*found[:3], vocab_parallel_logits=found[5])[1]
            gradients = BACKWARD(torch.ones(6), X, HEAD, *found[3:5], softmax=softmax)
        assert torch.equal(found.logits_max, expected.logits_max)
        problem = Problem(*arguments)
        exact = backward(problem, torch.ones(6), forward(problem))
        torch.testing.assert_close(gradients[1].double(), exact.weight_grad, rtol=1e-5, atol=1e-6)
