"""How a call is cut, as tables on its device: the tiles' columns, which tiles a leaf of the fold has, which columns.

Not here: where the cuts are (tiling.py). Tables, and not formulas in the kernels, so that tiling.py alone decides.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from steadysum.kernels.problem import Operands
from steadysum.tiling import SEGMENTS, tiles

__all__ = ["Grid", "grid_of"]

KEPT_GRIDS: Final = 64  # a model has a few heads on a few devices; a table has 16 bytes per 512 columns


class Grid(NamedTuple):
    """The cut of a vocabulary or of a shard; leaves without tiles are absent from the fold."""

    tiles: Tensor  # [tiles, 2], int64: first column, and the one after the last
    leaf_tiles: Tensor  # [17], int64: leaf i has tiles [leaf_tiles[i], leaf_tiles[i + 1])
    leaf_columns: Tensor  # [leaves, 2], int64: as `tiles`, of the leaves that are present
    leaf_numbers: Tensor  # [17], int64: as leaf_tiles, with each present leaf in the place of all its tiles
    longest: int  # the largest number of tiles of a leaf


def grid_of(call: Operands) -> Grid:
    """The cut of a call's columns."""
    return _grid(call.weight.shape[0], call.shard, call.weight.device)


@lru_cache(maxsize=KEPT_GRIDS)  # a table's way to the device costs as much as a small call
def _grid(columns: int, shard: Any, device: torch.device) -> Grid:
    cut = tiles(columns, shard)
    counts = [0] * SEGMENTS
    spans: dict[int, tuple[int, int]] = {}
    for tile in cut:
        counts[tile.segment] += 1
        spans[tile.segment] = (spans.get(tile.segment, (tile.start, 0))[0], tile.stop)

    def table(values: list[Any]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    return Grid(
        tiles=table([(tile.start, tile.stop) for tile in cut]),
        leaf_tiles=table(_offsets(counts)),
        leaf_columns=table(list(spans.values())),
        leaf_numbers=table(_offsets([min(count, 1) for count in counts])),
        longest=max(counts),
    )


def _offsets(counts: list[int]) -> list[int]:
    offsets = [0]
    for count in counts:
        offsets.append(offsets[-1] + count)
    return offsets
