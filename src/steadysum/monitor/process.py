"""Monitoring of this process: notices are counted, and the figures served and written, until it stops or ends.

Not here: what is counted (metrics.py), how it is served (exporter.py), what a file holds (metrics_file.py).
"""

from __future__ import annotations

import atexit
import math
import os
import threading
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import steadysum
from steadysum.errors import MetricsFileError, OptionError, RangeError
from steadysum.monitor.address import HOST, PORT, checked_port
from steadysum.monitor.exporter import Exporter
from steadysum.monitor.labels import checked_labels, process_labels
from steadysum.monitor.metrics import Metrics
from steadysum.monitor.metrics_file import path_in, refuse_other_file, write_metrics
from steadysum.notices import listen

__all__ = ["INTERVAL", "Monitor", "start"]

INTERVAL: Final = 15.0  # seconds: as often as Prometheus's own example scrapes
_LONGEST: Final = 86400.0  # a day: a file that is older than that tells nothing

_running: set[Monitor] = set()


class Monitor:
    """A monitor of this process; `start` makes one. As a context manager it stops at the end of the block."""

    def __init__(self, metrics: Metrics, exporter: Exporter | None, file: Path | None, interval: float) -> None:
        self.metrics = metrics
        self.file = file  # where the figures are written
        self._exporter = exporter
        self._interval = interval
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._has_warned = False
        self._stack = ExitStack()
        self._stack.enter_context(listen(metrics.hear))
        self._writer: threading.Thread | None = None
        if file is not None:
            self._writer = threading.Thread(target=self._write_at_intervals, name="steadysum metrics", daemon=True)
            self._writer.start()
        _running.add(self)
        atexit.register(self.stop)

    @property
    def address(self) -> str | None:
        """Where the metrics are served."""
        return None if self._exporter is None else self._exporter.address

    @property
    def labels(self) -> dict[str, str]:
        """Of every series of this process."""
        return dict(self.metrics.labels)

    def stop(self) -> None:
        """Stops counting and serving, and writes the file a last time. A second call does nothing."""
        with self._lock:
            if self._stopped.is_set():
                return
            self._stopped.set()
        atexit.unregister(self.stop)
        _running.discard(self)
        self._stack.close()
        self.metrics.running.set(0)
        if self._exporter is not None:
            self._exporter.close()
        if self._writer is not None:
            self._writer.join()
            self._write()

    def __enter__(self) -> Monitor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _write_at_intervals(self) -> None:
        while not self._stopped.wait(self._interval):
            self._write()

    def _write(self) -> None:
        """A file that can't be written never stops the run: it is warned of once, and counted."""
        assert self.file is not None
        try:
            write_metrics(self.file, self.metrics.text())
        except OSError as error:
            self.metrics.file_failures.inc()
            if not self._has_warned:
                self._has_warned = True
                warnings.warn(
                    f"the metrics file {self.file} can't be written: {error}; this is said once", RuntimeWarning, 2
                )

    def _forget(self) -> None:
        """In a forked child: the parent's figures are the parent's, and so are its port and file."""
        self._stopped.set()
        self._stack.close()
        atexit.unregister(self.stop)
        if self._exporter is not None:
            self._exporter.let_go()


def start(
    *,
    run: str | None = None,
    host: str = HOST,
    port: int | None = PORT,
    file: str | os.PathLike[str] | None = None,
    interval: float = INTERVAL,
    labels: Mapping[str, str | int] | None = None,
) -> Monitor:
    """Count what guarded calls and syncs of this process do, serve it to Prometheus, and write it to a file.

    Args:
        run: what the process works on. None: as `process_labels` has it.
        host: address to serve at; other machines reach the loopback's only through a tunnel.
        port: of the process with local rank 0; those of local rank r on its machine serve at port + r. 0: any that is
            free. None: nothing is served.
        file: the metrics file, or a folder, in which each process has one of its own. None: nothing is written.
        interval: seconds between two writings, at most a day; it is written at once, and at the end, too.
        labels: more labels, or others than `process_labels` has.

    Returns:
        The monitor, which stops when the process ends, or by `stop()`. A forked child isn't monitored.

    Raises:
        MetricsAddressError: the address can't be served at.
        MetricsFileError: the file can't be written, or is something else than metrics, and would be lost.
        OptionError: one file for several ranks; or neither a port nor a file.
        RangeError, OperandTypeError: a port, an interval, or labels that there can't be.

    >>> with start(run="example", port=0) as monitor:
    ...     monitor.labels["run"]
    'example'
    """
    named = {} if run is None else {"run": run}
    metrics = Metrics({**process_labels(), **checked_labels({**named, **(labels or {})})}, steadysum.__version__)
    interval = _checked_interval(interval)
    if port is None and file is None:
        raise OptionError(
            "port and file", "neither", "a port, a file, or both", "Nobody could see the figures otherwise."
        )
    port = None if port is None else checked_port(port)
    place = None if file is None else _place(Path(file), metrics.labels)
    exporter = None if port is None else Exporter(metrics, host, port and checked_port(port + _local_rank()))
    metrics.running.set(1)
    if place is not None:
        try:
            write_metrics(place, metrics.text())
        except OSError as error:
            if exporter is not None:
                exporter.close()
            raise MetricsFileError(
                f"metrics file {place}",
                error.strerror or str(error),
                "a file in a folder that is there and can be written to",
                "Make the folder, or choose another one.",
            ) from None
    return Monitor(metrics, exporter, place, interval)


def _place(file: Path, labels: Mapping[str, str]) -> Path:
    if file.is_dir():
        return path_in(file, labels)
    if int(os.environ.get("WORLD_SIZE") or 1) > 1:
        raise OptionError(
            "file",
            seen=f"{str(file)!r}, which isn't a folder, on a rank of {os.environ['WORLD_SIZE']}",
            allowed="a folder that is there",
            remedy="The ranks would overwrite each other's file. Name a folder: each has one of its own in it.",
        )
    refuse_other_file(file)
    return file


def _local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK") or 0)


def _checked_interval(interval: Any) -> float:
    is_number = isinstance(interval, int | float) and not isinstance(interval, bool)
    if not is_number or not math.isfinite(interval) or not 0 < interval <= _LONGEST:
        raise RangeError(
            "interval", repr(interval), f"seconds, > 0 and at most {_LONGEST:.0f}", "The default is 15 seconds."
        )
    return float(interval)


def _forget_all() -> None:
    for monitor in _running:
        monitor._forget()
    _running.clear()


os.register_at_fork(after_in_child=_forget_all)
