"""Tests of steadysum.diagnosis.environment: what the doctor knows of this machine."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from types import ModuleType

import pytest
import torch

import steadysum
from steadysum import _extension, kernels
from steadysum.diagnosis.environment import NEEDS, VARIABLES, doctor_document, examine
from steadysum.kernels import ascend, triton


def test_every_kernel_is_listed_with_its_promises_or_the_reason_why_it_is_missing() -> None:
    facts = {fact.name: fact for fact in examine()["kernels"]}
    assert tuple(facts) == kernels.names()
    for name, fact in facts.items():
        missing = kernels.get(name).missing()
        if missing is None:
            assert fact.value in ("available", "available, interpreted")
            assert fact.note.startswith("promises: run-to-run")
        else:
            assert fact.value == "not available"
            assert fact.note == f"{missing}. {NEEDS[name]}"


def test_a_missing_native_extension_is_reported_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_extension, "module", None)
    monkeypatch.setattr(_extension, "reason", "no C++20 compiler was found")
    sections = examine()
    (native,) = (fact for fact in sections["kernels"] if fact.name == "native")
    assert (native.value, native.note) == ("not available", f"no C++20 compiler was found. {NEEDS['native']}")
    assert "instructions in use" not in [fact.name for fact in sections["processor"]]


def test_the_instructions_in_use_are_the_native_extensions(needs_native: ModuleType) -> None:
    facts = {fact.name: fact.value for fact in examine()["processor"]}
    assert facts["instructions in use"] == needs_native.isa()


def test_variables_are_shown_with_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_CBWR", raising=False)
    facts = {fact.name: fact.value for fact in examine()["environment variables"]}
    assert (facts["OMP_NUM_THREADS"], facts["MKL_CBWR"]) == ("7", "not set")
    assert facts.keys() == VARIABLES.keys()


def test_the_document_can_be_written() -> None:
    document = json.loads(json.dumps(doctor_document(examine())))
    assert document["schema"] == "steadysum.doctor/1"
    assert document["versions"]["steadysum"] == steadysum.__version__
    assert document["versions"]["torch"] == torch.__version__


def test_kernels_for_other_hardware_are_explained_by_reason_package_device_and_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ascend, "missing", lambda: "torch_npu isn't installed")
    monkeypatch.setattr(triton, "missing", lambda: "there is no CUDA or ROCm device")
    notes = {fact.name: fact.note for fact in examine()["kernels"]}
    assert notes["ascend"] == (
        "torch_npu isn't installed. It needs the package torch-npu of your torch's version (pip install "
        "'steadysum[ascend]'), the vendor's CANN toolkit, and an Ascend NPU among those of ASCEND_RT_VISIBLE_DEVICES."
    )
    assert notes["triton"] == (
        "there is no CUDA or ROCm device. It needs the package triton (pip install 'steadysum[triton]'), and a CUDA or "
        "ROCm GPU with a build of torch for it; without a GPU, TRITON_INTERPRET=1, set before Python starts, runs it "
        "interpreted on the CPU."
    )
    assert {"TRITON_INTERPRET", "ASCEND_RT_VISIBLE_DEVICES"} <= VARIABLES.keys()


def test_an_interpreted_kernel_is_no_more_than_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "missing", lambda: None)
    for interpreted, value in ((True, "available, interpreted"), (False, "available")):
        monkeypatch.setattr(triton, "interpreted", lambda interpreted=interpreted: interpreted)
        (fact,) = (fact for fact in examine()["kernels"] if fact.name == "triton")
        assert fact.value == value


def test_versions_of_optional_packages_are_shown_without_importing_them(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"triton": "9.9.1"}

    def version(package: str) -> str:
        if package not in installed:
            raise importlib.metadata.PackageNotFoundError(package)
        return installed[package]

    monkeypatch.setattr(importlib.metadata, "version", version)
    facts = {fact.name: (fact.value, fact.note) for fact in examine()["versions"]}
    assert facts["triton"] == ("9.9.1", "for kernel triton")
    assert facts["torch-npu"] == ("not installed", "for kernel ascend")
    assert "torch_npu" not in sys.modules
