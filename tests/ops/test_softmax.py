"""linear_softmax: values, dtypes, infinite rows as in torch, bounded memory."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from steadysum import linear_softmax
from steadysum.ops import softmax

INF, NAN = math.inf, math.nan


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_softmax_is_as_good_as_torchs(kernel: str, assert_as_good_as: Callable[[Tensor, Tensor, Tensor], None]) -> None:
    x, head = draw(2, 5, 64), draw(1300, 64, seed=1)
    found = linear_softmax(x, head, scale=0.25, valid_vocab=1000, kernel=kernel)
    assert found.shape == (2, 5, 1300)
    assert found.dtype == torch.float32
    assert found.is_contiguous()
    assert found[..., 1000:].eq(0).all()
    z = 0.25 * x @ head[:1000].T
    exact = torch.softmax(0.25 * x.double() @ head[:1000].double().T, -1)
    assert_as_good_as(found[..., :1000], torch.softmax(z, -1), exact)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_a_dtype_is_rounded_to_once(kernel: str, dtype: torch.dtype) -> None:
    x, head = draw(7, 64), draw(600, 64, seed=1)
    found = linear_softmax(x, head, dtype=dtype, kernel=kernel)
    assert found.dtype == dtype
    if kernel != "reference":  # which doesn't round to fp32 on the way
        assert torch.equal(found, linear_softmax(x, head, kernel=kernel).to(dtype))


def test_fp64_operands_give_fp64() -> None:
    assert linear_softmax(torch.ones(1, 2).double(), torch.ones(3, 2).double()).dtype == torch.float64


def test_a_narrow_result_is_computed_by_row_blocks(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, head, temperature = draw(7, 32), draw(600, 32, seed=1), 2.0 ** torch.arange(7)
    whole = linear_softmax(x, head, temperature=temperature, dtype=torch.bfloat16, kernel=kernel)
    monkeypatch.setattr(softmax, "BLOCK_BYTES", 2 * 600 * 4)
    blocks = linear_softmax(x, head, temperature=temperature, dtype=torch.bfloat16, kernel=kernel)
    # one bf16 rounding apart at most: torch's product, unlike native's, may change a row's last fp32 bits
    torch.testing.assert_close(blocks, whole, rtol=2.0**-7, atol=0)
    if kernel == "native":
        assert torch.equal(blocks, whole)
    monkeypatch.setattr(softmax, "BLOCK_BYTES", 1)  # less than a row: one row at a time
    assert linear_softmax(x, head, dtype=torch.bfloat16, kernel=kernel).shape == (7, 600)


@pytest.mark.parametrize("shape", [(0, 8), (0, 3, 8), (3, 0, 8)])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_no_rows_give_no_rows(kernel: str, shape: tuple[int, ...], dtype: torch.dtype | None) -> None:
    found = linear_softmax(torch.ones(shape), torch.ones(9, 8), dtype=dtype, kernel=kernel)
    assert found.shape == (*shape[:-1], 9)


@pytest.mark.parametrize(
    "logits",
    [[INF, 0.0, 1.0], [-INF, -INF, -INF], [INF, INF, 0.0], [NAN, 0.0, 1.0], [0.0, -INF, 1.0], [INF, -INF, NAN]],
)
@pytest.mark.parametrize("repeats", [1, 400])
def test_rows_that_are_not_finite_are_as_in_torch(kernel: str, logits: list[float], repeats: int) -> None:
    head = torch.tensor(logits)[:, None].repeat(repeats, 1)
    found = linear_softmax(torch.ones(1, 1), head, kernel=kernel)
    wanted = torch.softmax(head.T, 1)
    assert torch.equal(found.isnan(), wanted.isnan())
    torch.testing.assert_close(found, wanted, equal_nan=True)
