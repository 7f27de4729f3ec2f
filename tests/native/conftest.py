"""Fixtures for the tests of the published bits: each instruction set, and the second implementation."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from types import ModuleType

import pytest

from steadysum import _extension

from .scalar_bits import Scalar, compile_loops

ISAS = _extension.module.runnable_isas() if _extension.module is not None else ["none"]


@pytest.fixture(params=ISAS)
def native(request: pytest.FixtureRequest, needs_native: ModuleType) -> Iterator[ModuleType]:
    """The extension, with each instruction set that runs here in turn."""
    before = needs_native.isa()
    needs_native.set_isa(request.param)
    assert needs_native.isa() == request.param
    yield needs_native
    needs_native.set_isa(before)


@pytest.fixture(scope="session")
def scalar(tmp_path_factory: pytest.TempPathFactory) -> Scalar:
    """The second implementation, compiled."""
    compiler = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
    if compiler is None:
        pytest.skip("no C compiler (cc, gcc or clang) for the second implementation of the published bits")
    return compile_loops(compiler, tmp_path_factory.mktemp("scalar_bits"))
