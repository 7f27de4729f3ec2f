"""The checksums of weights that kernel `native` verifies calls by, kept between calls.

They are taken once for each version of a weight: a pass over it, about a hundredth of the product with 1024 rows. What
writes through `.data` doesn't change a tensor's version; the kernel finds out when a result doesn't fit, and has them
taken anew before it blames anything. Of a tile that held NaN or an infinity it could never find out, as it compares
nothing there: one such element of each is looked at again in every call. Not here: what the checksums are
(native/checksum.hpp), or who compares (native_checksums.py).
"""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from types import ModuleType
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from steadysum.kernels.problem import Operands
from steadysum.tiling import Shard, tiles

__all__ = ["forget", "take"]

KEPT: Final = 16  # weights; a model has one or two heads
BLOCK: Final = 128  # length of a reduction's block (docs/bits.md)


class _Key(NamedTuple):
    """What decides a weight's checksums, as far as it can be seen from outside."""

    storage: int  # its address, which no other storage takes while an entry refers to it
    offset: int
    version: int | None  # None: the tensor was made under inference_mode, which counts no versions
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    valid_vocab: int
    shard: Shard | None
    isa: str  # which rounds sums of its own


class _Entry(NamedTuple):
    checksums: Any
    storage: StorageWeakRef
    odd: tuple[Tensor, Tensor] | None  # rows and columns of NaN or infinities, one for each tile that holds any


_kept: OrderedDict[_Key, _Entry] = OrderedDict()
_lock = threading.Lock()
_warned = False


def take(module: ModuleType, call: Operands, native_call: Any) -> Any:
    """The checksums of a call's weight, for the extension."""
    key = _key(module, call)
    with _lock:
        found = _kept.get(key)
        if found is not None:
            _kept.move_to_end(key)
    if found is not None:
        if found.odd is None or not bool(call.weight.detach()[found.odd].isfinite().any()):
            return found.checksums
        forget(module, call)
    vocab, hidden = call.weight.shape
    count = 2 * len(tiles(vocab, call.shard))
    blocks = -(-hidden // BLOCK)
    inverse_scale = torch.empty(count // 2, dtype=torch.float32, device="cpu")
    checksums = module.Checksums(
        native_call,
        columns=torch.empty(count, hidden, dtype=torch.float32, device="cpu"),
        energies=torch.empty(count, blocks, dtype=torch.float32, device="cpu"),
        inverse_scale=inverse_scale,
        threads=torch.get_num_threads(),
    )
    odd = _odd_places(call, inverse_scale)
    with _lock:
        for old in [each for each, entry in _kept.items() if entry.storage.expired()]:  # type: ignore[no-untyped-call]
            del _kept[old]
        _kept[key] = _Entry(checksums, StorageWeakRef(call.weight.untyped_storage()), odd)  # type: ignore[no-untyped-call]
        while len(_kept) > KEPT:
            _kept.popitem(last=False)
    return checksums


def forget(module: ModuleType, call: Operands) -> None:
    """Have a weight's checksums taken anew: its elements aren't what they were taken of."""
    with _lock:
        _kept.pop(_key(module, call), None)
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            "a weight has changed though its version has not, so its checksums were taken again: it was written "
            "through .data or under inference_mode, or its memory is damaged; of its own, a checksum can't tell which. "
            "This is said once.",
            UserWarning,
            stacklevel=2,
        )


def _odd_places(call: Operands, inverse_scale: Tensor) -> tuple[Tensor, Tensor] | None:
    """Where the tiles that have no checksums hold NaN or an infinity, one place each; None: there is no such tile."""
    cut = tiles(call.weight.shape[0], call.shard)
    found = []
    for index in (inverse_scale == 0.0).nonzero().flatten().tolist():
        rows = call.weight.detach()[cut[index].start : min(cut[index].stop, call.valid_vocab)]
        for row, column in (~rows.isfinite()).nonzero()[:1].tolist():
            found.append((cut[index].start + row, column))
    if not found:
        return None
    rows, columns = torch.tensor(found, device=call.weight.device).unbind(1)
    return rows, columns


def _key(module: ModuleType, call: Operands) -> _Key:
    weight = call.weight
    return _Key(
        weight.untyped_storage()._cdata,
        int(weight.storage_offset()),
        None if weight.is_inference() else weight._version,
        tuple(weight.shape),
        weight.stride(),
        weight.dtype,
        call.valid_vocab,
        call.shard,
        module.isa(),
    )
