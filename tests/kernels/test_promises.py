"""A kernel keeps what it promises about bits, through the public functions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from steadysum import MaxSum, linear_logprobs, linear_max_sum, linear_softmax
from steadysum.kernels import Promise, get, names


def promising(promise: Promise) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("kernel", [name for name in names() if promise in get(name).promises], indirect=True)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def same(first: MaxSum, second: MaxSum) -> bool:
    return torch.equal(first.max, second.max) and torch.equal(first.sum_exp, second.sum_exp)


HEAD = draw(9000, 300, seed=1)


@promising(Promise.RUN_TO_RUN)
def test_bits_are_equal_from_run_to_run(kernel: str) -> None:
    x = draw(33, 300)
    first = linear_max_sum(x, HEAD, kernel=kernel)
    assert all(same(linear_max_sum(x, HEAD, kernel=kernel), first) for _ in range(5))


@promising(Promise.THREADS)
def test_bits_do_not_depend_on_the_number_of_threads(kernel: str, threads: Callable[[int], None]) -> None:
    x = draw(33, 300)
    first = linear_max_sum(x, HEAD, kernel=kernel)
    for count in (1, 2, 3, 8):
        threads(count)
        assert same(linear_max_sum(x, HEAD, kernel=kernel), first)


@promising(Promise.BATCH)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])  # the fixture holds no state
@given(
    rows=st.lists(st.integers(0, 32), min_size=1, max_size=40), dtype=st.sampled_from([torch.float32, torch.bfloat16])
)
def test_row_bits_do_not_depend_on_the_batch(kernel: str, rows: list[int], dtype: torch.dtype) -> None:
    x, head = draw(33, 300).to(dtype), HEAD.to(dtype)
    whole = linear_max_sum(x, head, kernel=kernel)
    some = linear_max_sum(x[rows], head, kernel=kernel)
    assert same(some, MaxSum(whole.max[rows], whole.sum_exp[rows]))


@promising(Promise.BATCH)
def test_row_bits_of_softmax_and_logprobs_do_not_depend_on_the_batch(kernel: str) -> None:
    x, target = draw(9, 300), torch.arange(9) * 1000
    softmax = linear_softmax(x, HEAD, kernel=kernel)
    logprobs, entropy = linear_logprobs(x, HEAD, target, kernel=kernel, return_entropy=True)
    for row in range(9):
        assert torch.equal(linear_softmax(x[row], HEAD, kernel=kernel), softmax[row])
        alone = linear_logprobs(x[row], HEAD, target[row], kernel=kernel, return_entropy=True)
        assert torch.equal(alone[0], logprobs[row])
        assert torch.equal(alone[1], entropy[row])
    assert torch.equal(linear_logprobs(x, HEAD, target, kernel=kernel), logprobs)
