"""The tool's side: starts the process that runs the operator, watches it, and tells how its runs ended.

A crash, a hang or the end of memory is an answer, not an error: it comes with the run in which it happened, and with
the results of all runs before. The next runs get a new process. Not here: what the results mean.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from steadysum import errors
from steadysum.diagnosis.isolation.arranged import Condition
from steadysum.diagnosis.isolation.inputs import Source, check_source, source_to_json
from steadysum.diagnosis.isolation.journal import Journal, Result
from steadysum.diagnosis.isolation.target import parse_target
from steadysum.errors import DiagnosisTargetError, RangeError, SteadySumError

__all__ = ["Batch", "Ending", "Limits", "Supervisor"]

_LOOK_S: Final = 0.05  # between two looks at the journal; more often would take time from the operator
_STACK_S: Final = 3.0  # at most, for a hanging process to write down where it is
_MOST_LOG: Final = 8000  # characters of what the process has written that a report shows
_MODULE: Final = "steadysum.diagnosis.isolation.worker"
_OOM_EVENTS: Final = Path("/sys/fs/cgroup/memory.events")


class Limits(NamedTuple):
    """What a process may take, in seconds and bytes."""

    load_s: float = 120.0  # to import the user's module and make the inputs
    hang_s: float = 60.0  # without the end of a run, once the first has begun
    memory: int | None = None  # bytes of its data; None: what the machine has


class Ending(NamedTuple):
    """How runs ended.

    `kind` is one of: complete; stopped (as asked); interrupted (Ctrl-C); void (a condition can't be set up, or never
    acted); exception (the operator raised); out_of_memory; signal (it died of one); exit (it left); hang.
    """

    kind: str
    run: int | None = None  # from 1, in which it happened; None: all were made, or none was begun
    detail: str = ""  # a traceback, the signal's name with the stacks of all threads, or the reason


@dataclass(frozen=True)
class Batch:
    """What runs under one set of conditions gave."""

    conditions: tuple[Condition, ...]
    planned: int
    results: tuple[Result, ...]
    ending: Ending
    kept: dict[str, Path]  # digest -> file of the outputs, for kept.read_outputs; they go with the supervisor's folder
    acted: dict[str, int]  # condition -> how often it did what it is for
    writes_inputs: bool = False
    draws: bool = False

    @property
    def first(self) -> str | None:
        """The digest of the first run's outputs."""
        return self.results[0].digest if self.results else None

    @property
    def deviating(self) -> int:
        """The number of results with other bits than the first."""
        return sum(1 for result in self.results if result.digest != self.first)


class Supervisor:
    """Runs one operator on one set of inputs, in a process of its own.

    Args:
        target: as parse_target reads it.
        source: where the inputs come from.
        limits: of the process.

    Raises:
        SteadySumError: the target or its inputs can't be used; nothing was run.
    """

    def __init__(self, target: str, source: Source, limits: Limits = Limits()) -> None:  # noqa: B008 - immutable
        if not (limits.load_s > 0.0 and limits.hang_s > 0.0):
            raise RangeError("limits", str(limits), "times > 0 s", "A hang is told by time alone.")
        parse_target(target)
        check_source(source)
        self._target, self._source, self._limits = target, source, limits
        self._folder = Path(tempfile.mkdtemp(prefix="steadysum-"))
        self._process: _Process | None = None
        self._batches = 0
        self.starts = 0
        self.inputs: dict[str, Any] = {}  # "source" in words, "tensors": (dtype, shape, device) of each
        try:
            self._running()
        except BaseException:
            self.close()
            raise

    def run(
        self,
        runs: int,
        conditions: Sequence[Condition] = (),
        stopped: Callable[[], bool] = lambda: False,
        progressed: Callable[[int], None] = lambda _: None,
    ) -> Batch:
        """Makes up to `runs` runs.

        Args:
            runs: at least 1.
            conditions: what they are surrounded by, applied in order.
            stopped: asked twenty times a second; True ends the runs after the present one.
            progressed: told the number of runs that have ended.

        Returns:
            The results of all runs that ended, whatever ended them. Ctrl-C returns them, too: ending "interrupted".

        Raises:
            SteadySumError: the process had to be started anew, and the target or its inputs can't be used any more.
        """
        if runs < 1:
            raise RangeError("runs", str(runs), "at least 1", "No runs tell nothing.")
        process = self._running()
        self._batches += 1
        folder = self._folder / f"batch-{self._batches}"
        folder.mkdir()
        with Journal(folder / "journal", runs) as journal:
            process.send(
                {
                    "command": "run",
                    "runs": runs,
                    "conditions": [[one.name, one.values] for one in conditions],
                    "folder": str(folder),
                }
            )
            ending, answer = self._watch(process, journal, stopped, progressed)
            found = journal.read()
        (folder / "journal").unlink()
        kept = {path.stem: path for path in sorted(folder.glob("*.safetensors"))}
        acted = answer.get("acted", {})
        idle = [one.name for one in conditions if acted.get(one.name, 0) == 0]
        if ending.kind == "complete" and idle:
            ending = Ending("void", None, f"never acted: {', '.join(idle)}")
        flags = bool(answer.get("writes_inputs")), bool(answer.get("draws"))
        return Batch(tuple(conditions), runs, found, ending, kept, acted, *flags)

    @property
    def pid(self) -> int | None:
        """Of the process; None: there is none now, since the last one has ended."""
        return None if self._process is None else self._process.pid

    def close(self) -> None:
        """Ends the process and removes all files."""
        if self._process is not None:
            self._process.kill()
            self._process = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _running(self) -> _Process:
        """The process, started if there is none."""
        if self._process is not None:
            return self._process
        self.starts += 1
        process = _Process(self._folder / f"log-{self.starts}")
        self._process = process
        process.send(
            {
                "command": "load",
                "target": self._target,
                "source": source_to_json(self._source),
                "paths": [str(Path.cwd()), *(path for path in sys.path if path)],
                "memory": self._limits.memory,
            }
        )
        answer: dict[str, Any] | None = {"answer": "ready"}
        deadline = time.monotonic() + self._limits.load_s
        while answer is not None and answer["answer"] == "ready":
            answer = process.receive(max(0.0, deadline - time.monotonic()))
        if answer is None:
            self._drop()
            raise self._not_loaded(process)
        if answer["answer"] == "refused":
            self._drop()
            cls: type[SteadySumError] = getattr(errors, answer["type"])
            raise cls(*answer["parts"])
        self.inputs = {"source": answer["source"], "tensors": answer["tensors"]}
        return process

    def _watch(
        self,
        process: _Process,
        journal: Journal,
        stopped: Callable[[], bool],
        progressed: Callable[[int], None],
    ) -> tuple[Ending, dict[str, Any]]:
        """Waits for the answer, or for what takes its place."""
        is_interrupted = False
        seen, since = journal.ended, time.monotonic()
        kills = _oom_kills()
        while True:
            try:
                answer = process.receive(_LOOK_S)
                if answer is not None:
                    return _ending(answer, journal, is_interrupted), answer
                if process.has_ended:
                    self._drop()
                    return _died(process, journal, kills), {}
                if journal.ended != seen:
                    seen, since = journal.ended, time.monotonic()
                    progressed(seen)
                patience = self._limits.hang_s
                if journal.begun == 0:  # conditions are being set up, with plain calls of the operator
                    patience = max(patience, self._limits.load_s)
                if time.monotonic() - since > patience:
                    stacks = process.stacks()
                    self._drop()
                    detail = f"no run ended for {patience:g} s\n{stacks}"
                    return Ending("interrupted" if is_interrupted else "hang", _open_run(journal), detail), {}
                if stopped():
                    journal.ask_to_stop()
            except KeyboardInterrupt:
                if is_interrupted:  # a second one: the operator doesn't return soon enough for the user
                    self._drop()
                    return Ending("interrupted", _open_run(journal), "the run was broken off"), {}
                is_interrupted = True
                journal.ask_to_stop()

    def _drop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None

    def _not_loaded(self, process: _Process) -> SteadySumError:
        allowed = f"a module and inputs that load within {self._limits.load_s:g} s, without a crash"
        code = process.code_at_end
        how = "takes longer" if code is None else f"ends with {_name_of(code)}"
        seen = f"{self._target!r}, whose process {how} while it loads"
        return DiagnosisTargetError("target", seen, allowed, f"What it wrote:\n{process.log()}")


class _Process:
    """The child process with its two pipes."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self.code_at_end: int | None = None
        to_read, self._to_child = os.pipe()
        self._from_child, to_write = os.pipe()
        command = [sys.executable, "-m", _MODULE, str(to_read), str(to_write), str(os.getpid())]
        with log.open("wb") as file:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                pass_fds=(to_read, to_write),
                start_new_session=True,  # Ctrl-C is for the tool: it decides when the operator stops
            )
        os.close(to_read)
        os.close(to_write)
        self._rest = b""

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def has_ended(self) -> bool:
        if self._child.poll() is None:
            return False
        self.code_at_end = self._child.returncode
        return True

    def send(self, command: dict[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has died: receive says so
            os.write(self._to_child, json.dumps(command).encode() + b"\n")

    def receive(self, timeout: float) -> dict[str, Any] | None:
        """The next answer; None: none in this time, or the process has ended."""
        deadline = time.monotonic() + timeout
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self._from_child], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return None
            read = os.read(self._from_child, 1 << 16)
            if not read:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._child.wait(1.0)
                self.code_at_end = self._child.poll()
                return None
            self._rest += read
        line, _, self._rest = self._rest.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def stacks(self) -> str:
        """Where every thread of a hanging process is."""
        before = self._log.stat().st_size
        with contextlib.suppress(ProcessLookupError):
            self._child.send_signal(signal.SIGUSR1)
        deadline, written = time.monotonic() + _STACK_S, before
        while time.monotonic() < deadline and not before < written == self._log.stat().st_size:
            written = self._log.stat().st_size
            time.sleep(_LOOK_S)
        with self._log.open("rb") as file:
            file.seek(before)
            return file.read(_MOST_LOG).decode(errors="replace")

    def log(self) -> str:
        """The end of what the process has written."""
        with self._log.open("rb") as file:
            file.seek(max(0, self._log.stat().st_size - _MOST_LOG))
            return file.read().decode(errors="replace")

    def kill(self) -> None:
        """With all processes that it has started."""
        self.code_at_end = self._child.poll() if self.code_at_end is None else self.code_at_end
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        for end in (self._to_child, self._from_child):
            with contextlib.suppress(OSError):
                os.close(end)


def _ending(answer: dict[str, Any], journal: Journal, is_interrupted: bool) -> Ending:
    kind = answer["ending"]
    if kind == "stopped":
        return Ending("interrupted" if is_interrupted else "stopped", None)
    run = _open_run(journal) if kind in ("exception", "out_of_memory") else None
    return Ending(kind, run, answer["detail"])


def _died(process: _Process, journal: Journal, kills_before: int) -> Ending:
    code = process.code_at_end or 0
    run = _open_run(journal)
    if code == -signal.SIGKILL and _oom_kills() > kills_before:
        return Ending("out_of_memory", run, "the system killed the process, since no memory was left")
    kind = "signal" if code < 0 else "exit"
    return Ending(kind, run, f"{_name_of(code)}\n{process.log()}")


def _open_run(journal: Journal) -> int | None:
    """The run that was begun and hasn't ended; None: it happened between runs."""
    return journal.begun if journal.begun > journal.ended else None


def _name_of(code: int) -> str:
    """An exit status in words.

    >>> _name_of(-11), _name_of(3)
    ('SIGSEGV (Segmentation fault)', 'exit status 3')
    """
    if code >= 0:
        return f"exit status {code}"
    try:
        found = signal.Signals(-code)
    except ValueError:
        return f"signal {-code}"
    return f"{found.name} ({signal.strsignal(found)})"


def _oom_kills() -> int:
    """How often the kernel has killed a process of this container for want of memory."""
    try:
        lines = dict(line.split() for line in _OOM_EVENTS.read_text().splitlines())
        return int(lines.get("oom_kill", 0))
    except (OSError, ValueError):
        return 0
