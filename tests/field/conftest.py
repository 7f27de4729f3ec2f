"""Fixtures of the field's tests: the extension in which numerical traps can be armed."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

from steadysum import _extension
from steadysum.kernels import triton

from . import trap_build


@pytest.fixture(scope="session")
def built_with_traps() -> ModuleType:
    """The extension's second build, in which `arm` switches one trap on."""
    if trap_build.compiler() is None:
        pytest.skip("no C++ compiler to build the extension with traps")
    return trap_build.load()


@pytest.fixture
def traps(built_with_traps: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """That build in the place of the shipped extension, no trap armed."""
    monkeypatch.setattr(_extension, "module", built_with_traps)
    yield built_with_traps
    built_with_traps.arm(0)


@pytest.fixture
def runs_triton(monkeypatch: pytest.MonkeyPatch, triton_takes_cpu_operands: None) -> None:
    """The triton kernel, on operands on the CPU: on the GPU where there is one, else interpreted.

    The interpreter copies the memory behind each operand to the CPU and back, for GPUs' sake; here from and to the same
    place, which with memory that is only reserved would touch all of it.
    """
    missing = triton.missing()
    if missing is not None:
        pytest.skip(f"kernel triton is missing: {missing}")
    if not triton.interpreted():
        return
    copy = torch.UntypedStorage.copy_

    def copied(self: torch.UntypedStorage, source: torch.UntypedStorage, *others: object) -> torch.UntypedStorage:
        return self if self.data_ptr() == source.data_ptr() else copy(self, source, *others)

    monkeypatch.setattr(torch.UntypedStorage, "copy_", copied)
