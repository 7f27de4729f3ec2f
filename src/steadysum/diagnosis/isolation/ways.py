"""Conditions that change how one result is made of the batch: rows alone, pieces, another order of rows.

Each gives an output of the whole batch, so that its digest can be compared with that of the plain call. Which arguments
have the batch as their first dimension is told by `batched` (names or places), or else guessed: the first tensor, and
others of as many rows that aren't called weight or bias.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import torch
from torch import Tensor

from steadysum.diagnosis.isolation.arranged import Acted, Operator, VoidError
from steadysum.diagnosis.isolation.inputs import Call, copied
from steadysum.diagnosis.isolation.kept import outputs_of
from steadysum.diagnosis.isolation.quick_digest import quick_digest
from steadysum.guard.tensors import map_tensors, snapshot, tensors_of

__all__ = ["rows_alone", "shuffled", "split"]

_NO_BATCH: Final = frozenset({"weight", "bias", "w", "b"})
_ROWS: Final = 4  # that rows_alone computes where it isn't told: the first, the last and two others
_BASES: Final = 3  # plain calls; what two of them agree in is the base that rows are put into


def rows_alone(operator: Operator, call: Call, values: Mapping[str, Any], acted: Acted) -> Callable[[], Any]:
    """Some rows computed alone, put into the output of the whole batch."""
    batch = _Batch(operator, call, values)
    rows = values.get("rows")
    if rows is None:
        generator = torch.Generator().manual_seed(int(values.get("seed", 0)))
        inner = torch.randperm(batch.rows, generator=generator).tolist()
        rows = list(dict.fromkeys([0, batch.rows - 1, *inner]))[:_ROWS]
    copies = [copied(call) for _ in range(_BASES)]
    bases = [snapshot(operator(*copy.args, **copy.kwargs)) for copy in copies]
    digests = [quick_digest(outputs_of(base).tensors.items()) for base in bases]
    base = bases[digests.index(Counter(digests).most_common(1)[0][0])]
    batch.check_rows(base, batch.rows)

    def run() -> Any:
        whole = snapshot(base)
        for row in rows:
            one = batch.taken(torch.tensor([row]))  # anew in each run: the operator may write to it
            alone = operator(*one.args, **one.kwargs)
            batch.check_rows(alone, 1)
            for into, part in zip(tensors_of(whole), tensors_of(alone), strict=True):
                into[row] = part[0]
            acted.add()
        return whole

    return run


def split(operator: Operator, call: Call, values: Mapping[str, Any], acted: Acted) -> Callable[[], Any]:
    """The batch in pieces, one call for each."""
    batch = _Batch(operator, call, values)
    cuts = values.get("cuts") or [max(1, batch.rows // 3)]
    bounds = [0, *(cut for cut in sorted(cuts) if 0 < cut < batch.rows), batch.rows]
    if len(bounds) < 3:
        raise VoidError(f"cuts {list(cuts)} don't cut {batch.rows} rows")

    def run() -> Any:
        pieces = [batch.taken(torch.arange(start, stop)) for start, stop in pairwise(bounds)]
        parts = [operator(*piece.args, **piece.kwargs) for piece in pieces]
        for part, (start, stop) in zip(parts, pairwise(bounds), strict=True):
            batch.check_rows(part, stop - start)
        acted.add(len(parts))
        columns = iter([torch.cat(column) for column in zip(*map(tensors_of, parts), strict=True)])
        return map_tensors(lambda _: next(columns), parts[0])

    return run


def shuffled(operator: Operator, call: Call, values: Mapping[str, Any], acted: Acted) -> Callable[[], Any]:
    """The batch in another order of rows; the outputs are put back into the old one."""
    batch = _Batch(operator, call, values)
    order = torch.randperm(batch.rows, generator=torch.Generator().manual_seed(int(values.get("seed", 0))))
    back = order.argsort()
    moved = int((order != torch.arange(batch.rows)).sum())

    def run() -> Any:
        mixed = batch.taken(order)
        value = operator(*mixed.args, **mixed.kwargs)
        batch.check_rows(value, batch.rows)
        acted.add(moved)
        return map_tensors(lambda one: one[back.to(one.device)], value)

    return run


class _Batch:
    """Which arguments have rows, and how many."""

    def __init__(self, operator: Operator, call: Call, values: Mapping[str, Any]) -> None:
        self._call = call
        named: dict[int | str, Any] = dict(enumerate(call.args))
        named.update(call.kwargs)
        told: Sequence[int | str] | None = values.get("batched")
        tensors = {key: one for key, one in named.items() if isinstance(one, Tensor) and one.ndim > 0}
        if told is not None and not set(told) <= set(tensors):
            raise VoidError(f"batched {list(told)}: not all of them are tensors among the arguments {list(named)}")
        first = next(iter(told if told is not None else tensors), None)
        if first is None:
            raise VoidError("no argument is a tensor with rows")
        self.rows = tensors[first].shape[0]
        if self.rows < 2:
            raise VoidError(f"a batch of {self.rows} rows can't be cut")
        names = _names(operator)

        def is_batched(key: int | str, one: Tensor) -> bool:
            name = names[key] if isinstance(key, int) and key < len(names) else key
            return key == first or (one.shape[0] == self.rows and name not in _NO_BATCH)

        self._keys = set(told) if told is not None else {key for key, one in tensors.items() if is_batched(key, one)}

    def taken(self, rows: Tensor) -> Call:
        """The call with these rows alone."""
        args = [one[rows] if place in self._keys else one for place, one in enumerate(self._call.args)]
        kwargs = {key: one[rows] if key in self._keys else one for key, one in self._call.kwargs.items()}
        return Call(tuple(args), kwargs, self._call.source)

    def check_rows(self, value: Any, rows: int) -> None:
        """Refuses outputs that don't have a row for each row."""
        for one in tensors_of(value):
            if one.ndim == 0 or one.shape[0] != rows:
                raise VoidError(f"an output of shape {list(one.shape)} hasn't a row for each of {rows} rows")


def _names(operator: Operator) -> list[str]:
    try:
        return list(inspect.signature(operator).parameters)
    except (TypeError, ValueError):
        return []
