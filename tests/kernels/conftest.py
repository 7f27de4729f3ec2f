"""Fixtures of the kernels' tests: the instruction set in use, and a machine under load."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from steadysum.kernels import triton

from .same_bits import ISAS, instructions

# Tests of every dtype with every option: without a GPU an operation of the triton kernel takes 0.1 ms, and most of the
# minutes would be spent on 16-bit operands, which differ from fp32 ones where they are loaded, and on options, which
# come after that. So both are tested, and not all pairs of them.
PAIRS_OF_DTYPE_AND_OPTION = (
    "test_statistics_are_as_good_as_a_plain_fp32_computation",
    "test_gradients_are_as_good_as_a_plain_fp32_computation",
    "test_chunk_statistics_are_as_good_as_a_plain_fp32_computation",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect, for the interpreted triton kernel, 16-bit operands with one option alone: they have none, or all."""

    def left_out(item: pytest.Item) -> bool:
        if not isinstance(item, pytest.Function) or item.originalname not in PAIRS_OF_DTYPE_AND_OPTION:
            return False
        parameters = item.callspec.params
        names = item.callspec.id.split("-")
        return parameters["kernel"] == "triton" and parameters["dtype"].itemsize == 2 and not {"none", "all"} & {*names}

    if triton.interpreted():
        too_many = [item for item in items if left_out(item)]
        items[:] = [item for item in items if not left_out(item)]
        config.hook.pytest_deselected(items=too_many)


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
