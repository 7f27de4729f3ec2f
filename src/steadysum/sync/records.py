"""Records: a payload in shared memory with a stamp that says of which call it is, whose, and whether it is whole.

The stamp is one line, and each part of the payload is a word of its own: they drain separately, so that a reader can
see half of a record. The digest in the stamp covers epoch, writer, count and payload: what it doesn't fit is stale or
torn.
"""

from __future__ import annotations

import zlib
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steadysum.sync.actions import Word
from steadysum.sync.memory import LINE, Span

__all__ = ["STAMP_WORDS", "Payload", "Slot", "Stamp", "digest", "fault_of", "record_of", "stamp_of", "words_of"]

Payload = tuple[NDArray[Any], ...]  # one array for each span of the slot's payload
STAMP_WORDS: Final = LINE // 8  # int64 words of a stamp's line


class Slot(NamedTuple):
    """Where a record lies."""

    core: int  # its writer
    stamp: Span  # STAMP_WORDS int64 words, a line of its own
    payload: tuple[Span, ...]

    @property
    def spans(self) -> tuple[Span, ...]:
        """All of it, the stamp first."""
        return (self.stamp, *self.payload)


class Stamp(NamedTuple):
    """What a record proves."""

    epoch: int  # number of the call
    core: int  # writer
    count: int  # type: ignore[assignment]  # of the partials merged into the payload
    digest: int  # of the three above and the payload


def digest(epoch: int, core: int, count: int, payload: Payload) -> int:
    """CRC-32 over the header and the payload's bytes: sees every change of up to 32 adjacent bits."""
    value = zlib.crc32(b"%d,%d,%d" % (epoch, core, count))
    for part in payload:
        value = zlib.crc32(np.ascontiguousarray(part).view(np.uint8).data, value)
    return value


def words_of(slot: Slot, epoch: int, count: int, payload: Payload) -> tuple[Word, ...]:
    """The words that write a record: payload first, stamp last, though they may drain in any order."""
    stamp = np.zeros(slot.stamp.stop - slot.stamp.start, dtype=np.int64)
    stamp[:4] = (epoch, slot.core, count, digest(epoch, slot.core, count, payload))
    parts = [Word(span, values) for span, values in zip(slot.payload, payload, strict=True)]
    return (*parts, Word(slot.stamp, stamp))


def record_of(read: list[NDArray[Any]]) -> tuple[Stamp, Payload]:
    """Stamp and payload of what a Read of slot.spans gave back."""
    return stamp_of(read[0]), tuple(read[1:])


def stamp_of(line: NDArray[Any]) -> Stamp:
    """The stamp in a line."""
    epoch, core, count, found = line[:4].tolist()
    return Stamp(epoch, core, count, found)


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
        return f"{stamp.count} of {count} partials merged"
    return None
