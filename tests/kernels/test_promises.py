"""A kernel keeps what it promises about bits, through the public functions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from steadysum import MaxSum, linear_logprobs, linear_max_sum, linear_softmax
from steadysum.kernels import Promise, get, names, triton


def promising(promise: Promise) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("kernel", [name for name in names() if promise in get(name).promises], indirect=True)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def same(first: MaxSum, second: MaxSum) -> bool:
    return torch.equal(first.max, second.max) and torch.equal(first.sum_exp, second.sum_exp)


# 16 segments of two tiles, and hidden columns for several blocks; interpreted, where each takes milliseconds, two.
HEAD = draw(9000, 300, seed=1)
SMALL_HEAD = draw(700, 70, seed=1)


def head_for(kernel: str) -> Tensor:
    return SMALL_HEAD if kernel == "triton" and triton.interpreted() else HEAD


def input_for(kernel: str, rows: int) -> Tensor:
    return draw(rows, head_for(kernel).shape[1])


@promising(Promise.RUN_TO_RUN)
def test_bits_are_equal_from_run_to_run(kernel: str) -> None:
    x, head = input_for(kernel, 33), head_for(kernel)
    first = linear_max_sum(x, head, kernel=kernel)
    assert all(same(linear_max_sum(x, head, kernel=kernel), first) for _ in range(5))


@promising(Promise.THREADS)
def test_bits_do_not_depend_on_the_number_of_threads(kernel: str, threads: Callable[[int], None]) -> None:
    x, head = input_for(kernel, 33), head_for(kernel)
    first = linear_max_sum(x, head, kernel=kernel)
    for count in (1, 2, 3, 8):
        threads(count)
        assert same(linear_max_sum(x, head, kernel=kernel), first)


@promising(Promise.BATCH)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])  # the fixture holds no state
@given(
    rows=st.lists(st.integers(0, 32), min_size=1, max_size=40), dtype=st.sampled_from([torch.float32, torch.bfloat16])
)
def test_row_bits_do_not_depend_on_the_batch(kernel: str, rows: list[int], dtype: torch.dtype) -> None:
    x, head = input_for(kernel, 33).to(dtype), head_for(kernel).to(dtype)
    whole = linear_max_sum(x, head, kernel=kernel)
    some = linear_max_sum(x[rows], head, kernel=kernel)
    assert same(some, MaxSum(whole.max[rows], whole.sum_exp[rows]))


@promising(Promise.BATCH)
def test_row_bits_of_softmax_and_logprobs_do_not_depend_on_the_batch(kernel: str) -> None:
    x, head = input_for(kernel, 9), head_for(kernel)
    target = torch.arange(9) * (len(head) // 9)
    softmax = linear_softmax(x, head, kernel=kernel)
    logprobs, entropy = linear_logprobs(x, head, target, kernel=kernel, return_entropy=True)
    for row in range(9):
        assert torch.equal(linear_softmax(x[row], head, kernel=kernel), softmax[row])
        alone = linear_logprobs(x[row], head, target[row], kernel=kernel, return_entropy=True)
        assert torch.equal(alone[0], logprobs[row])
        assert torch.equal(alone[1], entropy[row])
    assert torch.equal(linear_logprobs(x, head, target, kernel=kernel), logprobs)
