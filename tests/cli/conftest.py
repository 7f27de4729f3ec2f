"""Runs the command line in this process, as the installed command would."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from steadysum.cli.main import main


class Result(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


@pytest.fixture
def steadysum(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """The command: steadysum("check", "--runs", "2") -> Result."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*arguments: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["steadysum", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        code = ended.value.code
        return Result(code if isinstance(code, int) else 0 if code is None else 1, captured.out, captured.err)

    return run
