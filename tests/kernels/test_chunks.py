"""Chunks of rows: whole blocks that cover the rows that take part, as large as their memory allows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steadysum.kernels.chunks import BLOCK_ROWS, row_chunks
from steadysum.kernels.problem import Operands

MIB = 2**20


def call(rows: int, hidden: int, vocab: int, dtype: torch.dtype, kept: torch.Tensor | None = None) -> Operands:
    def on_paper(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    return Operands(on_paper(rows, hidden), on_paper(vocab, hidden), None, 1.0, None, None, vocab, kept=kept)


@given(
    rows=st.integers(0, 5000),
    hidden=st.integers(1, 8192),
    vocab=st.integers(1, 300_000),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
    stored=st.booleans(),
)
def test_chunks_are_whole_blocks_that_cover_the_rows(
    rows: int, hidden: int, vocab: int, dtype: torch.dtype, stored: bool
) -> None:
    chunks = list(row_chunks(call(rows, hidden, vocab, dtype), stored=stored))
    assert [start for start, _ in chunks] == [0, *(stop for _, stop in chunks)][: len(chunks)]
    assert [stop for _, stop in chunks][-1:] == ([rows] if rows else [])
    sizes = [stop - start for start, stop in chunks]
    assert all(size == sizes[0] and size % BLOCK_ROWS == 0 and size <= 1024 for size in sizes[:-1])
    assert all(0 < size <= sizes[0] for size in sizes[-1:])


@given(hidden=st.integers(1, 8192), vocab=st.integers(1, 300_000))
def test_chunks_keep_to_their_memory_unless_one_block_is_larger(hidden: int, vocab: int) -> None:
    problem = call(10_000, hidden, vocab, torch.bfloat16)  # logits and statistics in fp32
    size = next(row_chunks(problem, stored=True))[1]
    assert size == BLOCK_ROWS or size * (vocab + 7 * hidden) * 4 <= 60 * MIB + 1024 * vocab
    size = next(row_chunks(problem, stored=False))[1]
    assert size == BLOCK_ROWS or size * (vocab / 16 + 7 * hidden) * 4 <= 32 * MIB


@pytest.mark.parametrize("vocab", [32_000, 50_304, 128_256])
def test_chunks_of_a_large_head_are_large_enough_for_fast_products(vocab: int) -> None:
    # chunks of 240 rows take 1.03-1.16 times as long as one product, of 120 rows 1.13, of 64 rows 1.41 (measured)
    assert next(row_chunks(call(4096, 1024, vocab, torch.float32), stored=True))[1] >= 240
    assert next(row_chunks(call(4096, 1024, vocab, torch.float32), stored=False))[1] >= 240


def test_only_rows_that_take_part_are_counted() -> None:
    problem = call(5000, 16, 100, torch.float32, kept=torch.arange(0, 5000, 4))
    assert list(row_chunks(problem, stored=True)) == [(0, 640), (640, 1250)]
