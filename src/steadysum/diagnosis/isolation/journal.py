"""What each run gave, in memory that both processes see, so that nothing is lost when the running one dies.

A file, mapped: a head with the numbers of runs begun and ended and the wish to stop, then 24 bytes for each run. The
process that runs makes no system call for it. Not here: the outputs themselves (kept.py).
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

__all__ = ["Journal", "Result"]

_HEAD: Final = struct.Struct("<3Q")  # runs begun, runs ended, stop
_RESULT: Final = struct.Struct("<16sd")  # digest, seconds


class Result(NamedTuple):
    """What one run gave."""

    digest: str  # 32 hexadecimal digits
    seconds: float


class Journal:
    """Open until closed.

    Args:
        path: the file; made if it isn't there.
        runs: room for so many.
    """

    def __init__(self, path: Path, runs: int) -> None:
        size = _HEAD.size + runs * _RESULT.size
        with path.open("r+b" if path.exists() else "w+b") as file:
            file.truncate(size)
            self._memory = mmap.mmap(file.fileno(), size)

    def begin(self, run: int) -> None:
        """Before the operator is called."""
        struct.pack_into("<Q", self._memory, 0, run)

    def end(self, result: Result) -> None:
        """After the operator has returned."""
        place = self.ended
        packed = bytes.fromhex(result.digest), result.seconds
        _RESULT.pack_into(self._memory, _HEAD.size + place * _RESULT.size, *packed)
        struct.pack_into("<Q", self._memory, 8, place + 1)

    def ask_to_stop(self) -> None:
        """The process that runs stops before its next run."""
        struct.pack_into("<Q", self._memory, 16, 1)

    @property
    def begun(self) -> int:
        """The run that was begun last, from 1; 0: none."""
        return self._head(0)

    @property
    def ended(self) -> int:
        """The run that ended last; the same as the number of results."""
        return self._head(1)

    @property
    def is_to_stop(self) -> bool:
        """Whether the other process has asked for it."""
        return self._head(2) != 0

    def read(self) -> tuple[Result, ...]:
        """All results so far."""
        read = []
        for place in range(self.ended):
            digest, seconds = _RESULT.unpack_from(self._memory, _HEAD.size + place * _RESULT.size)
            read.append(Result(digest.hex(), seconds))
        return tuple(read)

    def close(self) -> None:
        """The file stays."""
        self._memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _head(self, place: int) -> int:
        return int(_HEAD.unpack_from(self._memory, 0)[place])
