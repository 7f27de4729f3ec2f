"""How a vocabulary is cut into segments and tiles; it depends on the size of the vocabulary and on nothing else.

Not here: who computes a tile, or how partials are folded (maxsum.py). Row blocks are each kernel's own matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

__all__ = ["SEGMENTS", "TILE", "Tile", "segments", "tiles", "tiles_of"]

TILE: Final = 512  # columns; 252 rows of them, fp32 logits, take half of a second-level cache of 1 MiB
SEGMENTS: Final = 16  # leaves of the fold's tree: shards over 1, 2, 4, 8 or 16 ranks are then whole subtrees


class Tile(NamedTuple):
    """Columns [start, stop) of the vocabulary, which lie in the segment of this index."""

    segment: int
    start: int
    stop: int


def segments(vocab: int) -> tuple[range, ...]:
    """Cut a vocabulary into at most 16 segments of columns.

    From 8192 columns on there are 16 segments of ceil(vocab / 16) columns, below that they have 512 columns; the last
    one is shorter where the division leaves a remainder. So equal shards of a vocabulary >= 8192 that 16 divides, over
    1, 2, 4, 8 or 16 ranks, are whole segments. (Below 8192 they are so only if a shard is a multiple of 512 columns.)

    >>> segments(1200)
    (range(0, 512), range(512, 1024), range(1024, 1200))
    >>> len(segments(30522)), segments(30522)[-1]
    (16, range(28620, 30522))
    """
    width = -(-vocab // SEGMENTS) if vocab >= TILE * SEGMENTS else TILE
    return tuple(range(start, min(start + width, vocab)) for start in range(0, vocab, width))


def tiles_of(index: int, segment: range) -> Iterator[Tile]:
    """The tiles of one segment, ascending; the last is ragged."""
    for start in range(segment.start, segment.stop, TILE):
        yield Tile(index, start, min(start + TILE, segment.stop))


def tiles(vocab: int) -> tuple[Tile, ...]:
    """All tiles of a vocabulary, ascending.

    >>> tiles(1200)
    (Tile(segment=0, start=0, stop=512), Tile(segment=1, start=512, stop=1024), Tile(segment=2, start=1024, stop=1200))
    """
    return tuple(tile for index, segment in enumerate(segments(vocab)) for tile in tiles_of(index, segment))
