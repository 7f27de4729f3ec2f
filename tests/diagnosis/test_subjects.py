"""Tests of steadysum.diagnosis.subjects: which kernels a check takes, and where their operands go."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from steadysum import kernels
from steadysum.diagnosis.environment import NEEDS
from steadysum.diagnosis.subjects import kernel_subject, kernel_subjects
from steadysum.errors import KernelUnavailableError
from steadysum.kernels import ascend, triton

Triton = Callable[..., None]


@pytest.fixture
def triton_is(monkeypatch: pytest.MonkeyPatch) -> Triton:
    """Lets kernel triton be there: triton_is(interpreted=True)."""

    def be(*, interpreted: bool) -> None:
        monkeypatch.setattr(triton, "missing", lambda: None)
        monkeypatch.setattr(triton, "interpreted", lambda: interpreted)

    return be


def test_an_interpreted_kernel_is_checked_only_if_it_is_named(triton_is: Triton) -> None:
    triton_is(interpreted=True)
    subjects, missing = kernel_subjects()
    assert "triton" not in [subject.name for subject in subjects]
    assert missing["triton"] == ("TRITON_INTERPRET=1 makes it run interpreted and slowly; name it: --kernel triton")
    (named,), missing = kernel_subjects(["triton"])
    assert (named.name, named.device, named.interpreted) == ("triton", "cpu", "TRITON_INTERPRET=1")
    assert "triton" not in missing


def test_a_compiled_kernel_is_checked_by_default_with_its_operands_on_the_gpu(triton_is: Triton) -> None:
    triton_is(interpreted=False)
    subjects, missing = kernel_subjects()
    (found,) = (subject for subject in subjects if subject.name == "triton")
    assert (found.device, found.interpreted) == ("cuda", "")
    assert "triton" not in missing


def test_the_other_kernels_operands_are_where_they_run() -> None:
    devices = {name: kernel_subject(name).device for name in kernels.names() if name != "triton"}
    assert devices == {"native": "cpu", "eager": "cpu", "reference": "cpu", "ascend": "npu"}
    assert ascend.DEVICE == "npu"


def test_a_named_kernel_that_cannot_run_is_refused_with_the_reason_and_what_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for kernel in (ascend, triton):
        monkeypatch.setattr(kernel, "missing", lambda: "the dog ate it")
        with pytest.raises(KernelUnavailableError) as refused:
            kernel_subjects([kernel.name])
        assert refused.value.what == f"--kernel {kernel.name}"
        assert refused.value.seen == "a kernel that can't run here (the dog ate it)"
        assert refused.value.remedy == NEEDS[kernel.name]


def test_a_kernels_outputs_come_to_the_cpu() -> None:
    found = kernel_subject("eager").call(torch.ones(2, 8), torch.ones(5, 8))
    assert [each.device.type for each in found] == ["cpu", "cpu"]
