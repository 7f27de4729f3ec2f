"""How a vocabulary is cut into segments and tiles; it depends on the size of the vocabulary and on nothing else.

Not here: who computes a tile, or how partials are folded (maxsum.py). Row blocks are each kernel's own matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

__all__ = ["SEGMENTS", "TILE", "Shard", "Tile", "is_node", "segment_columns", "segments", "tiles", "tiles_of"]

TILE: Final = 512  # columns; 252 rows of them, fp32 logits, take half of a second-level cache of 1 MiB
SEGMENTS: Final = 16  # leaves of the fold's tree: shards over 1, 2, 4, 8 or 16 ranks are then whole subtrees


class Shard(NamedTuple):
    """Where the columns of a shard begin in a vocabulary of `vocab` columns, whose segments it is cut by.

    How many columns the shard has is not said here: that is the number of its weight's rows.
    """

    start: int
    vocab: int


class Tile(NamedTuple):
    """Columns [start, stop) of the vocabulary, or of a shard, which lie in its segment of this index."""

    segment: int
    start: int
    stop: int


def segment_columns(vocab: int) -> int:
    """The number of columns of a vocabulary's segments, but for a shorter last one."""
    return -(-vocab // SEGMENTS) if vocab >= TILE * SEGMENTS else TILE


def segments(columns: int, shard: Shard | None = None) -> tuple[range, ...]:
    """Cut a vocabulary, or a shard of one, into at most 16 segments of columns.

    From 8192 columns on there are 16 segments of ceil(vocab / 16) columns, below that they have 512 columns; the last
    one is shorter where the division leaves a remainder. So equal shards of a vocabulary >= 8192 that 16 divides, over
    1, 2, 4, 8 or 16 ranks, are whole segments. (Below 8192 they are so only if a shard is a multiple of 512 columns.)

    A shard is cut where its vocabulary is; its columns, and its segments, are counted from its own first one.

    >>> segments(1200)
    (range(0, 512), range(512, 1024), range(1024, 1200))
    >>> len(segments(30522)), segments(30522)[-1]
    (16, range(28620, 30522))
    >>> segments(1000, Shard(start=500, vocab=30522))  # the vocabulary's segments are [0, 1908), ...
    (range(0, 1000),)
    """
    start, vocab = (0, columns) if shard is None else shard
    width = segment_columns(vocab)
    cuts = range((start // width + 1) * width - start, columns, width)  # between two segments
    return tuple(range(begin, end) for begin, end in zip((0, *cuts), (*cuts, columns), strict=True))


def is_node(columns: int, shard: Shard) -> bool:
    """Whether a shard is all that one node of the fold's tree covers.

    Then its statistics are that node, and folding all such shards' statistics by `fold_tree` gives the bits of the
    whole vocabulary's.

    >>> is_node(8000, Shard(start=8000, vocab=32000)), is_node(8000, Shard(start=4000, vocab=32000))
    (True, False)
    """
    width = segment_columns(shard.vocab)
    end = shard.start + columns
    last = end == shard.vocab  # leaves that are absent beyond the end count as covered
    if shard.start % width or (end % width and not last):
        return False
    first, leaves = shard.start // width, -(-columns // width)
    size = 1
    while size < leaves:
        size *= 2
    return first % size == 0 and (size == leaves or last)


def tiles_of(index: int, segment: range) -> Iterator[Tile]:
    """The tiles of one segment, ascending; the last is ragged."""
    for start in range(segment.start, segment.stop, TILE):
        yield Tile(index, start, min(start + TILE, segment.stop))


def tiles(columns: int, shard: Shard | None = None) -> tuple[Tile, ...]:
    """All tiles of a vocabulary, or of a shard, ascending.

    >>> tiles(1200)
    (Tile(segment=0, start=0, stop=512), Tile(segment=1, start=512, stop=1024), Tile(segment=2, start=1024, stop=1200))
    """
    return tuple(tile for index, segment in enumerate(segments(columns, shard)) for tile in tiles_of(index, segment))
