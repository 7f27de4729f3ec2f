"""EmbeddingGather: rows that are those of the table, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from steadysum.guard.checks.embedding_gather import EmbeddingGather
from steadysum.guard.checks.protocol import Made

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def made(function: Any, *args: Any, **kwargs: Any) -> Made:
    """The call, and what it gave."""
    return Made(function, args, kwargs, function(*args, **kwargs))


@pytest.mark.parametrize("dtype", DTYPES)
def test_gathered_rows_pass_whatever_they_hold(dtype: torch.dtype) -> None:
    table = torch.randn(7, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    table[3] = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0])
    ids = torch.randint(7, (2, 3, 4), generator=torch.Generator().manual_seed(1))
    layer = nn.Embedding.from_pretrained(table, padding_idx=2)
    for call in (made(layer, ids), made(layer.forward, ids), made(F.embedding, ids, table), made(layer, ids[0, 0, 0])):
        assert EmbeddingGather().fits(call) is None
        assert EmbeddingGather().judge(call).passed


@given(st.sampled_from(DTYPES), st.integers(0, 11), st.integers(0, 4), st.integers(0, 15))
def test_any_flipped_bit_is_found_where_it_is(dtype: torch.dtype, row: int, column: int, bit: int) -> None:
    table = torch.randn(7, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    ids = torch.arange(12).reshape(3, 4) % 7
    call = made(F.embedding, ids, table)
    words = call.output.view(12, 5).view({2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize])
    words[row, column] ^= 1 << bit if bit < 15 else -(1 << 15)
    finding = EmbeddingGather().judge(call)
    assert finding.rows == (row,)
    assert finding.places == ((row, column),)


def test_a_neighbours_row_is_found() -> None:
    layer = nn.Embedding(7, 5)
    ids = torch.tensor([1, 2, 3])
    output = layer(ids).detach()
    finding = EmbeddingGather().judge(Made(layer, (), {"input": ids}, output[[0, 0, 2]]))
    assert finding.rows == (1,)
    assert finding.summary == "1 of 3 rows aren't those of the table (first: row 1, for id 2)"


def test_many_rows_are_looked_at_in_parts() -> None:
    table = torch.randn(10, 1024)
    ids = torch.arange(3000) % 10
    call = made(F.embedding, ids, table)
    assert EmbeddingGather().judge(call).passed
    call.output[2999] = 0
    finding = EmbeddingGather().judge(call)
    assert finding.rows == (2999,)
    assert len(finding.places) == 16


def test_another_shape_or_dtype_is_a_fault() -> None:
    layer = nn.Embedding(7, 5)
    ids = torch.tensor([1, 2, 3])
    assert "not rows of its table" in EmbeddingGather().judge(Made(layer, (ids,), {}, torch.zeros(3, 4))).summary
    assert not EmbeddingGather().judge(Made(layer, (ids,), {}, layer(ids).detach().double())).passed


class Scaled(nn.Embedding):
    """An embedding with a forward of its own."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Scaled, as some models have it."""
        return 8.0 * super().forward(input)


def test_what_is_no_plain_gather_does_not_fit() -> None:
    ids = torch.tensor([1, 2])
    hooked = nn.Embedding(7, 5)
    hooked.register_forward_hook(lambda _module, _args, output: 8.0 * output)
    for call, reason in (
        (made(Scaled(7, 5), ids), "Scaled has a forward of its own"),
        (made(hooked, ids), "Embedding has hooks, which may change what it is given, or what it gives"),
        (made(nn.Embedding(7, 5, max_norm=1.0), ids), "max_norm rewrites rows of the table as it gathers them"),
        (made(torch.sin, torch.ones(2)), "sin isn't an embedding"),
        (made(nn.Embedding(7, 5, device="meta"), ids.to("meta")), "its table holds no dense values"),
    ):
        assert EmbeddingGather().fits(call) == reason
