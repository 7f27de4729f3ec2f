"""A loss over shards of the vocabulary, through the vendor's three operators, is linear_cross_entropy's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from steadysum import MaxSum, linear_cross_entropy, linear_max_sum
from steadysum.errors import DtypeError, OperandTypeError, RangeError, ShapeError
from steadysum.kernels.target_mask import unpack_mask
from steadysum.ops import vocab_parallel
from steadysum.ops.loss_with_max_sum import fused_cross_entropy_loss_with_max_sum
from steadysum.ops.loss_with_max_sum_backward import fused_linear_cross_entropy_loss_with_max_sum_backward
from steadysum.ops.online_max_sum import OnlineMaxSum, fused_linear_online_max_sum
from steadysum.ops.vocab_parallel import (
    MergedShards,
    ShardStatistics,
    add_input_gradients,
    merge_max_sum,
    merge_shards,
    other_bits,
    rescale_predicted,
    rescale_sum,
    split_vocab,
    to_send,
)

Cut = Sequence[range]
ROWS, HIDDEN = 37, 70


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Operands(NamedTuple):
    input: Tensor
    weight: Tensor
    target: Tensor
    upstream: Tensor  # of each row's loss


def operands(vocab: int, dtype: torch.dtype = torch.float32, rows: int = ROWS) -> Operands:
    target = torch.randint(0, vocab, (rows,), generator=torch.Generator().manual_seed(2))
    return Operands(draw(rows, HIDDEN).to(dtype), draw(vocab, HIDDEN, seed=1).to(dtype), target, draw(rows, seed=3))


class Results(NamedTuple):
    losses: Tensor
    input_grad: Tensor
    weight_grad: Tensor


def unsharded(given: Operands, **options: Any) -> Results:
    x, head = given.input.clone().requires_grad_(), given.weight.clone().requires_grad_()
    losses = linear_cross_entropy(x, head, given.target, reduction="none", **options)
    losses.backward(given.upstream.to(losses.dtype))
    assert x.grad is not None
    assert head.grad is not None
    return Results(losses.detach(), x.grad, head.grad)


def operator1(given: Operands, cut: Cut, **options: Any) -> list[OnlineMaxSum]:
    vocab = given.weight.shape[0]
    return [
        fused_linear_online_max_sum(
            given.input,
            given.weight[columns.start : columns.stop],
            given.target,
            columns.start,
            columns.stop,
            **{"vocab_size": vocab, **options},
        )
        for columns in cut
    ]


def sharded(given: Operands, cut: Cut, exchange: Callable[..., MergedShards] = merge_shards, **options: Any) -> Results:
    """The way of Megatron-LM: operator 1 on each shard, the exchange, operator 2, operator 3 on each shard."""
    shards = operator1(given, cut, **options)
    whole = exchange(shards, cut)
    losses, softmax = fused_cross_entropy_loss_with_max_sum(*whole)
    assert softmax is None
    of_input, of_weight = [], []
    for columns, shard in zip(cut, shards, strict=True):
        input_grad, weight_grad = fused_linear_cross_entropy_loss_with_max_sum_backward(
            given.upstream.to(losses.dtype),
            given.input,
            given.weight[columns.start : columns.stop],
            shard.target_mask,
            shard.masked_target,
            logits_max=whole.logits_max,
            sum_exp_logits=whole.sum_exp_logits,
            vocab_start_index=columns.start,
            grad_dtype=losses.dtype,
            **{"vocab_size": given.weight.shape[0], **options},
        )
        of_input.append(input_grad)
        of_weight.append(weight_grad)
    dtype = given.input.dtype
    return Results(losses, add_input_gradients(of_input, cut).to(dtype), torch.cat(of_weight).to(dtype))


def equal_shards(vocab: int, count: int) -> tuple[range, ...]:
    return tuple(range(start, start + vocab // count) for start in range(0, vocab, vocab // count))


def assert_same_bits(found: Results, expected: Results) -> None:
    for name, values, there in zip(Results._fields, found, expected, strict=True):
        assert torch.equal(values, there), name


def assert_near(found: Results, expected: Results, exact: Results) -> None:
    """As near to the float64 result as the unsharded call, within a factor of 2 and one rounding."""
    for name, values, there, right in zip(Results._fields, found, expected, exact, strict=True):
        allowed = 2 * (there - right).abs().max() + torch.finfo(there.dtype).eps * right.abs().max()
        assert (values - right).abs().max() <= allowed, name


# ---- equal bits at cuts that are nodes ---------------------------------------------------------------------------
@pytest.mark.parametrize("kernel", ["native"], indirect=True)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("count", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("vocab", [8192, 12016])  # segments of 512 columns; of 751, whose second tile is ragged
def test_equal_shards_give_the_unsharded_bits(kernel: str, vocab: int, count: int, dtype: torch.dtype) -> None:
    given, cut = operands(vocab, dtype), equal_shards(vocab, count)
    assert other_bits(cut) is None
    assert_same_bits(sharded(given, cut, kernel=kernel), unsharded(given, kernel=kernel))


@pytest.mark.parametrize("kernel", ["native"], indirect=True)
def test_shards_of_a_vocabulary_of_a_real_size_give_the_unsharded_bits(kernel: str) -> None:
    given, cut = operands(50257, rows=9), split_vocab(50257, 4)
    assert_same_bits(sharded(given, cut, kernel=kernel), unsharded(given, kernel=kernel))


@pytest.mark.parametrize("kernel", ["native"], indirect=True)
def test_nodes_of_different_sizes_give_the_unsharded_bits(kernel: str) -> None:
    given = operands(9600)
    cut = [range(start * 600, stop * 600) for start, stop in pairwise([0, 8, 12, 13, 14, 16])]
    assert other_bits(cut) is None
    assert_same_bits(sharded(given, cut, kernel=kernel), unsharded(given, kernel=kernel))


@pytest.mark.parametrize("kernel", ["native"], indirect=True)
@pytest.mark.parametrize("count", [2, 4, 8])
def test_shards_of_whole_tiles_of_a_small_vocabulary_give_the_unsharded_bits(kernel: str, count: int) -> None:
    given, cut = operands(4000), split_vocab(4000, count)
    assert other_bits(cut) is None
    assert_same_bits(sharded(given, cut, kernel=kernel), unsharded(given, kernel=kernel))


@pytest.mark.parametrize("kernel", ["native"], indirect=True)
def test_a_mean_over_shards_is_the_scalar_loss(kernel: str) -> None:
    given = operands(9600)
    given = given._replace(upstream=torch.full((ROWS,), 1 / ROWS))
    x, head = given.input.clone().requires_grad_(), given.weight.clone().requires_grad_()
    loss = linear_cross_entropy(x, head, given.target, kernel=kernel)
    loss.backward()
    found = sharded(given, split_vocab(9600, 8), kernel=kernel)
    assert torch.equal((found.losses.double().sum() / ROWS).float(), loss.detach())
    assert torch.equal(found.input_grad, x.grad)
    assert torch.equal(found.weight_grad, head.grad)


@pytest.mark.parametrize("kernel", ["native"], indirect=True)
def test_rows_left_out_have_the_bits_of_ignored_ones(kernel: str) -> None:
    given, cut = operands(9600, rows=300), split_vocab(9600, 4)
    given.target[::3], given.input[3] = -100, torch.nan
    expected = unsharded(given, kernel=kernel)
    keep = given.target != -100
    kept = Operands(given.input[keep], given.weight, given.target[keep], given.upstream[keep])
    found = sharded(kept, cut, kernel=kernel)
    assert torch.equal(found.losses, expected.losses[keep])
    assert torch.equal(found.input_grad, expected.input_grad[keep])
    assert torch.equal(found.weight_grad, expected.weight_grad)


@pytest.mark.parametrize("kernel", ["native"], indirect=True)
def test_rows_without_a_target_have_no_loss_but_their_log_sum(kernel: str) -> None:
    given, cut = operands(9600), split_vocab(9600, 4)
    given.target[::3] = -100
    merged = merge_shards(operator1(given, cut, kernel=kernel), cut)
    assert torch.equal(merged.predicted_logits[::3], torch.zeros(13))
    alone = linear_max_sum(given.input, given.weight, kernel=kernel)
    assert torch.equal(merged.sum_exp_logits, alone.sum_exp)


@pytest.mark.parametrize("kernel", ["native"], indirect=True)
@pytest.mark.parametrize("large", [float("inf"), float("-inf"), float("nan"), 3e38])
def test_infinite_and_nan_logits_shard_as_they_are(kernel: str, large: float) -> None:
    given, cut = operands(9600), split_vocab(9600, 4)
    given.weight[5000:5003] = large
    given.input[4] = 0
    found, there = sharded(given, cut, kernel=kernel), unsharded(given, kernel=kernel)
    for values, expected in zip(found, there, strict=True):
        assert torch.equal(values.isnan(), expected.isnan())
        assert torch.equal(values.nan_to_num(), expected.nan_to_num())


# ---- other cuts --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kernel", ["native", "eager"], indirect=True)
@pytest.mark.parametrize("cut", [(3000, 5000), (1, 2), (8999,), (1024, 4097, 8000), tuple(range(450, 9000, 450))])
def test_other_cuts_are_as_right_as_the_unsharded_call(kernel: str, cut: tuple[int, ...]) -> None:
    given = operands(9000)
    shards = [range(start, stop) for start, stop in pairwise([0, *cut, 9000])]
    reason = other_bits(shards)
    assert reason is not None
    assert "are no node of the fold's tree" in reason
    exact = unsharded(Operands(given.input.double(), given.weight.double(), *given[2:]), kernel="reference")
    assert_near(sharded(given, shards, kernel=kernel), unsharded(given, kernel=kernel), exact)


@pytest.mark.parametrize("kernel", ["native"], indirect=True)
def test_other_cuts_are_equal_from_run_to_run(kernel: str) -> None:
    given, cut = operands(9000), [range(3000), range(3000, 9000)]
    assert_same_bits(sharded(given, cut, kernel=kernel), sharded(given, cut, kernel=kernel))


@pytest.mark.parametrize("kernel", ["native"], indirect=True)
def test_the_vendors_own_exchange_is_right(kernel: str) -> None:
    """Without vocab_size, and with the rescaling that the vendor asks of its callers: sums by all-reduce."""

    def by_all_reduce(shards: Sequence[OnlineMaxSum], cut: Cut) -> MergedShards:
        largest = torch.stack([shard.logits_max for shard in shards]).amax(0)
        sums = [rescale_sum(shard.sum_exp_logits, shard.logits_max, largest) for shard in shards]
        predicted = [
            rescale_predicted(shard.predicted_logits, shard.logits_max, largest, shard.target_mask) for shard in shards
        ]
        return MergedShards(largest, sum(sums[1:], sums[0]), sum(predicted[1:], predicted[0]))

    given, cut = operands(9000), equal_shards(9000, 4)
    exact = unsharded(Operands(given.input.double(), given.weight.double(), *given[2:]), kernel="reference")
    found = sharded(given, cut, by_all_reduce, kernel=kernel, vocab_size=None)
    assert_near(found, unsharded(given, kernel=kernel), exact)


@pytest.mark.parametrize("kernel", ["native"], indirect=True)
def test_plain_tuples_merge_with_one_rounding_more(kernel: str) -> None:
    given, cut = operands(9600), split_vocab(9600, 4)
    shards = operator1(given, cut, kernel=kernel)
    with_logits, without = merge_shards(shards, cut), merge_shards([tuple(shard)[:4] for shard in shards], cut)
    assert torch.equal(with_logits.sum_exp_logits, without.sum_exp_logits)
    distance = (with_logits.predicted_logits - without.predicted_logits).abs()
    assert (distance <= torch.finfo(torch.float32).eps * without.predicted_logits.abs()).all()
    assert distance.max() > 0  # else predicted alone would be enough, and target_logits of no use


# ---- pieces ------------------------------------------------------------------------------------------------------
@given(st.integers(1, 200_000), st.integers(1, 64))
def test_a_vocabulary_is_split_without_gaps_at_nodes_or_evenly(vocab: int, count: int) -> None:
    if count > vocab:
        with pytest.raises(RangeError, match=f"shards: got {count}; allowed: 1 to {vocab}"):
            split_vocab(vocab, count)
        return
    cut = split_vocab(vocab, count)
    assert [columns.start for columns in cut] == [0, *(columns.stop for columns in cut[:-1])]
    assert cut[-1].stop == vocab
    assert len(cut) == count
    assert all(cut)
    sizes = [len(columns) for columns in cut]
    assert other_bits(cut) is None or max(sizes) - min(sizes) <= 1


def test_sizes_that_are_no_sizes_are_refused() -> None:
    with pytest.raises(OperandTypeError, match="type of vocab_size: got float; allowed: int"):
        split_vocab(64.0, 2)  # type: ignore[arg-type]
    with pytest.raises(RangeError, match="vocab_size: got 0; allowed: >= 1"):
        split_vocab(0, 1)


@given(st.integers(8192, 200_000), st.sampled_from([1, 2, 4, 8, 16]))
def test_a_large_vocabulary_is_split_at_nodes(vocab: int, count: int) -> None:
    assert other_bits(split_vocab(vocab, count)) is None


def test_a_mask_says_which_rows_a_shard_holds() -> None:
    given, cut = operands(9600), split_vocab(9600, 4)
    held = torch.stack([~unpack_mask(shard.target_mask, ROWS) for shard in operator1(given, cut)])
    assert torch.equal(held.sum(0), torch.ones(ROWS, dtype=torch.int64))
    assert torch.equal(held.int().argmax(0), given.target // 2400)


@pytest.mark.parametrize("cut", [[], [range(1, 5)], [range(5), range(6, 9)], [range(0)], [range(0, 9, 2)]])
def test_a_cut_with_gaps_is_refused(cut: list[range]) -> None:
    with pytest.raises(RangeError, match="allowed: ranges of columns, ascending from 0, without gaps"):
        other_bits(cut)


@pytest.mark.parametrize("kernel", ["native"], indirect=True)
def test_what_a_rank_sends_is_enough_for_the_unsharded_bits(kernel: str) -> None:
    """Four tensors of fixed shape and dtype per rank, as all_gather takes them; merged as a generator, too."""
    given, cut = operands(9600), split_vocab(9600, 4)
    given.target[::5] = -100
    shards = operator1(given, cut, kernel=kernel)
    sent = [[tensor.clone() for tensor in to_send(shard)] for shard in shards]
    assert {tuple((tensor.shape, tensor.dtype) for tensor in each) for each in sent} == {
        (((ROWS,), torch.float32),) * 3 + (((5,), torch.uint8),)
    }
    expected = merge_shards(shards, cut)
    received = (ShardStatistics(*each) for each in sent)
    assert all(map(torch.equal, merge_shards(received, cut), expected))


@pytest.mark.parametrize("form", [lambda shard: shard, to_send, lambda shard: tuple(shard)[:4]])
@pytest.mark.parametrize("kernel", ["native"], indirect=True)
def test_a_target_of_minus_infinity_in_a_shard_of_nothing_else_is_infinitely_unlikely(kernel: str, form: Any) -> None:
    given, cut = operands(9600), split_vocab(9600, 4)
    given.weight[:2400], given.input[:] = -torch.inf, 1.0
    given.target[:] = 7
    merged = merge_shards([form(shard) for shard in operator1(given, cut, kernel=kernel)], cut)
    assert merged.predicted_logits.eq(-torch.inf).all()


def test_values_of_one_shard_that_do_not_fit_are_refused() -> None:
    rows = torch.zeros(20)
    mask = torch.zeros(3, dtype=torch.uint8)
    with pytest.raises(DtypeError, match=r"dtype of target_mask: got torch.bool; allowed: torch.uint8, one bit"):
        merge_shards([(rows, rows, rows, torch.zeros(20, dtype=torch.bool))])
    with pytest.raises(ShapeError, match=r"shape of target_mask: got \[2\]; allowed: \[3\] or longer"):
        merge_shards([(rows, rows, rows, mask[:2])])
    with pytest.raises(ShapeError, match=r"shape of the target's logit: got \[20, 1\]; allowed: \[20\]"):
        merge_shards([(rows, rows, rows[:, None], mask)])
    with pytest.raises(DtypeError, match=r"dtype of target_mask: got torch.bool"):
        rescale_predicted(rows, rows, rows, rows.bool())
    with pytest.raises(ShapeError, match=r"shape of global_max: got \[3\]; allowed: \[20\]"):
        rescale_sum(rows, rows, rows[:3])


def test_a_result_is_never_a_part() -> None:
    part = torch.ones(1, 1)
    add_input_gradients([part]).zero_()
    assert part.item() == 1


def test_shards_that_do_not_fit_are_refused() -> None:
    one = MaxSum(torch.zeros(2), torch.ones(2))
    with pytest.raises(ShapeError, match="number of shards: got 0; allowed: 1 or more"):
        merge_max_sum([])
    with pytest.raises(ShapeError, match="number of shards: got 2; allowed: 1, as in the cut"):
        merge_max_sum([one, one], [range(5)])
    with pytest.raises(ShapeError, match="four equal shapes"):
        merge_max_sum([one, MaxSum(torch.zeros(3), torch.ones(3))])
    with pytest.raises(ShapeError, match=r"shapes of the parts: got \[2, 1\] and \[3, 1\]"):
        add_input_gradients([torch.ones(2, 1), torch.ones(3, 1)])
    with pytest.raises(OperandTypeError, match="got tuple of 2; allowed: the results of fused_linear_online_max_sum"):
        merge_shards([(torch.zeros(2), torch.ones(2))])
    with pytest.raises(OperandTypeError, match="types in the cut: got tuple; allowed: range"):
        merge_max_sum([one], [(0, 5)])  # type: ignore[list-item]
    with pytest.raises(DtypeError, match=r"dtype of the parts: got torch.int64"):
        add_input_gradients([torch.ones(2, 1, dtype=torch.int64)])


def test_input_gradients_are_added_wide() -> None:
    """Megatron-LM issue 2739: 256 + 1 + ... + 1 in bf16 stays 256."""
    parts = [torch.full((1, 1), 256.0).bfloat16()] + [torch.ones(1, 1).bfloat16()] * 15
    assert add_input_gradients(parts).item() == 271


def test_the_module_offers_what_it_documents() -> None:
    assert all(getattr(vocab_parallel, name).__doc__ for name in vocab_parallel.__all__)
