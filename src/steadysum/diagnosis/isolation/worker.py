"""The process that an operator under diagnosis has for itself: `python -m steadysum.diagnosis.isolation.worker`.

Commands come as JSON lines by one pipe, answers go by another; standard output is the operator's own. What it answers:
"ready"; "loaded" or "refused" (an error in the four parts of SteadySumError) after "load"; "ran" after "run". Started
and watched by supervisor.py; not for use by hand.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import IO, Any, Final

PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h


def main(commands_fd: int, answers_fd: int, parent: int) -> None:
    """Serves commands until the pipe closes."""
    _die_with(parent)
    # Where it hangs: the supervisor sends SIGUSR1 before it kills. Where it crashed: every thread's Python frames.
    faulthandler.enable(all_threads=True)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    commands = os.fdopen(commands_fd, encoding="utf-8")
    answers = os.fdopen(answers_fd, "w", encoding="utf-8")
    _answer(answers, "ready")
    session = _Session()
    for line in commands:
        command = json.loads(line)
        if command["command"] == "load":
            _answer(answers, **session.load(command))
        else:
            _answer(answers, "ran", **session.run(command))


class _Session:
    """The operator and its arguments, made once."""

    def __init__(self) -> None:
        self._operator: Any = None
        self._call: Any = None

    def load(self, command: dict[str, Any]) -> dict[str, Any]:
        sys.path[:] = command["paths"]
        if command["memory"] is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (command["memory"], command["memory"]))
        from steadysum.diagnosis.isolation.inputs import make_call, source_from_json
        from steadysum.diagnosis.isolation.target import load_target, parse_target
        from steadysum.errors import SteadySumError
        from steadysum.guard.tensors import tensors_of

        try:
            loaded = load_target(parse_target(command["target"]))
            self._call = make_call(source_from_json(command["source"]), loaded, command["target"])
        except SteadySumError as error:
            parts = [error.what, error.seen, error.allowed, error.remedy]
            return {"answer": "refused", "type": type(error).__name__, "parts": parts}
        self._operator = loaded.call
        tensors = tensors_of((self._call.args, self._call.kwargs))
        described = [[str(one.dtype).removeprefix("torch."), list(one.shape), str(one.device)] for one in tensors]
        return {"answer": "loaded", "source": self._call.source, "tensors": described}

    def run(self, command: dict[str, Any]) -> dict[str, Any]:
        from steadysum.diagnosis.isolation.arranged import Condition
        from steadysum.diagnosis.isolation.journal import Journal
        from steadysum.diagnosis.isolation.running import run_all

        folder = Path(command["folder"])
        conditions = [Condition(name, values) for name, values in command["conditions"]]
        with Journal(folder / "journal", command["runs"]) as journal:
            return run_all(self._operator, self._call, command["runs"], conditions, journal, folder)._asdict()


def _answer(answers: IO[str], answer: str, **values: Any) -> None:
    answers.write(json.dumps({"answer": answer, **values}) + "\n")
    answers.flush()


def _die_with(parent: int) -> None:
    """A supervisor that is killed leaves no process behind."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before
        sys.exit(1)


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
