"""Outputs and inputs as they come, nested: their tensors by path, copies, sizes, rows, and whether bits are the same.

Not here: how tensors are saved (storages.py), and when two results are near enough (comparison.py).
"""

from __future__ import annotations

import copy
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from steadysum.guard.bundle_reading import DEEPEST, SKELETON_KEY

__all__ = [
    "Flat",
    "as_rows",
    "differing_rows",
    "flatten",
    "map_tensors",
    "memories_of",
    "memory_of",
    "nbytes",
    "same_bits",
    "snapshot",
    "tensors_of",
    "why_unlike",
]

_MOST_NODES: Final = 20_000  # of a skeleton: a list of a million numbers is data, and belongs in a tensor
_PER_NODE: Final = 64  # characters of a string that count as one node
_LONGEST_KEY: Final = 1000  # characters
_MOST_BITS: Final = 4096  # of one integer; Python itself refuses to write far longer ones as decimals
_WORDS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Flat(NamedTuple):
    """A nested value in two halves."""

    tensors: dict[str, Tensor]  # by path, in order of appearance; the tensors themselves, no copies
    skeleton: Any  # the rest, as JSON can hold it; bundle_reading.py says what the kinds of nodes are


def flatten(value: Any) -> Flat:
    """Takes tuples, lists and dicts apart, down to tensors and plain values; also NamedTuples and torch's own tuples.

    Args:
        value: anything; what is neither of these is noted by its type, as not saved.

    Returns:
        The tensors by path, and the skeleton: what is left, with the paths in the tensors' places.

    >>> flat = flatten({"pair": (torch.zeros(2), 1.5)})
    >>> list(flat.tensors)
    ['pair/0']
    """
    walk = _Walk()
    return Flat(walk.tensors, walk.node(value, (), 0))


def map_tensors(function: Callable[[Tensor], Any], value: Any) -> Any:
    """The same nest with function(tensor) in place of each tensor; containers are new and keep their types."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, tuple):
        items = [map_tensors(function, item) for item in value]
        if hasattr(value, "_fields"):
            return type(value)(*items)
        return type(value)(items)
    if isinstance(value, list):
        listed = copy.copy(value)
        listed[:] = [map_tensors(function, item) for item in value]
        return listed
    if isinstance(value, dict):
        named = copy.copy(value)  # of the same class, with whatever else it holds: transformers' outputs are such dicts
        for key, item in value.items():
            named[key] = map_tensors(function, item)
        return named
    return value


def tensors_of(value: Any) -> Iterator[Tensor]:
    """Each tensor in the nest, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_of(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_of(item)


def nbytes(value: Any) -> int:
    """Bytes that copies of all tensors in the nest take.

    >>> nbytes([torch.zeros(3), {"half": torch.zeros(2, dtype=torch.float16)}])
    16
    """
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(value))


def snapshot(value: Any) -> Any:
    """The nest with copies of its tensors on the CPU, outside of any graph."""
    return map_tensors(lambda tensor: tensor.detach().to("cpu", copy=True), value)


def same_bits(left: Any, right: Any) -> bool:
    """Whether two nests hold the same: tensors of the same shape, dtype and bits, and equal plain values.

    A NaN is the same as another with the same bits; 0 and -0 are not the same. Strides and devices don't matter, nor
    whether a sequence is a tuple or a list. Tensors that hold no values (device meta) are the same where shape and
    dtype are.

    >>> nan = torch.tensor([torch.nan])
    >>> same_bits((nan, 1.0), (nan.clone(), 1.0)), same_bits(torch.tensor(0.0), torch.tensor(-0.0))
    (True, False)
    """
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        return isinstance(left, Tensor) and isinstance(right, Tensor) and _same_tensor(left, right)
    if isinstance(left, (tuple, list)):
        return isinstance(right, (tuple, list)) and len(left) == len(right) and all(map(same_bits, left, right))
    if isinstance(left, Mapping):
        if not isinstance(right, Mapping) or left.keys() != right.keys():
            return False
        return all(same_bits(item, right[key]) for key, item in left.items())
    if isinstance(left, (float, complex)):
        return type(left) is type(right) and _bits_of_number(left) == _bits_of_number(right)
    return left is right or (type(left) is type(right) and _equal(left, right))


def why_unlike(one: Any, other: Any) -> str | None:
    """How another result's structure, shapes or dtypes differ from the one's, or None; values don't matter.

    >>> why_unlike((torch.zeros(2), 1), (torch.ones(2), 3))
    >>> why_unlike(torch.zeros(2, 4), torch.zeros(2, 5))
    'a tensor of shape (2, 5) and dtype torch.float32 in place of one of shape (2, 4) and dtype torch.float32'
    """
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if one.shape == other.shape and one.dtype == other.dtype:
            return None
        sizes = (f"of shape {tuple(each.shape)} and dtype {each.dtype}" for each in (other, one))
        return "a tensor {} in place of one {}".format(*sizes)
    if isinstance(one, Tensor) or isinstance(other, Tensor) or type(one) is not type(other):
        return f"{_type_name(other)} in place of {_type_name(one)}"
    if isinstance(one, (tuple, list)):
        if len(one) != len(other):
            return f"{len(other)} parts in place of {len(one)}"
        return next(filter(None, map(why_unlike, one, other)), None)
    if isinstance(one, Mapping):
        if one.keys() != other.keys():
            return "other keys"
        return next(filter(None, (why_unlike(item, other[key]) for key, item in one.items())), None)
    return None


def memory_of(tensor: Tensor) -> int:
    """Where the tensor's storage lies, which its views share; 0: it has none that is its own, or it is empty."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # sparse tensors, and those of torch.func, have no memory of their own
        return 0


def memories_of(tensors: Iterable[Tensor]) -> set[int]:
    """Where the storages of some tensors lie, of those that have one."""
    return {memory_of(tensor) for tensor in tensors} - {0}


def as_rows(tensor: Tensor) -> Tensor:
    """The tensor as a matrix [rows, columns]: leading dimensions flattened; one value a row where there is but one.

    >>> as_rows(torch.zeros(2, 3, 4)).shape, as_rows(torch.zeros(5)).shape, as_rows(torch.tensor(1.0)).shape
    (torch.Size([6, 4]), torch.Size([5, 1]), torch.Size([1, 1]))
    """
    if tensor.ndim < 2:
        return tensor.reshape(-1, 1)
    return tensor.reshape(tensor.shape[:-1].numel(), tensor.shape[-1])  # no -1: a tensor may be empty


def differing_rows(left: Any, right: Any, most: int = 16) -> tuple[int, ...]:
    """The rows (leading dimensions flattened) whose bits differ in any pair of tensors of two nests.

    Args:
        left, right: nests with tensors in the same places.
        most: how many rows to name.

    Returns:
        Row numbers, ascending, at most `most`. Two tensors of different shapes or dtypes differ in every row.
    """
    rows: set[int] = set()
    for one, other in zip(tensors_of(left), tensors_of(right), strict=False):
        if one.shape != other.shape or one.dtype != other.dtype:
            rows.update(range(min(most, as_rows(one.detach()).shape[0])))
        elif not _same_tensor(one, other):
            unequal = _words(as_rows(one.detach().cpu())) != _words(as_rows(other.detach().cpu()))
            bad = unequal.flatten(1).any(dim=1).nonzero().flatten()
            rows.update(bad[:most].tolist())
    return tuple(sorted(rows)[:most])


class _Walk:
    """One walk through a nest: what it has found."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._nodes = 0

    def node(self, value: Any, path: tuple[str, ...], depth: int) -> dict[str, Any]:
        """The skeleton of a value."""
        size = 1 + (len(value) // _PER_NODE if isinstance(value, str) else 0)
        ahead = len(value) if isinstance(value, (tuple, list, Mapping)) else 0
        if self._nodes + size + ahead > _MOST_NODES:
            return _unsaved(value, f"with it there would be more than {_MOST_NODES} values")
        self._nodes += size
        if depth > DEEPEST:
            return _unsaved(value, f"nested deeper than {DEEPEST}")
        if isinstance(value, Tensor):
            name = "/".join(path) or "value"
            self.tensors[name] = value
            return {"kind": "tensor", "path": name}
        if isinstance(value, (tuple, list)):
            names = getattr(value, "_fields", None) if isinstance(value, tuple) else None
            keys = names or [str(place) for place in range(len(value))]
            items = [self.node(item, (*path, key), depth + 1) for key, item in zip(keys, value, strict=True)]
            kind = "list" if isinstance(value, list) else "tuple"
            return {"kind": kind, "type": _type_name(value), "items": items}
        if isinstance(value, Mapping):
            return self._mapping(value, path, depth)
        return _plain(value)

    def _mapping(self, value: Mapping[Any, Any], path: tuple[str, ...], depth: int) -> dict[str, Any]:
        items = []
        for place, (key, item) in enumerate(value.items()):
            of_key = _plain(key)
            if of_key["kind"] == "unsaved" or (isinstance(key, str) and len(key) > _LONGEST_KEY):
                return _unsaved(value, f"a key of type {_type_name(key)}, or a very long one")
            # A key that could be mistaken for part of a path, or for a place, goes by its place: "#0".
            readable = isinstance(key, str) and SKELETON_KEY.fullmatch(key) is not None
            items.append([of_key, self.node(item, (*path, key if readable else f"#{place}"), depth + 1)])
        return {"kind": "dict", "type": _type_name(value), "items": items}


def _plain(value: Any) -> dict[str, Any]:
    """The node of something that holds nothing else."""
    if value is None or isinstance(value, bool):
        return {"kind": "value", "value": value}
    if isinstance(value, int):
        if value.bit_length() > _MOST_BITS:
            return _unsaved(value, f"an integer of more than {_MOST_BITS} bits")
        return {"kind": "value", "value": int(value)}
    if isinstance(value, float):
        return {"kind": "float", "value": _number(value)}
    if isinstance(value, complex):
        return {"kind": "complex", "value": [_number(value.real), _number(value.imag)]}
    if isinstance(value, str):
        return {"kind": "value", "value": str(value)}
    if isinstance(value, torch.dtype):
        return {"kind": "dtype", "value": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"kind": "device", "value": str(value)}
    if value is Ellipsis:
        return {"kind": "ellipsis"}
    if isinstance(value, slice):
        ends = [_plain(end) for end in (value.start, value.stop, value.step)]
        if all(end["kind"] == "value" for end in ends):
            return {"kind": "slice", "value": [end["value"] for end in ends]}
    return _unsaved(value, "neither a tensor nor a plain value")


def _number(value: float) -> float | str:
    """JSON holds the finite ones, and holds them exactly."""
    return float(value) if math.isfinite(value) else str(float(value))


def _unsaved(value: Any, reason: str) -> dict[str, Any]:
    return {"kind": "unsaved", "type": _type_name(value), "reason": reason}


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _same_tensor(left: Tensor, right: Tensor) -> bool:
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    if left.is_meta or right.is_meta:
        return left.is_meta and right.is_meta
    left, right = left.detach(), right.detach()
    if left.device != right.device:
        left, right = left.cpu(), right.cpu()
    return torch.equal(_words(left), _words(right))


def _words(tensor: Tensor) -> Tensor:
    """The tensor's bits as integers; a complex number is two, in a dimension of its own."""
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    tensor = tensor.resolve_conj().resolve_neg()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.contiguous().view(_WORDS[tensor.element_size()])


def _bits_of_number(value: complex) -> bytes:
    return struct.pack("<dd", value.real, value.imag)


def _equal(left: Any, right: Any) -> bool:
    try:
        return bool(left == right)
    except Exception:  # objects of the user's own; arrays, whose == isn't a bool
        return False
