"""The loop over the runs, in the process that the operator has for itself.

For each run a digest and its time are written to the journal; kept are the first output and one output for each other
digest, at most 16, in memory until the runs are over, so that no run waits for a disk. Nothing is compared here.
"""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from steadysum.diagnosis.isolation.arranged import Acted, Condition, VoidError
from steadysum.diagnosis.isolation.conditions import arrange
from steadysum.diagnosis.isolation.inputs import Call
from steadysum.diagnosis.isolation.journal import Journal, Result
from steadysum.diagnosis.isolation.kept import Outputs, outputs_of, write_outputs
from steadysum.diagnosis.isolation.quick_digest import quick_digest
from steadysum.guard.restore import Contents
from steadysum.guard.tensors import tensors_of

__all__ = ["MOST_KEPT", "Ran", "run_all"]

MOST_KEPT: Final = 16  # beside the first output, as in steadysum.diagnosis.observe
_MOST_KEPT_BYTES: Final = 1 << 30  # of all of them: a large output must not fill the memory 17 times
_MOST_TEXT: Final = 8000  # characters of a traceback


class Ran(NamedTuple):
    """How the runs went, as JSON can hold it."""

    ending: str  # "complete", "stopped", "exception", "out_of_memory", "void"
    detail: str  # a traceback, or why the condition is void
    acted: dict[str, int]  # by condition
    kept: dict[str, str]  # digest -> name of a file
    writes_inputs: bool  # the operator changed its arguments, which were restored before each run
    draws: bool  # a run changed torch's random state


def run_all(
    operator: Callable[..., Any],
    call: Call,
    runs: int,
    conditions: Sequence[Condition],
    journal: Journal,
    folder: Path,  # for outputs that are kept
) -> Ran:
    """Runs the operator up to `runs` times.

    What the operator raises ends the runs and is reported, not raised, but for KeyboardInterrupt and SystemExit.
    """
    kept = _Kept(folder)
    state = torch.get_rng_state()
    acted = {one.name: Acted() for one in conditions}
    inputs = _Inputs(call)
    ending, detail = "complete", ""
    try:
        with contextlib.ExitStack() as stack:
            arranged = arrange(conditions, operator, call, stack, acted)
            inputs = _Inputs(arranged.call)
            for run in range(1, runs + 1):
                if journal.is_to_stop:
                    ending = "stopped"
                    break
                inputs.restore()
                for before in arranged.befores:
                    before()
                journal.begin(run)
                start = time.perf_counter()
                value = arranged.run()
                seconds = time.perf_counter() - start
                outputs = outputs_of(value)
                seen = quick_digest(outputs.tensors.items(), outputs.rest_bytes())
                journal.end(Result(seen, seconds))
                kept.offer(seen, outputs)
                inputs.look()
    except VoidError as error:
        ending, detail = "void", str(error)
    except Exception as error:
        ending = "out_of_memory" if _is_memory(error) else "exception"
        detail = traceback.format_exc()[-_MOST_TEXT:]
    draws = not torch.equal(state, torch.get_rng_state())
    return Ran(
        ending, detail, {name: one.count for name, one in acted.items()}, kept.write(), inputs.are_written, draws
    )


class _Kept:
    """The outputs that are kept."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._outputs: dict[str, Outputs] = {}
        self._bytes = 0

    def offer(self, digest: str, outputs: Outputs) -> None:
        """Keeps a copy of outputs that are unlike all kept ones, while there is room."""
        if digest in self._outputs or len(self._outputs) > MOST_KEPT:
            return
        size = sum(tensor.numel() * tensor.element_size() for tensor in outputs.tensors.values())
        if self._outputs and self._bytes + size > _MOST_KEPT_BYTES:
            return
        self._outputs[digest] = outputs.copy()
        self._bytes += size
        if len(self._outputs) == 1:  # the first: on disk at once, where a crash leaves it
            write_outputs(self._path(digest), outputs)

    def write(self) -> dict[str, str]:
        """Writes the others; digest -> name of the file."""
        for digest, outputs in self._outputs.items():
            if not self._path(digest).exists():
                write_outputs(self._path(digest), outputs)
        return {digest: self._path(digest).name for digest in self._outputs}

    def _path(self, digest: str) -> Path:
        return self._folder / f"{digest}.safetensors"


class _Inputs:
    """Sees whether the operator writes to its arguments, and restores them before the next run if it does.

    A write through numpy or by native code doesn't change a tensor's version: the first runs are looked at by content.
    """

    _LOOKED_AT: Final = 2  # runs

    def __init__(self, call: Call) -> None:
        self._tensors = list(tensors_of((call.args, call.kwargs)))
        self._saved = Contents.of(tuple(self._tensors))
        self._versions = [one._version for one in self._tensors]
        self._looks = 0
        self.are_written = False

    def restore(self) -> None:
        if self.are_written:
            self._saved.put()

    def look(self) -> None:
        if self.are_written:
            return
        self._looks += 1
        versions = [one._version for one in self._tensors]
        if versions != self._versions:
            self.are_written = True
        elif self._looks <= self._LOOKED_AT:
            self.are_written = bool(self._saved.changed().tensors)


def _is_memory(error: Exception) -> bool:
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and "allocate memory" in str(error)  # torch's CPU allocator
