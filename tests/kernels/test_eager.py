"""What is `eager`'s own: row blocks, fp64, the caller's autocast, and bounded memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from steadysum import linear_logprobs, linear_max_sum
from steadysum.kernels import eager
from steadysum.kernels.problem import Operands
from steadysum.tiling import TILE


def integers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).float()


def test_row_blocks_change_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    x, head = integers(10, 16), integers(1300, 16, seed=1)
    target, temperature = torch.arange(10), 2.0 ** torch.arange(10)
    options = {"kernel": "eager", "temperature": temperature, "return_entropy": True}
    whole = linear_logprobs(x, head, target, **options)
    monkeypatch.setattr(eager, "BLOCK_BYTES", 3 * (16 + eager.TEMPORARIES * TILE) * 4)
    blocks: list[int] = []
    fold_tiles = eager._fold_tiles
    monkeypatch.setattr(
        eager, "_fold_tiles", lambda call, out: (blocks.append(call.input.shape[0]), fold_tiles(call, out))[1]
    )
    split = linear_logprobs(x, head, target, **options)
    assert blocks == [3, 3, 3, 1]
    for one, other in zip(whole, split, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)  # 8 ulp: torch's vector width depends on the shape


def test_fp64_is_computed_in_fp64() -> None:
    x = torch.randn(5, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    head = torch.randn(9000, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = linear_max_sum(x, head, kernel="eager")
    assert found.max.dtype == found.sum_exp.dtype == torch.float64
    torch.testing.assert_close(found.log_sum_exp, torch.logsumexp(x @ head.T, 1), rtol=1e-14, atol=0)


def test_the_callers_autocast_does_not_round_the_product() -> None:
    x, head = torch.full((2, 300), 1 + 2.0**-12), torch.ones(5, 300)  # bf16 would lose the 2^-12
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = linear_max_sum(x, head, kernel="eager")
    assert found.max.tolist() == [300 + 300 * 2.0**-12] * 2


def test_no_temporary_is_larger_than_a_row_block_of_one_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    largest = 0
    tile_logits = eager._tile_logits

    def watched(call: Operands, x: Tensor, tile: object) -> Tensor:
        nonlocal largest
        z = tile_logits(call, x, tile)  # type: ignore[arg-type]
        largest = max(largest, (x.numel() if x.dtype != call.input.dtype else 0) + eager.TEMPORARIES * z.numel())
        return z

    monkeypatch.setattr(eager, "_tile_logits", watched)
    monkeypatch.setattr(eager, "BLOCK_BYTES", 2**20)
    linear_max_sum(
        torch.ones(4000, 32, dtype=torch.bfloat16), torch.ones(1200, 32, dtype=torch.bfloat16), kernel="eager"
    )
    assert 0 < largest * 4 <= 2**20
