"""Tests of steadysum.diagnosis.environment: what the doctor knows of this machine."""

from __future__ import annotations

import importlib.metadata
import sys
from types import ModuleType

import pytest

from steadysum import _extension, kernels
from steadysum.diagnosis.environment import NEEDS, VARIABLES, Fact, facts
from steadysum.environment import components
from steadysum.environment.determinism import devices_here, read_switches
from steadysum.environment.vendor import vendor_versions
from steadysum.kernels import ascend, triton


def examine() -> dict[str, list[Fact]]:
    """The facts of this machine."""
    found = components(vendor_versions())
    return facts(found, read_switches(devices_here(found)))


def test_every_kernel_is_listed_with_its_promises_or_the_reason_why_it_is_missing() -> None:
    found = {fact.name: fact for fact in examine()["kernels"]}
    assert tuple(found) == kernels.names()
    for name, fact in found.items():
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
    found = {fact.name: fact.value for fact in examine()["processor"]}
    assert found["instructions in use"] == needs_native.isa()


def test_variables_are_shown_with_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_DYNAMIC", raising=False)
    found = {fact.name: fact.value for fact in examine()["environment variables"]}
    assert (found["OMP_NUM_THREADS"], found["MKL_DYNAMIC"]) == ("7", "not set")
    assert found.keys() == VARIABLES.keys()


def test_a_missing_toolkit_of_the_vendors_is_a_fact_with_the_places_that_were_looked_at() -> None:
    if vendor_versions()["cann"].version is not None:
        pytest.skip("the vendor's toolkit is installed")
    (fact,) = (fact for fact in examine()["devices"] if fact.name == "cann")
    assert fact.value == "not found"
    assert "/usr/local/Ascend" in fact.note


def test_switches_for_devices_that_are_not_here_are_counted_and_shown_where_they_are_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("LCCL_DETERMINISTIC", raising=False)
    monkeypatch.setenv("HCCL_DETERMINISTIC", "true")
    readings = read_switches(frozenset({"cpu"}))
    shown = {fact.name: fact for fact in facts(components(vendor_versions()), readings)["determinism"]}
    assert shown["HCCL_DETERMINISTIC"].note == "no effect here: it is for a device that isn't here"
    assert "LCCL_DETERMINISTIC" not in shown
    assert int(shown["others"].value) == len(readings) - len(shown) + 1


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
    found = {fact.name: (fact.value, fact.note) for fact in examine()["versions"]}
    assert found["triton"] == ("9.9.1", "for kernel triton")
    assert found["torch-npu"] == ("not installed", "for kernel ascend")
    assert "torch_npu" not in sys.modules
