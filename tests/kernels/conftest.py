"""Fixtures of the kernels' tests: the instruction set in use, and a machine under load."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from .same_bits import ISAS, instructions


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest, needs_native: ModuleType) -> Iterator[str]:
    """Each instruction set in turn, in use during the test."""
    if request.param not in needs_native.runnable_isas():
        lacking = [name for name, there in needs_native.cpu_features().items() if not there]
        pytest.skip(f"this CPU can't run the {request.param} code: it lacks {', '.join(lacking)}")
    with instructions(needs_native, request.param):
        assert needs_native.isa() == request.param
        yield request.param


@pytest.fixture
def load() -> Iterator[None]:
    """Other processes keep every core busy; they end by themselves after a minute, whatever happens to this one."""
    program = "import time; end = time.monotonic() + 60\nwhile time.monotonic() < end: pass"
    processes = [subprocess.Popen([sys.executable, "-S", "-c", program]) for _ in range((os.cpu_count() or 1) + 1)]
    try:
        yield
        assert all(process.poll() is None for process in processes), "the load ended before the test"
    finally:
        for process in processes:
            process.kill()
            process.wait()
