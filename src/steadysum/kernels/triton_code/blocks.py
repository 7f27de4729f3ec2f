"""The sizes of blocks, compiled and interpreted.

Not here: the compiler's other options (mode.py). The sizes are constants, or decided by the width of the operands, and
never by the number of rows or by trying: what a row's bits depend on must be the same in every call.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from steadysum.kernels.triton_code.mode import INTERPRETED

__all__ = ["BLOCKS", "GROUP", "depth", "fitting"]


class Blocks(NamedTuple):
    """Rows, columns of the vocabulary, and hidden columns, of a program's blocks; warps where they depend on those."""

    rows: int  # of the product that gives logits
    columns: int  # of that product, and of the weight's gradient; a tile's blocks are merged in ascending order
    hidden: int  # of a gradient
    input_rows: int  # of the input's gradient
    summed_columns: int  # that the input's gradient sums up at once
    summed_rows: int  # that the weight's gradient sums up at once
    fold: int  # rows of partials, beside 16 leaves
    elements: tuple[int, int]  # rows and columns of elementwise work
    tile_rows: int  # rows of a sum over a tile
    bias_columns: int  # columns of a sum over 128 rows


# A product's 128 x 128 fp32 sums take 128 registers of each of the 128 threads of four warps: what is left of 255 is
# enough for the epilogue, and two programs fit on one multiprocessor, so that one's epilogue hides behind the other's
# product. G, in fp32, has 128 bytes of each row at once. Of the rest each thread has 8 to 64 neighbouring values.
COMPILED: Final = Blocks(
    rows=128,
    columns=128,
    hidden=128,
    input_rows=128,
    summed_columns=32,
    summed_rows=32,
    fold=16,
    elements=(4, 512),
    tile_rows=4,
    bias_columns=64,
)

# Interpreted, an operation costs about 0.1 ms even if it is small: blocks are as large as tests' problems, and as
# Triton allows: 2^20 products in a block.
BY_INTERPRETER: Final = Blocks(
    rows=64,
    columns=256,
    hidden=64,
    input_rows=64,
    summed_columns=256,
    summed_rows=64,
    fold=4096,
    elements=(64, 2048),
    tile_rows=64,
    bias_columns=2048,
)

BLOCKS = BY_INTERPRETER if INTERPRETED else COMPILED

# Row blocks that share a tile's weights before the next tile's are read: 16 x 128 rows of 4096 bf16 inputs are 16 MiB,
# which stay in a second-level cache of 40 MiB or more beside the weights that pass through.
GROUP: Final = 16


def depth(hidden: int, bytes_per_element: int) -> int:
    """How much of the hidden index a product loads at once: compiled, 128 bytes of each row, a cache line."""
    if INTERPRETED:
        return fitting(64, hidden)
    return 128 // bytes_per_element


def fitting(most: int, size: int) -> int:
    """The size of a block along which no sum runs, so that it decides no bits: interpreted, no larger than needed."""
    return min(most, 1 << (max(size, 1) - 1).bit_length()) if INTERPRETED else most
