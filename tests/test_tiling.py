"""Tiles cover the vocabulary, at positions that equal shards share."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from steadysum.maxsum import fold_tree
from steadysum.tiling import SEGMENTS, TILE, Shard, is_node, segment_columns, segments, tiles, tiles_of

vocabularies = st.integers(1, 300_000)


@given(vocabularies)
@example(1)
@example(8191)
@example(8192)
@example(8193)
def test_tiles_cover_each_column_once_in_ascending_order(vocab: int) -> None:
    stops = [0] + [tile.stop for tile in tiles(vocab)]
    assert [tile.start for tile in tiles(vocab)] == stops[:-1]
    assert stops[-1] == vocab
    assert all(0 < tile.stop - tile.start <= TILE for tile in tiles(vocab))


@given(vocabularies)
@example(8192)
def test_tiles_start_at_each_segments_first_column(vocab: int) -> None:
    for tile in tiles(vocab):
        segment = segments(vocab)[tile.segment]
        assert (tile.start - segment.start) % TILE == 0
        assert tile.stop <= segment.stop
        ragged = tile.stop - tile.start < TILE
        assert not ragged or tile.stop == segment.stop


@given(vocabularies)
@example(8191)
@example(8192)
def test_there_are_16_segments_from_8192_columns_on_and_segments_of_512_below(vocab: int) -> None:
    lengths = [len(segment) for segment in segments(vocab)]
    if vocab >= 8192:
        assert len(lengths) == SEGMENTS
        assert set(lengths[:-1]) == {-(-vocab // SEGMENTS)}
        assert 0 < lengths[-1] <= lengths[0]
    else:
        assert len(lengths) == -(-vocab // 512)
        assert set(lengths[:-1]) <= {512}


@given(st.integers(8192 // 16, 300_000 // 16), st.sampled_from([1, 2, 4, 8, 16]))
def test_equal_shards_of_a_large_vocabulary_are_whole_segments(sixteenth: int, ranks: int) -> None:
    vocab = 16 * sixteenth
    starts = {segment.start for segment in segments(vocab)}
    assert {rank * vocab // ranks for rank in range(ranks)} <= starts


@pytest.mark.parametrize("vocab", [513, 8192, 30522, 128256])
def test_the_tiles_of_all_segments_are_the_tiles(vocab: int) -> None:
    cut = [tile for index, segment in enumerate(segments(vocab)) for tile in tiles_of(index, segment)]
    assert tuple(cut) == tiles(vocab)


@given(vocabularies, st.data())
def test_a_shard_is_cut_where_its_vocabulary_is(vocab: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, vocab - 1))
    columns = data.draw(st.integers(1, vocab - start))
    cuts = {segment.start for segment in segments(vocab)} | {start, start + columns}
    whole = [range(a, b) for a, b in pairwise(sorted(cuts)) if start <= a < start + columns]
    there = segments(columns, Shard(start, vocab))
    assert [range(segment.start + start, segment.stop + start) for segment in there] == whole
    stops = [0, *(tile.stop for tile in tiles(columns, Shard(start, vocab)))]
    assert [tile.start for tile in tiles(columns, Shard(start, vocab))] == stops[:-1]
    assert stops[-1] == columns


def written(first: str, second: str) -> str:
    return f"({first} {second})"


@given(vocabularies, st.data())
def test_a_shard_is_a_node_where_its_own_tree_is_a_part_of_the_vocabularys(vocab: int, data: st.DataObject) -> None:
    width, count = segment_columns(vocab), len(segments(vocab))
    first = data.draw(st.integers(0, count - 1))
    last = data.draw(st.integers(first, count - 1))
    shard, columns = Shard(first * width, vocab), min((last + 1) * width, vocab) - first * width
    whole = fold_tree([str(leaf) for leaf in range(count)], written)
    own = fold_tree([str(leaf) for leaf in range(first, last + 1)], written)
    assert is_node(columns, shard) == (first == last or own in whole)


@given(vocabularies.filter(lambda vocab: vocab > 1), st.data())
def test_a_shard_that_cuts_a_segment_is_no_node(vocab: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, vocab - 1))
    columns = data.draw(st.integers(1, vocab - start))
    edges = {edge for segment in segments(vocab) for edge in (segment.start, segment.stop)}
    if not {start, start + columns} <= edges:
        assert not is_node(columns, Shard(start, vocab))
