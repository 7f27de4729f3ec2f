"""Fixtures of the field's tests: the extension in which numerical traps can be armed."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest

from steadysum import _extension

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
