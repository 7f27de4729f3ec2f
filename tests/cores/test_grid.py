"""Tests of steadysum.cores.grid and layout: every logit is computed once, and each writer has lines of its own."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from steadysum.cores.grid import VENDOR, Geometry, Grid, split_rows
from steadysum.cores.plan import Cut, Plan

SIZES = st.integers(1, 70)
GEOMETRIES = st.builds(Geometry, st.integers(1, 20), st.integers(1, 20))


@given(rows=st.integers(0, 70), vocab=SIZES, cores=st.integers(1, 9), geometry=GEOMETRIES)
def test_every_logit_is_in_one_tile_of_one_core(rows: int, vocab: int, cores: int, geometry: Geometry) -> None:
    grid = Grid(rows, vocab, cores, geometry)
    seen = np.zeros((rows, vocab), int)
    for core in range(grid.cores):
        for tile in grid.tiles_of(core):
            for half in range(2):
                part = tile.half(half, geometry)
                seen[part.start : part.stop, tile.column : tile.column + tile.columns] += 1
    assert (seen == 1).all()
    assert grid.cores <= max(1, min(cores, len(grid.tiles)))


@given(rows=SIZES, vocab=SIZES, cores=st.integers(1, 9), geometry=GEOMETRIES)
def test_owners_are_the_cores_that_have_tiles_of_a_row_block(
    rows: int, vocab: int, cores: int, geometry: Geometry
) -> None:
    grid = Grid(rows, vocab, cores, geometry)
    for block, counts in enumerate(grid.owners):
        for core in range(grid.cores):
            assert counts.get(core, 0) == sum(tile.row_block == block for tile in grid.tiles_of(core))


def test_the_shape_of_the_field_report_has_16_tiles() -> None:
    grid = Grid(1024, 512, 24, VENDOR)
    assert len(grid.tiles) == 16
    assert grid.cores == 16


def test_up_to_five_row_blocks_are_visited_row_by_row_and_more_in_groups_of_eight_by_eight() -> None:
    plain = Grid(5 * 128, 10 * 256, 24, VENDOR)
    assert [tile.row_block for tile in plain.tiles[:11]] == [0] * 10 + [1]
    swizzled = Grid(9 * 128, 10 * 256, 24, VENDOR)
    first = swizzled.tiles[:64]
    assert {tile.row_block for tile in first} == set(range(8))
    assert {tile.column // 256 for tile in first} == set(range(8))


@given(rows=st.integers(0, 200), parts=st.integers(1, 9), multiple=st.integers(1, 20))
def test_split_rows_are_all_rows_in_order_cut_at_multiples(rows: int, parts: int, multiple: int) -> None:
    pieces = split_rows(rows, parts, multiple)
    assert len(pieces) == parts
    assert [row for piece in pieces for row in piece] == list(range(rows))
    assert all(piece.start % multiple == 0 for piece in pieces if piece)


def test_a_floor_for_a_ceiling_forgets_the_tail_of_the_vocabulary() -> None:
    whole, floored = (Grid(128, 700, 4, VENDOR, floors=floors) for floors in (False, True))
    assert sum(tile.columns for tile in whole.tiles) == 700
    assert sum(tile.columns for tile in floored.tiles) == 512


@given(
    rows=SIZES,
    vocab=SIZES,
    cores=st.integers(1, 5),
    geometry=GEOMETRIES,
    duplicates=st.booleans(),
    logits=st.booleans(),
)
def test_aligned_slots_and_outputs_of_two_units_share_no_line(
    rows: int, vocab: int, cores: int, geometry: Geometry, duplicates: bool, logits: bool
) -> None:
    plan = Plan(Cut(rows, vocab, cores, geometry, False, True, logits, duplicates, 64, np.dtype(np.int64)))
    writers: dict[tuple[str, int], tuple[int, int, int]] = {}
    sizes = {name: np.dtype(dtype).itemsize for name, dtype, *_ in plan.layout.regions}
    slots = [
        (plan.layout.slot(core, half_block, core, copy), (core, half_block, copy))
        for copy in range(1 + duplicates)
        for core in range(plan.grid.cores)
        for half_block in range(plan.layout.half_blocks)
    ]
    slots += [
        (plan.layout.outputs(number, 0, part), (-1, number, 0)) for number, part in enumerate(plan.output_rows) if part
    ]
    slots += [
        (plan.layout.targets(number, 0, part), (-2, number, 0)) for number, part in enumerate(plan.target_rows) if part
    ]
    for slot, writer in slots:
        for span in slot.spans:
            size = sizes[span.region]
            for line in range(span.start * size // 64, -(-span.stop * size // 64)):
                assert writers.setdefault((span.region, line), writer) == writer
