"""linear_logprobs: values, large common offsets, entropy, infinite rows as in torch."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from steadysum import linear_logprobs

INF, NAN = math.inf, math.nan
Check = Callable[[Tensor, Tensor, Tensor], None]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def plain(z: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    logp = torch.log_softmax(z, -1)
    return logp.gather(-1, target.long()[..., None])[..., 0], torch.distributions.Categorical(logits=z).entropy()


@pytest.mark.parametrize("scale", [0.0625, 1.0])  # near uniform, and peaked
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_values_are_as_good_as_torchs(kernel: str, scale: float, dtype: torch.dtype, assert_as_good_as: Check) -> None:
    x, head = draw(4, 16, 64), draw(1300, 64, seed=1)
    target = (torch.arange(64).view(4, 16) * 20).to(dtype)
    logprobs, entropy = linear_logprobs(x, head, target, scale=scale, kernel=kernel, return_entropy=True)
    assert logprobs.shape == entropy.shape == (4, 16)
    assert logprobs.dtype == entropy.dtype == torch.float32
    assert logprobs.le(0).all()
    assert entropy.ge(0).all()
    plain_values = plain(scale * (x @ head.T), target)
    exact = plain(scale * (x.double() @ head.double().T), target)
    assert_as_good_as(logprobs, plain_values[0], exact[0])
    assert_as_good_as(entropy, plain_values[1], exact[1])
    assert torch.equal(linear_logprobs(x, head, target, scale=scale, kernel=kernel), logprobs)


def test_a_large_common_offset_loses_nothing(kernel: str) -> None:
    # logits 2^24 + {0, 2, 4}: exact in fp32; lse - z_t would be rounded to a multiple of 2
    x, head = torch.tensor([[4096.0, 2.0]]), torch.tensor([[4096.0, 0.0], [4096.0, 1.0], [4096.0, 2.0]])
    found = linear_logprobs(x, head, torch.tensor([2]), kernel=kernel)
    wanted = -math.log1p(math.exp(-2) + math.exp(-4))
    assert found.item() == pytest.approx(wanted, rel=4 * 2.0**-23)  # exp, sum and log: an ulp each, and the result's


def test_a_certain_token_has_logprob_and_entropy_zero(kernel: str) -> None:
    logprobs, entropy = linear_logprobs(
        torch.ones(1, 1), torch.tensor([[0.0], [200.0]]), torch.tensor([1]), kernel=kernel, return_entropy=True
    )
    assert logprobs.item() == entropy.item() == 0


def test_masked_columns_have_no_part_in_the_entropy(kernel: str) -> None:
    _, entropy = linear_logprobs(
        torch.zeros(1, 4), torch.zeros(1024, 4), torch.tensor([0]), valid_vocab=8, kernel=kernel, return_entropy=True
    )
    assert entropy.item() == pytest.approx(math.log(8), rel=2.0**-22)


@pytest.mark.parametrize("logits", [[INF, 0.0, 1.0], [-INF, -INF, -INF], [NAN, 0.0, 1.0], [0.0, -INF, 1.0]])
@pytest.mark.parametrize("target", [0, 1, 2])
def test_rows_that_are_not_finite_are_as_in_torch(kernel: str, logits: list[float], target: int) -> None:
    head = torch.tensor(logits)[:, None]
    found, entropy = linear_logprobs(torch.ones(1, 1), head, torch.tensor([target]), kernel=kernel, return_entropy=True)
    wanted = torch.log_softmax(head.T, 1)
    torch.testing.assert_close(found, wanted[:, target], equal_nan=True)
    p = wanted.exp()
    torch.testing.assert_close(entropy, -torch.where(p == 0, 0, p * wanted).sum(1), equal_nan=True)


@pytest.mark.parametrize("shape", [(0,), (0, 3), ()])
def test_any_leading_shape(kernel: str, shape: tuple[int, ...]) -> None:
    target = torch.zeros(shape, dtype=torch.int64)
    found = linear_logprobs(torch.ones(*shape, 4), torch.ones(5, 4), target, kernel=kernel)
    assert found.shape == shape
