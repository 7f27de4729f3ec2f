"""How values are spoilt, as copies: bits flipped, elements multiplied, records cut, rows left out.

Not here: when (faults.py).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from steadysum.cores.arm import Arm
from steadysum.cores.fault_kinds import OUTPUTS
from steadysum.sync.actions import Word
from steadysum.sync.memory import Memory, Span

__all__ = [
    "arrays_of",
    "cut_of",
    "differ",
    "fill",
    "fits_word",
    "flipped",
    "hidden_part",
    "like",
    "scaled",
    "size_of",
    "spoil_some",
    "torn_words",
    "when_spoilt",
    "within",
    "without_elements",
]

Array = NDArray[Any]
_LABELS: Final = frozenset({"product", "statistics", "merge", "combine", "target"})  # of the device's work
_OPERANDS: Final = frozenset({"x", "w"})
_PATTERN: Final = 0xA5  # bytes of a dirty workspace: no NaN, tiny floats, no stamp
# Bits of the mantissa of each float type; the sign is the highest bit, the exponent lies between.
_MANTISSA: Final = {2: 10, 4: 23, 8: 52}


def flipped(arm: Arm, array: Array, draw: random.Random, within: slice = slice(None)) -> Array:
    """A copy with bits of some elements flipped."""
    copy = np.ascontiguousarray(array).copy()
    flat = copy.reshape(-1)
    words = flat.view(np.dtype(f"u{flat.itemsize}"))
    low, high = _bits(arm.knob("bits"), flat.dtype)
    places = range(len(words))[within]
    for position in _some(places, arm.knob("elements"), draw):
        for bit in _some(range(low, high + 1), arm.knob("count"), draw):
            words[position] ^= words.dtype.type(1 << bit)
    return copy


def scaled(arm: Arm, array: Array, draw: random.Random, within: slice = slice(None)) -> Array:
    """A copy with some elements multiplied; integers are rounded towards zero."""
    copy = np.ascontiguousarray(array).copy()
    flat = copy.reshape(-1)
    places = range(len(flat))[within]
    elements = arm.knob("elements")
    chosen = np.asarray(_some(places, elements, draw) if elements else list(places), dtype=np.intp)
    with np.errstate(all="ignore"):
        flat[chosen] = (flat[chosen] * arm.knob("factor")).astype(flat.dtype)
    return copy


def spoil_some(
    spoil: Callable[[Arm, Array, random.Random], Array], arm: Arm, arrays: Sequence[Array], draw: random.Random
) -> list[Array]:
    """One of the arrays, drawn among those with elements, spoilt; the others as they are."""
    found = list(arrays)
    candidates = [number for number, array in enumerate(found) if array.size]
    if candidates:
        number = candidates[int(draw.random() * len(candidates))]
        found[number] = spoil(arm, found[number], draw)
    return found


def torn_words(words: Sequence[Word], position: int, new: str, memory: Memory) -> list[Word]:
    """The words of a record that is cut at a byte: one part reaches memory, the other stays as memory has it."""
    left = position
    kept = []
    for span, values in words:
        data = np.ascontiguousarray(values, dtype=memory.arrays[span.region].dtype)
        size = data.nbytes
        cut = min(max(left, 0), size)
        left -= size
        first, last = (cut, 0) if new == "first" else (0, size - cut)  # new bytes at either end
        if first == 0 and last == 0:
            continue
        mixed = memory.load(span)
        old, fresh = mixed.view(np.uint8), data.view(np.uint8)
        old[:first] = fresh[:first]
        old[size - last :] = fresh[size - last :]
        kept.append(Word(span, mixed))
    return kept


def hidden_part(part: str, count: int, length: int, draw: random.Random) -> list[int]:
    """The elements of a write of this length that are never written."""
    if part == "all":
        return list(range(length))
    if part == "tail":
        return list(range(max(0, length - count), length))
    return sorted(_some(range(length), count, draw))


def without_elements(word: Word, hidden: Sequence[int]) -> list[Word]:
    """The word in pieces, without these elements."""
    span, values = word
    pieces = []
    start = 0
    for stop in [*(element for element in hidden if element < len(values)), len(values)]:
        if start < stop:
            piece = Span(span.region, span.start + start, span.start + stop)
            pieces.append(Word(piece, values[start:stop]))
        start = stop + 1
    return pieces


def when_spoilt(arm: Arm) -> str:
    """When a flip or scale acts: work, write, begin or end."""
    at: str = arm.knob("at")
    if at != "auto":
        return at
    if arm.region is None or arm.region in _LABELS:
        return "work"
    return "begin" if arm.region in _OPERANDS else "write"


def fits_word(arm: Arm, word: Word) -> bool:
    if arm.kind == "unwritten" and arm.region is None:
        return word.span.region in OUTPUTS
    return arm.fits_span(word.span)


def size_of(words: Sequence[Word]) -> int:
    return sum(word.values.nbytes for word in words)


def cut_of(arm: Arm, words: Sequence[Word]) -> int:
    """The byte at which a record is cut."""
    position: int = arm.knob("position")
    return size_of(words) // 2 if position < 0 else position


def within(arm: Arm, start: int, stop: int) -> slice:
    """The elements of an array that lies at [start, stop) in which the arm may spoil."""
    if arm.elements is None:
        return slice(None)
    return slice(max(arm.elements[0], start) - start, max(min(arm.elements[1], stop) - start, 0))


def arrays_of(result: Any) -> list[NDArray[Any]]:
    """The arrays that a piece of work gave back; none if it gave anything else."""
    parts = list(result) if isinstance(result, tuple) else [result]
    return parts if all(isinstance(part, np.ndarray) for part in parts) else []


def like(result: Any, arrays: list[NDArray[Any]]) -> Any:
    """Arrays in the form that a piece of work gave back."""
    if not isinstance(result, tuple):
        return arrays[0]
    return type(result)(*arrays) if hasattr(result, "_fields") else tuple(arrays)


def differ(before: Sequence[NDArray[Any]], after: Sequence[NDArray[Any]]) -> bool:
    """Whether any bits differ."""
    return any(one.tobytes() != other.tobytes() for one, other in zip(before, after, strict=True))


def fill(array: NDArray[Any], content: str) -> None:
    if content == "nan" and array.dtype.kind == "f":
        array[:] = np.nan
    else:
        array.view(np.uint8)[:] = _PATTERN if content == "pattern" else 0xFF


def _some(places: range, count: int, draw: random.Random) -> list[int]:
    return draw.sample(places, min(count, len(places)))


def _bits(which: str, dtype: np.dtype[Any]) -> tuple[int, int]:
    """The lowest and the highest bit of a range; of integers there is only "any", and ranges."""
    top = 8 * dtype.itemsize - 1
    if which == "any" or (dtype.kind != "f" and which in ("sign", "exponent", "mantissa")):
        return 0, top
    if which == "sign":
        return top, top
    mantissa = _MANTISSA.get(dtype.itemsize, 0)
    if which == "exponent":
        return mantissa, top - 1
    if which == "mantissa":
        return 0, mantissa - 1
    first, last = map(int, which.split("-"))
    return first, min(last, top)  # none where the number has none of these bits: then nothing is flipped
