"""Fixtures of the field's tests: kernel triton on operands on the CPU."""

from __future__ import annotations

import pytest
import torch

from steadysum.kernels import triton


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
