"""The folder that bundles lie in: names, one writer at a time, what a killed writer left, and which bundles stay.

    bundle-20261203T002445.123456789Z-4711-0-linear_max_sum    a bundle: time (UTC), process, number in it, operator
    .partial-<place>-<process>-<started>-<name>                one that is being written, or removed
    .lock                                                      held while names in the folder change

A bundle has its name from the moment when all of it is on disk. Place is where a process number means anything: this
boot of this machine, in this container. Not here: what is in a bundle (bundle.py).
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import itertools
import os
import re
import shutil
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["Saved", "exclusive", "hide", "make_partial", "new_name", "saved_in", "sweep", "sync", "to_remove"]

_NAME: Final = re.compile(r"bundle-\d{8}T\d{6}\.\d{9}Z-\d+-\d+(?:-[A-Za-z0-9_.]+)?")
_PARTIAL: Final = re.compile(r"\.partial-([0-9a-f]{12})-(\d+)-(\d+)-bundle-.+")
_LONGEST_OPERATOR: Final = 60  # characters of it in a name
_LOCK: Final = ".lock"
_LOCK_SECONDS: Final = 10.0  # it is held for milliseconds; a stopped process may hold it for ever
_NO_LOCKS_HERE: Final = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL})
_FOREIGN_SECONDS: Final = 86400.0  # whether a process of another place lives can't be asked; a day's silence says no

_counter = itertools.count()
_threads = threading.Lock()  # fcntl's locks belong to the process, and don't hold its own threads apart


def _new_lock() -> None:
    """In a child: the thread that held the lock was not forked with it."""
    global _threads
    _threads = threading.Lock()


os.register_at_fork(after_in_child=_new_lock)


class Saved(NamedTuple):
    """A bundle in the folder."""

    path: Path
    nbytes: int


def new_name(operator: str) -> str:
    """A name that no other bundle has; names sort by time."""
    now = time.time_ns()
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now // 10**9))
    readable = re.sub(r"[^A-Za-z0-9_.]+", "_", operator)[:_LONGEST_OPERATOR].strip("_.")
    name = f"bundle-{stamp}.{now % 10**9:09d}Z-{os.getpid()}-{next(_counter)}"
    return f"{name}-{readable}" if readable else name


def saved_in(folder: Path) -> list[Saved]:
    """The bundles in the folder, oldest first. Another process may remove one at any moment."""
    found = []
    for path in sorted(folder.iterdir()):
        if _NAME.fullmatch(path.name) and not path.is_symlink() and path.is_dir():
            found.append(Saved(path, _nbytes(path)))
    return found


def to_remove(sizes: Sequence[int], new: int, most: int, most_bytes: int) -> range | None:
    """Which bundles give way to a new one.

    The first ones stay, up to half of the number and of the bytes: first evidence is worth most, and later failures
    are often its consequences. Of the others the newest stay.

    Args:
        sizes: bytes of the bundles, oldest first.
        new: bytes of the new one.
        most, most_bytes: the limits, after it has come.

    Returns:
        The places of those that go; None if the new one can't come, whatever goes.

    >>> to_remove([1, 1, 1, 1], 1, most=4, most_bytes=100)
    range(2, 3)
    """
    first, used = 0, 0
    while first < min(len(sizes), (most + 1) // 2) and used + sizes[first] <= most_bytes / 2:
        used += sizes[first]
        first += 1
    for end in range(first, len(sizes) + 1):
        kept = len(sizes) - (end - first)
        if kept + 1 <= most and used + sum(sizes[end:]) + new <= most_bytes:
            return range(first, end)
    return None


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Inside, no other thread or process changes names in the folder. Where files can't be locked, no other thread.

    Raises:
        TimeoutError: another one holds the lock, for seconds.
    """
    deadline = time.monotonic() + _LOCK_SECONDS
    threads = _threads
    if not threads.acquire(timeout=_LOCK_SECONDS):
        raise TimeoutError(errno.ETIMEDOUT, "another thread writes bundles, and doesn't end", str(folder))
    try:
        with (folder / _LOCK).open("ab") as file:
            while not _locked(file.fileno()):
                if time.monotonic() > deadline:
                    raise TimeoutError(errno.ETIMEDOUT, "another process holds the lock", str(folder / _LOCK))
                time.sleep(0.005)
            yield
    finally:
        threads.release()


def make_partial(folder: Path, name: str) -> Path:
    """A new folder under a name that says whose it is."""
    path = folder / _partial_name(name)
    path.mkdir()
    return path


def hide(folder: Path, path: Path) -> Path:
    """Renames a bundle that has to go, so that nobody sees half of it while it is removed; the new path."""
    hidden = folder / _partial_name(path.name)
    path.rename(hidden)
    return hidden


def sweep(folder: Path) -> None:
    """Removes what killed writers left; call it under `exclusive`."""
    for path in folder.iterdir():
        match = _PARTIAL.fullmatch(path.name)
        if match is None or path.is_symlink():
            continue
        place, process, started = match[1], int(match[2]), int(match[3])
        gone = _started(process) != started if place == _place() else _is_silent(path)
        if gone:
            shutil.rmtree(path, ignore_errors=True)


def sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on disk; on systems that can't say so, it doesn't wait."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


def _partial_name(name: str) -> str:
    return f".partial-{_place()}-{os.getpid()}-{_started(os.getpid())}-{name}"


def _place() -> str:
    """Where a process number means anything."""
    parts = [os.uname().nodename]
    try:
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    except OSError:  # no Linux: the name of the machine has to do
        pass
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _started(process: int) -> int | None:
    """When a process started, in the kernel's ticks (its number alone may be another's by now); None: it is gone."""
    try:
        # Field 22; the second one is the command in parentheses, and may itself hold spaces and parentheses.
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return _answers(process)
    return None if fields[0] in "ZX" else int(fields[19])  # a zombie writes no more


def _answers(process: int) -> int | None:
    """The same where /proc has no such process: 0 if it lives nevertheless, on a system without /proc."""
    if Path("/proc/self/stat").exists():
        return None
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        return 0
    return 0


def _is_silent(path: Path) -> bool:
    try:
        times = [path.stat().st_mtime, *(each.stat().st_mtime for each in path.iterdir())]
    except OSError:  # it went in this moment
        return False
    return time.time() - max(times) > _FOREIGN_SECONDS


def _locked(handle: int) -> bool:
    """Tries to lock; the lock goes with the handle."""
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NO_LOCKS_HERE:
            return True
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        raise
    return True


def _nbytes(folder: Path) -> int:
    total = 0
    try:
        for path in folder.iterdir():
            status = path.lstat()
            total += status.st_size if stat.S_ISREG(status.st_mode) else 0
    except OSError:  # it went in this moment
        pass
    return total
