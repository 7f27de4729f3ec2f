"""Tests of steadysum.diagnosis.environment: what the doctor knows of this machine."""

from __future__ import annotations

import json
from types import ModuleType

import pytest
import torch

import steadysum
from steadysum import _extension, kernels
from steadysum.diagnosis.environment import VARIABLES, doctor_document, examine


def test_every_kernel_is_listed_with_its_promises_or_the_reason_why_it_is_missing() -> None:
    facts = {fact.name: fact for fact in examine()["kernels"]}
    assert tuple(facts) == kernels.names()
    for name, fact in facts.items():
        missing = kernels.get(name).missing()
        assert fact.value == ("available" if missing is None else "not available")
        assert fact.note.startswith("promises: run-to-run") if missing is None else fact.note == missing


def test_a_missing_native_extension_is_reported_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_extension, "module", None)
    monkeypatch.setattr(_extension, "reason", "no C++20 compiler was found")
    sections = examine()
    (native,) = (fact for fact in sections["kernels"] if fact.name == "native")
    assert (native.value, native.note) == ("not available", "no C++20 compiler was found")
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
