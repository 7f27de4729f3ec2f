"""How the rows of a call are cut into chunks whose logits, or pieces of them, are held at once: by their memory.

Not here: how the vocabulary is cut (tiling.py), or what is computed from a chunk (each kernel's own file). The cut
depends on the sizes of the problem alone, never on threads or on free memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from torch import Tensor

from steadysum.kernels.problem import Operands
from steadysum.tiling import SEGMENTS

__all__ = ["BLOCK_ROWS", "room_for_logits", "row_chunks"]

BLOCK_ROWS: Final = 128  # chunks begin at multiples of it, so that sums over rows in blocks of 128 never see the cut
MOST_ROWS: Final = 1024  # products with more rows are no faster

# The bars on memory above operands and results are 64 MiB + 1 KiB * V where gradients are formed from the chunk's own
# statistics, and 64 MiB where statistics are known. What is left of them is for partials, tiles and the interpreter.
STORED_BYTES: Final = 60 * 2**20
STORED_BYTES_PER_COLUMN: Final = 2**10
PIECE_BYTES: Final = 32 * 2**20
HIDDEN_VECTORS: Final = 7  # per row: its input, packed for both products, and five nodes of its gradient's fold


def row_chunks(call: Operands, *, stored: bool) -> Iterator[tuple[int, int]]:
    """Cut the rows that take part into chunks [start, stop), ascending; none where no row takes part.

    Args:
        call: the whole call.
        stored: whether all logits of a chunk are held at once; else a sixteenth of them is (about a segment).
    """
    vocab, hidden = call.weight.shape
    if stored:
        budget, columns = STORED_BYTES + STORED_BYTES_PER_COLUMN * vocab, vocab
    else:
        budget, columns = PIECE_BYTES, -(-vocab // SEGMENTS)
    affordable = budget // ((columns + HIDDEN_VECTORS * hidden) * call.dtype.itemsize)
    most = max(min(affordable, MOST_ROWS) // BLOCK_ROWS, 1) * BLOCK_ROWS
    if call.size == 0:
        return
    chunks = -(-call.size // most)
    size = -(-call.size // (chunks * BLOCK_ROWS)) * BLOCK_ROWS  # equal ones: a short last one would cost as much
    for start in range(0, call.size, size):
        yield start, min(start + size, call.size)


def room_for_logits(call: Operands, chunks: Sequence[tuple[int, int]]) -> Tensor:  # [rows of the longest chunk, V]
    """Memory for the logits of each of these chunks in turn, in the dtype of logits."""
    rows = max((stop - start for start, stop in chunks), default=0)
    return call.input.new_empty((rows, call.weight.shape[0]), dtype=call.dtype)
