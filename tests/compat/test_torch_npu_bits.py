"""Through the vendor's three operators the loss and its gradients have linear_cross_entropy's bits; shards, too.

Not here: a loss over shards from end to end (tests/ops/test_vocab_parallel.py).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import steadysum.compat.torch_npu as torch_npu
from steadysum import MaxSum, linear_cross_entropy, linear_max_sum
from steadysum.maxsum import fold_tree, merge

pytestmark = pytest.mark.usefixtures("needs_native")

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
BACKWARD = torch_npu.npu_fused_linear_cross_entropy_loss_with_max_sum_backward


def operands(rows: int, hidden: int, vocab: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(vocab)
    x = torch.randn(rows, hidden, generator=generator) * 3
    w = torch.randn(vocab, hidden, generator=generator) / hidden**0.5
    target = torch.randint(0, vocab, (rows,), generator=generator)
    return x.to(dtype), w.to(dtype), target, torch.randn(rows, generator=generator)


def unsharded(x: Tensor, w: Tensor, target: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    loss = linear_cross_entropy(x, w, target, reduction="none")
    input_grad, weight_grad = torch.autograd.grad(loss, (x, w), grad)
    return loss.detach(), input_grad, weight_grad


def bits(values: Tensor) -> Tensor:
    """As integers, so that -0 and +0 differ."""
    return values.view(torch.int32 if values.dtype == torch.float32 else torch.int16)


@DTYPES
@pytest.mark.parametrize("shape", [(1, 1, 1), (37, 100, 700), (130, 33, 9000)], ids=str)
def test_loss_and_gradients_have_the_bits_of_linear_cross_entropy(
    shape: tuple[int, int, int], dtype: torch.dtype
) -> None:
    x, w, target, grad = operands(*shape, dtype)
    expected = unsharded(x, w, target, grad)
    found = torch_npu.npu_fused_linear_online_max_sum(x, w, target, 0, shape[2])
    loss, _ = torch_npu.npu_fused_cross_entropy_loss_with_max_sum(*found[:3])
    gradients = BACKWARD(grad, x, w, *found[3:5], logits_max=found.logits_max, sum_exp_logits=found.sum_exp_logits)
    for one, other in zip((loss, *gradients), expected, strict=True):
        assert torch.equal(bits(one), bits(other))


@DTYPES
def test_ignored_rows_that_are_left_out_leave_the_bits_of_ignore_index(dtype: torch.dtype) -> None:
    x, w, target, grad = operands(130, 33, 700, dtype)
    target[::3] = -100
    x[3] = torch.nan  # padding
    losses, of_input, of_weight = unsharded(x, w, target, grad)
    keep = target != -100
    found = torch_npu.npu_fused_linear_online_max_sum(x[keep], w, target[keep], 0, 700)
    loss, _ = torch_npu.npu_fused_cross_entropy_loss_with_max_sum(*found[:3])
    gradients = BACKWARD(grad[keep], x[keep], w, *found[3:5], logits_max=found[0], sum_exp_logits=found[1])
    for one, other in zip((loss, *gradients), (losses[keep], of_input[keep], of_weight), strict=True):
        assert torch.equal(bits(one), bits(other))


@DTYPES
def test_stored_logits_are_those_of_the_statistics_and_change_no_bit(dtype: torch.dtype) -> None:
    x, w, target, _ = operands(300, 40, 9000, dtype)
    stored = torch_npu.npu_fused_linear_online_max_sum(x, w, target, 0, 9000, True)
    expected = torch_npu.npu_fused_linear_online_max_sum(x, w, target, 0, 9000)
    for one, other in zip((*stored[:5], stored.target_logits), (*expected[:5], expected.target_logits), strict=True):
        assert torch.equal(one, other)
    assert stored.vocab_parallel_logits is not None
    assert torch.equal(stored.vocab_parallel_logits.amax(dim=1), expected.logits_max.to(dtype))
    at_target = stored.vocab_parallel_logits[torch.arange(300), target]
    assert torch.equal(at_target, expected.target_logits.to(dtype))


def test_predicted_logits_are_the_attribute_target_logits_less_the_maximum() -> None:
    x, w, target, _ = operands(50, 40, 700, torch.float32)
    found = torch_npu.npu_fused_linear_online_max_sum(x, w, target, 100, 600)
    outside = (target < 100) | (target >= 600)
    predicted = (found.target_logits - found.logits_max).masked_fill(outside, 0.0)
    assert torch.equal(found.predicted_logits, predicted)
    assert not bool(found.target_logits[outside].any())
    assert len(found) == len(tuple(found)) == 6


@DTYPES
@pytest.mark.parametrize("round_logits", [False, True])
@pytest.mark.parametrize("shards", [2, 4, 16])
def test_statistics_of_equal_shards_fold_to_the_bits_of_the_whole(
    shards: int, round_logits: bool, dtype: torch.dtype
) -> None:
    vocab = 8192 + 16 * 3  # segments of 515 columns: a shard by itself would be cut elsewhere
    x, w, target, _ = operands(20, 24, vocab, dtype)
    whole = torch_npu.npu_fused_linear_online_max_sum(x, w, target, 0, vocab, round_logits=round_logits)
    if not round_logits:
        assert torch.equal(whole.sum_exp_logits, linear_max_sum(x, w).sum_exp)
    width = vocab // shards
    parts = [
        torch_npu.npu_fused_linear_online_max_sum(
            x, w[at : at + width], target, at, at + width, round_logits=round_logits, vocab_size=vocab
        )
        for at in range(0, vocab, width)
    ]
    folded = fold_tree([MaxSum(*part[:2]) for part in parts], merge)
    assert torch.equal(folded.max, whole.logits_max)
    assert torch.equal(folded.sum_exp, whole.sum_exp_logits)
    assert torch.equal(sum(part.target_logits for part in parts), whole.target_logits)


@DTYPES
def test_gradients_of_equal_shards_have_the_bits_of_the_whole(dtype: torch.dtype) -> None:
    vocab, shards = 8192 + 16 * 3, 4
    x, w, target, grad = operands(20, 24, vocab, dtype)
    whole = torch_npu.npu_fused_linear_online_max_sum(x, w, target, 0, vocab)
    expected_input, expected_weight = BACKWARD(grad, x, w, *whole[3:5], 0.0, *whole[:2])
    width = vocab // shards
    parts = []
    for at in range(0, vocab, width):
        own = w[at : at + width]
        part = torch_npu.npu_fused_linear_online_max_sum(x, own, target, at, at + width)
        place = {"vocab_start_index": at, "vocab_size": vocab}
        input_grad, weight_grad = BACKWARD(grad, x, own, *part[3:5], 0.0, *whole[:2], **place, grad_dtype=torch.float32)
        assert torch.equal(weight_grad.to(dtype), expected_weight[at : at + width])
        parts.append(input_grad)
    assert torch.equal(fold_tree(parts, torch.add).to(dtype), expected_input)


def gradients_by(form: str, x: Tensor, w: Tensor, found: torch_npu.OnlineMaxSum, grad: Tensor) -> tuple[Tensor, Tensor]:
    known = {"logits_max": found.logits_max, "sum_exp_logits": found.sum_exp_logits, "round_logits": form == "rounded"}
    if form == "softmax":
        _, softmax = torch_npu.npu_fused_cross_entropy_loss_with_max_sum(*found[:3], vocab_parallel_logits=found[5])
        known = {"softmax": softmax}
    return BACKWARD(grad, x, w, *found[3:5], **known, grad_dtype=torch.float32)


FORMS = pytest.mark.parametrize("form", ["statistics", "softmax", "rounded"])


@FORMS
def test_every_form_of_the_gradients_has_the_same_bits_for_any_batch_and_number_of_threads(
    form: str, threads: Callable[[int], None]
) -> None:
    x, w, target, grad = operands(300, 64, 4000, torch.bfloat16)

    def of(part: slice) -> tuple[Tensor, Tensor]:
        found = torch_npu.npu_fused_linear_online_max_sum(
            x[part], w, target[part], 0, 4000, True, round_logits=form == "rounded"
        )
        return gradients_by(form, x[part], w, found, grad[part])

    threads(1)
    expected_input, expected_weight = of(slice(None))
    threads(3)
    input_grad, weight_grad = of(slice(None))
    assert torch.equal(input_grad, expected_input)
    assert torch.equal(weight_grad, expected_weight)
    for part in (slice(7, 8), slice(120, 290)):
        assert torch.equal(of(part)[0], expected_input[part])


@FORMS
def test_every_form_of_the_gradients_has_equal_shards_with_the_bits_of_the_whole(form: str) -> None:
    vocab, shards = 8192 + 16 * 3, 4
    x, w, target, grad = operands(300, 24, vocab, torch.bfloat16)
    rounds = form == "rounded"
    whole = torch_npu.npu_fused_linear_online_max_sum(x, w, target, 0, vocab, True, round_logits=rounds)
    expected_input, expected_weight = gradients_by(form, x, w, whole, grad)
    assert whole.vocab_parallel_logits is not None
    width, parts = vocab // shards, []
    for at in range(0, vocab, width):
        own = w[at : at + width]
        part = torch_npu.npu_fused_linear_online_max_sum(x, own, target, at, at + width)
        known = {"logits_max": whole.logits_max, "sum_exp_logits": whole.sum_exp_logits, "round_logits": rounds}
        if form == "softmax":
            logits = whole.vocab_parallel_logits[:, at : at + width]
            known = {
                "softmax": torch_npu.npu_fused_cross_entropy_loss_with_max_sum(
                    *whole[:3], vocab_parallel_logits=logits
                ).softmax
            }
        place = {"vocab_start_index": at, "vocab_size": vocab}
        input_grad, weight_grad = BACKWARD(grad, x, own, *part[3:5], **known, **place, grad_dtype=torch.float32)
        assert torch.equal(weight_grad, expected_weight[at : at + width])
        parts.append(input_grad)
    assert torch.equal(fold_tree(parts, torch.add), expected_input)


def test_input_gradients_that_are_rounded_before_they_are_added_lose_accuracy() -> None:
    """Why there is grad_dtype: the cards' parts nearly cancel here, and 16 bits keep 8 digits of each."""
    vocab, shards = 8192, 16
    x, w, target, grad = operands(64, 24, vocab, torch.bfloat16)
    whole = torch_npu.npu_fused_linear_online_max_sum(x, w, target, 0, vocab)
    exact, _ = BACKWARD(grad.double(), x.double(), w.double(), *whole[3:5], 0.0, *(each.double() for each in whole[:2]))
    errors = []
    for dtype in (torch.float32, None):
        total = torch.zeros(64, 24, dtype=torch.float64)
        for at in range(0, vocab, vocab // shards):
            own = w[at : at + vocab // shards]
            part = torch_npu.npu_fused_linear_online_max_sum(x, own, target, at, at + len(own))
            total += BACKWARD(grad, x, own, *part[3:5], 0.0, *whole[:2], grad_dtype=dtype)[0]
        errors.append(float((total - exact).norm()))
    assert errors[0] < errors[1] / 100  # 16 more bits, less what fp32 sums lose
