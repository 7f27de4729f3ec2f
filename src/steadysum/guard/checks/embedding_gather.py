"""EmbeddingGather: whether the rows of an embedding's output are those of its table, bit for bit.

Not here: bags of embeddings, which are sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from steadysum.guard.checks.calls import arguments_of, call_of, plain_module, unusable
from steadysum.guard.checks.protocol import Finding, Made
from steadysum.ulps import raw_bits

__all__ = ["EmbeddingGather"]

MOST_ROWS: Final = 16
# Elements that are gathered again at a time: those that a first-level cache holds twice; a GPU would rather have few.
_AT_ONCE_CPU: Final = 1 << 17
_AT_ONCE: Final = 1 << 24


@dataclass(frozen=True)
class EmbeddingGather:
    """Each row of the output has the bits of the table's row that its id names.

    The rows are gathered once more, by another of torch's operators (indexing), and compared as integers, so that a
    NaN of the table is no fault. `padding_idx` changes gradients, not outputs.

    >>> table, ids = torch.eye(3), torch.tensor([2, 0])
    >>> swapped = table[ids.flip(0)]
    >>> EmbeddingGather().judge(Made(torch.nn.functional.embedding, (ids, table), {}, swapped)).rows
    (0, 1)
    """

    @property
    def name(self) -> str:
        """embedding_gather."""
        return "embedding_gather"

    def fits(self, made: Made) -> str | None:
        """torch.nn.Embedding and torch.nn.functional.embedding, without max_norm."""
        found = _gather(made)
        return found if isinstance(found, str) else None

    def judge(self, made: Made) -> Finding:
        """`measured` is the number of wrong rows."""
        found = _gather(made)
        if isinstance(found, str):
            return Finding(self.name, passed=False, summary=f"the check doesn't fit: {found}")
        ids, table = found
        with torch.no_grad():
            if made.output.shape != (*ids.shape, table.shape[1]) or made.output.dtype != table.dtype:
                summary = f"the output is {made.output.dtype} {list(made.output.shape)}, not rows of its table"
                return Finding(self.name, passed=False, summary=summary)
            output = made.output.detach().reshape(ids.numel(), table.shape[1])
            unequal = _unequal(output, table.detach(), ids.detach().reshape(-1))
        if not unequal:
            return Finding(self.name, passed=True, measured=0.0, allowed=0.0)
        bad = [start + row for start, part in unequal for row in part.any(dim=1).nonzero().flatten().tolist()]
        places = [
            (start + row, column) for start, part in unequal for row, column in part.nonzero()[:MOST_ROWS].tolist()
        ]
        return Finding(
            self.name,
            passed=False,
            summary=f"{len(bad)} of {ids.numel()} rows aren't those of the table (first: row {bad[0]}, for id "
            f"{int(ids.reshape(-1)[bad[0]])})",
            rows=tuple(bad[:MOST_ROWS]),
            places=tuple(places[:MOST_ROWS]),
            measured=float(len(bad)),
            allowed=0.0,
        )


def _unequal(output: Tensor, table: Tensor, ids: Tensor) -> list[tuple[int, Tensor]]:
    """Parts of the output that aren't the table's: the first row's number, and which elements differ [n, D]."""
    found = []
    at_once = _AT_ONCE_CPU if output.device.type == "cpu" else _AT_ONCE
    for start in range(0, len(ids), step := max(1, at_once // max(output.shape[1], 1))):
        part = slice(start, start + step)
        seen, exact = raw_bits(output[part]), raw_bits(table.index_select(0, ids[part]))
        if not torch.equal(seen, exact):
            found.append((start, (seen != exact).cpu()))
    return found


def _gather(made: Made) -> tuple[Tensor, Tensor] | str:
    """Ids and table, or why the call is no plain gather."""
    function, args, kwargs = call_of(made)
    module = plain_module(function, torch.nn.Embedding)
    if isinstance(module, str):
        return module
    if module is not None:
        given: dict[str, Any] = {"weight": module.weight, "max_norm": module.max_norm}
        given["input"] = args[0] if args else kwargs.get("input")
    elif function is torch.nn.functional.embedding:
        given = arguments_of(made) or {}
    else:
        return f"{getattr(function, '__name__', type(function).__name__)} isn't an embedding"
    if given.get("max_norm") is not None:
        return "max_norm rewrites rows of the table as it gathers them"
    ids, table = given.get("input"), given.get("weight")
    if not isinstance(ids, Tensor) or not isinstance(table, Tensor) or not isinstance(made.output, Tensor):
        return "ids, table and output aren't all tensors"
    reason = unusable(table)
    if reason is not None:
        return f"its table {reason}"
    return ids, table
