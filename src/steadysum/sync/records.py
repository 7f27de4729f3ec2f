"""Records: a payload in shared memory with a stamp that says of which call it is, whose, and whether it is whole.

The stamp is one line, and each part of the payload is a word of its own: they drain separately, so that a reader can
see half of a record. The digest in the stamp covers epoch, writer, count and payload: what it doesn't fit is stale or
torn.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steadysum.sync.actions import Word
from steadysum.sync.memory import LINE, Span

__all__ = [
    "STAMP_WORDS",
    "Payload",
    "Slot",
    "Stamp",
    "damaged_span",
    "digest",
    "fault_of",
    "is_as_written",
    "record_of",
    "stamp_of",
    "words_of",
]

Payload = tuple[NDArray[Any], ...]  # one array for each span of the slot's payload
_DIGESTS: Final = 4  # the word of a stamp's line from which on the parts' digests stand
STAMP_WORDS: Final = LINE // 8  # int64 words of a stamp's line
# Bytes from which on a part enters the digest condensed: a product's half tile is 64 KiB, of which a CRC-32 takes three
# to five times as long.
_LARGE: Final = 4096


class Slot(NamedTuple):
    """Where a record lies."""

    core: int  # its writer
    stamp: Span  # STAMP_WORDS int64 words, a line of its own
    payload: tuple[Span, ...]
    counted: str = "{} of {} partials merged"  # what another count than the wanted one means

    @property
    def spans(self) -> tuple[Span, ...]:
        """All of it, the stamp first."""
        return (self.stamp, *self.payload)


class Stamp(NamedTuple):
    """What a record proves. Its line holds the digests of the payload's parts after these."""

    epoch: int  # number of the call
    core: int  # writer
    count: int  # type: ignore[assignment]  # of the partials merged into the payload; of a product: its tile, from 1
    digest: int  # of the three above and the digests of the payload's parts


def digest(epoch: int, core: int, count: int, payload: Payload) -> int:
    """CRC-32 over the header and the digests of the parts: sees every change of up to 32 adjacent bits of one of them.

    A part of 4 KiB or more enters condensed to 8 bytes, which every change within one 8-byte word changes.
    """
    return _whole((epoch, core, count), [_digest_of(part) for part in payload])


def _whole(header: tuple[int, int, int], parts: Sequence[int]) -> int:
    return zlib.crc32(repr((*header, *parts)).encode())


def _digest_of(part: NDArray[Any]) -> int:
    part = np.ascontiguousarray(part)
    return zlib.crc32(part.data if part.nbytes < _LARGE else _condensed(part.reshape(-1).view(np.uint8)))


def _condensed(data: NDArray[np.uint8]) -> bytes:
    """The sum, modulo 2^64, of a large part's 8-byte words times odd numbers, and the bytes after the last whole word.

    Before that the upper half of each word is folded into the lower one, so that sign bits don't cancel each other.
    """
    count = data.size // 8
    words = data[: 8 * count].view(np.uint64)
    mixed = words >> np.uint64(32)
    mixed ^= words
    mixed *= _multipliers(count)
    return bytes(mixed.sum(dtype=np.uint64).tobytes()) + data[8 * count :].tobytes()


@lru_cache(maxsize=16)
def _multipliers(count: int) -> NDArray[np.uint64]:
    """So many odd numbers with no pattern to them, always the same."""
    return np.random.PCG64(0).random_raw(count) | np.uint64(1)


def words_of(slot: Slot, epoch: int, count: int, payload: Payload) -> tuple[Word, ...]:
    """The words that write a record: payload first, stamp last, though they may drain in any order."""
    stamp = np.zeros(slot.stamp.stop - slot.stamp.start, dtype=np.int64)
    digests = [_digest_of(part) for part in payload]
    header = (epoch, slot.core, count)
    stamp[: _DIGESTS + len(digests)] = (*header, _whole(header, digests), *digests)
    parts = [Word(span, values) for span, values in zip(slot.payload, payload, strict=True)]
    return (*parts, Word(slot.stamp, stamp))


def is_as_written(words: Sequence[Word], read: Sequence[NDArray[Any]]) -> bool:
    """Whether a Read of slot.spans, the stamp first, gave back the words of words_of, the stamp last, bit for bit."""
    written = (words[-1], *words[:-1])
    return all(_same_bits(word.values, found) for word, found in zip(written, read, strict=True))


def _same_bits(first: NDArray[Any], second: NDArray[Any]) -> bool:
    if first.dtype != second.dtype or first.size != second.size:
        return False
    if first.nbytes < _LARGE:
        return first.tobytes() == second.tobytes()
    return np.array_equal(first.reshape(-1).view(np.uint8), second.reshape(-1).view(np.uint8))


def record_of(read: list[NDArray[Any]]) -> tuple[Stamp, Payload]:
    """Stamp and payload of what a Read of slot.spans gave back."""
    return stamp_of(read[0]), tuple(read[1:])


def stamp_of(line: NDArray[Any]) -> Stamp:
    """The stamp in a line."""
    epoch, core, count, found = line[:4].tolist()
    return Stamp(epoch, core, count, found)


def damaged_span(slot: Slot, line: NDArray[Any], payload: Payload, epoch: int) -> Span | None:
    """Which part of a record isn't as it was written: the stamp, or one of the payload; None: all are.

    Args:
        slot: where it was read.
        line, payload: what was read.
        epoch: number of the call.
    """
    stamp, end = stamp_of(line), _DIGESTS + len(payload)
    digests = line[_DIGESTS:end].tolist()
    whole = stamp.digest == _whole(stamp[:3], digests) and not line[end:].any()
    if not whole or (stamp.epoch, stamp.core) != (epoch, slot.core):
        return slot.stamp
    for span, part, known in zip(slot.payload, payload, digests, strict=True):
        if _digest_of(part) != known:
            return span
    return None


def fault_of(slot: Slot, stamp: Stamp, payload: Payload, epoch: int, count: int | None) -> str | None:
    """Why a record isn't the one that the call needs; None: it is.

    Args:
        slot: where it was read.
        stamp, payload: what was read.
        epoch: number of the call.
        count: how many partials it must hold; None: any number.
    """
    if stamp.epoch != epoch:
        return f"stamp of call {stamp.epoch}" if stamp.epoch else "no stamp yet"
    if stamp.core != slot.core:
        return f"stamp of core {stamp.core}"
    if digest(stamp.epoch, stamp.core, stamp.count, payload) != stamp.digest:
        return "stamp doesn't fit the payload: torn or damaged"
    if count is not None and stamp.count != count:
        return slot.counted.format(stamp.count, count)
    return None
