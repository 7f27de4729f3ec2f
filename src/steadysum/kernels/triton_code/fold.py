"""The canonical fold: a leaf's tiles in ascending order, then the 16 leaves by the fixed binary tree.

Not here: the partials (logits.py, sums.py). The merge has the published bits on every device, so that shards' results
that `steadysum.merge` folds on the CPU have the bits of the unsharded call. A leaf that is absent is the identity of
the merge, which changes no bit: (-inf, 0) of statistics, and -0 of sums (+0 would change -0).
"""

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from steadysum.kernels.problem import Statistics
from steadysum.kernels.triton_code import blocks
from steadysum.kernels.triton_code.arithmetic import published_exp
from steadysum.kernels.triton_code.logits import Partials
from steadysum.kernels.triton_code.mode import options
from steadysum.maxsum import MaxSum
from steadysum.tiling import SEGMENTS

__all__ = ["fold_partials", "fold_sums", "merge"]


def fold_partials(partials: Partials, leaf_tiles: Tensor, longest: int) -> Statistics:
    """The statistics of all rows; leaf i has tiles [leaf_tiles[i], leaf_tiles[i + 1]), at most `longest` of them."""
    rows = partials.max.shape[1]
    block = blocks.fitting(blocks.BLOCKS.fold, rows)
    folded = [None if each is None else each.new_empty(rows) for each in partials[:4]]
    _fold_partials[(triton.cdiv(rows, block),)](
        leaf_tiles,
        *partials[:4],
        *folded,
        rows,
        longest,
        WANTS_WEIGHTED=partials.weighted_sum is not None,
        WANTS_TIES=partials.ties is not None,
        LEAVES=SEGMENTS,
        ROWS=block,
        **options(warps=2),
    )
    largest, total, weighted, ties = folded
    assert largest is not None
    assert total is not None
    return Statistics(largest, total, partials.target_logit, weighted, ties)


@lru_cache(maxsize=16)  # as many devices as a machine has; the table's way there costs more than the merge
def _two_leaves(device: torch.device) -> Tensor:
    """Which nodes the fold's leaves have, [17]: the first leaf the first node, the second the second."""
    return torch.tensor([0, 1] + [2] * (SEGMENTS - 1), device=device)


def merge(first: MaxSum, second: MaxSum) -> MaxSum:
    """The statistics of two nodes of the tree, [...] fp32 each, as one, with the bits that the fold gives them."""
    shape, device = first.max.shape, first.max.device
    largest, total = (torch.stack(pair).view(2, -1) for pair in zip(first, second, strict=True))
    nodes = Partials(largest, total, None, None, None)
    if nodes.max.shape[1] == 0:
        return MaxSum(largest.new_empty(shape), total.new_empty(shape))
    merged = fold_partials(nodes, _two_leaves(device), 1)
    return MaxSum(merged.max.view(shape), merged.sum_exp.view(shape))


def fold_sums(parts: Tensor, leaf_parts: Tensor, longest: int, out: Tensor) -> None:
    """Add parts [sums, parts, elements] up in the order of the fold, into out [sums, elements], both contiguous.

    Leaf i has parts [leaf_parts[i], leaf_parts[i + 1]), at most `longest` of them.
    """
    sums, count, elements = parts.shape
    block = blocks.fitting(blocks.BLOCKS.fold, elements)
    _fold_sums[(triton.cdiv(elements, block), sums)](
        leaf_parts, parts, out, count, elements, longest, LEAVES=SEGMENTS, ROWS=block, **options(warps=2)
    )


@triton.jit
def _merged(
    m1: tl.tensor,
    s1: tl.tensor,
    t1: tl.tensor,
    n1: tl.tensor,
    m2: tl.tensor,
    s2: tl.tensor,
    t2: tl.tensor,
    n2: tl.tensor,
    WEIGHTED: tl.constexpr,
    TIES: tl.constexpr,
) -> tuple[tl.tensor, ...]:
    """Two partials as one: max, sum_exp, weighted_sum, ties; with the bits of the fold in docs/bits.md."""
    largest = tl.maximum(m1, m2)
    first = m1 == largest
    second = m2 == largest  # where not both, the other's factor is exp of a distance; equal infinities have 1 and 1
    distance = tl.where(first, m2, m1) - largest
    factor = published_exp(distance)
    f1 = tl.where(first, 1.0, factor)
    f2 = tl.where(second, 1.0, factor)
    if WEIGHTED:
        moved1 = tl.where(f1 == 0.0, 0.0, f1 * tl.fma(s1, distance, t1))
        moved2 = tl.where(f2 == 0.0, 0.0, f2 * tl.fma(s2, distance, t2))
        t1 = tl.where(first, t1, moved1) + tl.where(second, t2, moved2)
    if TIES:
        n1 = tl.where(first, n1, 0.0) + tl.where(second, n2, 0.0)
    return largest, tl.fma(s2, f2, s1 * f1), t1, n1


@triton.jit
def _pairs(values: tl.tensor, ROWS: tl.constexpr, NODES: tl.constexpr) -> tl.tensor:  # two of them
    """Columns (0, 1), (2, 3), ... of [ROWS, 2 NODES]: the even and the odd ones."""
    return tl.split(tl.reshape(values, [ROWS, NODES, 2]))


@triton.jit(do_not_specialize=["rows", "longest"])
def _fold_partials(  # type: ignore[no-untyped-def]
    leaf_tiles: tl.tensor,  # [LEAVES + 1]
    tile_max: tl.tensor,  # [tiles, N], as the next three
    tile_sum: tl.tensor,
    tile_weighted: tl.tensor,
    tile_ties: tl.tensor,
    row_max: tl.tensor,  # [N], as the next three
    row_sum: tl.tensor,
    row_weighted: tl.tensor,
    row_ties: tl.tensor,
    rows: tl.tensor,
    longest: tl.tensor,
    WANTS_WEIGHTED: tl.constexpr,
    WANTS_TIES: tl.constexpr,
    LEAVES: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    leaf = tl.arange(0, LEAVES)
    first = tl.load(leaf_tiles + leaf)
    end = tl.load(leaf_tiles + leaf + 1)
    m = tl.full([ROWS, LEAVES], float("-inf"), tl.float32)
    s = tl.full([ROWS, LEAVES], 0.0, tl.float32)
    t = tl.full([ROWS, LEAVES], 0.0, tl.float32)
    n = tl.full([ROWS, LEAVES], 0.0, tl.float32)
    for step in range(longest):
        tile = first + step
        inside = (row < rows)[:, None] & (tile < end)[None, :]
        at = tile[None, :] * rows + row[:, None]
        m2 = tl.load(tile_max + at, mask=inside, other=float("-inf"))
        s2 = tl.load(tile_sum + at, mask=inside, other=0.0)
        t2 = t
        n2 = n
        if WANTS_WEIGHTED:
            t2 = tl.load(tile_weighted + at, mask=inside, other=0.0)
        if WANTS_TIES:
            n2 = tl.load(tile_ties + at, mask=inside, other=0.0)
        m, s, t, n = _merged(m, s, t, n, m2, s2, t2, n2, WANTS_WEIGHTED, WANTS_TIES)
    for level in tl.static_range(4):
        m1, m2 = _pairs(m, ROWS, LEAVES >> (level + 1))
        s1, s2 = _pairs(s, ROWS, LEAVES >> (level + 1))
        t1, t2, n1, n2 = s1, s2, s1, s2
        if WANTS_WEIGHTED:
            t1, t2 = _pairs(t, ROWS, LEAVES >> (level + 1))
        if WANTS_TIES:
            n1, n2 = _pairs(n, ROWS, LEAVES >> (level + 1))
        m, s, t, n = _merged(m1, s1, t1, n1, m2, s2, t2, n2, WANTS_WEIGHTED, WANTS_TIES)
    at = row[:, None]
    inside = at < rows
    tl.store(row_max + at, tl.where(s != s, s, m), mask=inside)
    tl.store(row_sum + at, s, mask=inside)
    if WANTS_WEIGHTED:
        tl.store(row_weighted + at, t, mask=inside)
    if WANTS_TIES:
        tl.store(row_ties + at, tl.where(s != s, s, n), mask=inside)


@triton.jit(do_not_specialize=["parts_per_sum", "elements", "longest"])
def _fold_sums(  # type: ignore[no-untyped-def]
    leaf_parts: tl.tensor,  # [LEAVES + 1]
    parts: tl.tensor,  # [sums, parts, elements]
    out: tl.tensor,  # [sums, elements]
    parts_per_sum: tl.tensor,
    elements: tl.tensor,
    longest: tl.tensor,
    LEAVES: tl.constexpr,
    ROWS: tl.constexpr,
):
    element = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    sum_ = tl.program_id(1).to(tl.int64)
    leaf = tl.arange(0, LEAVES)
    first = tl.load(leaf_parts + leaf)
    end = tl.load(leaf_parts + leaf + 1)
    total = tl.full([ROWS, LEAVES], -0.0, tl.float32)
    for step in range(longest):
        part = first + step
        inside = (element < elements)[:, None] & (part < end)[None, :]
        at = (sum_ * parts_per_sum + part[None, :]) * elements + element[:, None]
        total += tl.load(parts + at, mask=inside, other=-0.0)
    for level in tl.static_range(4):
        left, right = _pairs(total, ROWS, LEAVES >> (level + 1))
        total = left + right
    at = element[:, None]
    tl.store(out + sum_ * elements + at, total, mask=at < elements)
