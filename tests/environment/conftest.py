"""A machine with the vendor's tools, made of files and of a program that prints what his does."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path

import pytest

from steadysum.environment import gpu, vendor


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without the vendor's things and without a GPU; its root."""
    monkeypatch.setattr(vendor, "INSTALLED", tmp_path / "usr/local/Ascend")
    monkeypatch.setattr(vendor, "DRIVER_RECORD", tmp_path / "etc/ascend_install.info")
    monkeypatch.setattr(gpu, "NVIDIA", tmp_path / "proc/driver/nvidia")
    monkeypatch.setattr(gpu, "AMD", tmp_path / "sys/module/amdgpu/version")
    monkeypatch.setattr(gpu, "AMD_DEVICES", tmp_path / "sys/class/drm")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for variable in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path


@pytest.fixture
def write(bare: Path) -> Callable[[str, str], Path]:
    """write("etc/file", text): a file of that machine."""

    def write_file(place: str, text: str) -> Path:
        path = bare / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write_file


@pytest.fixture
def tool(write: Callable[[str, str], Path]) -> Callable[[str], Path]:
    """tool(script): npu-smi, as a shell script."""

    def write_tool(script: str) -> Path:
        path = write("bin/npu-smi", f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    return write_tool


@pytest.fixture
def toolkit(write: Callable[[str, str], Path]) -> Path:
    """CANN 8.5.0, driver 25.5.0 and its firmware, as the vendor's installers leave them; the toolkit's record."""
    write("usr/local/Ascend/driver/version.info", "Version=25.5.0\npackage_version=25.5.0\ninnerversion=V100R001\n")
    write("usr/local/Ascend/firmware/version.info", "Version=7.8.0.5.216\nfirmware_version=1.0\n")
    return write(
        f"usr/local/Ascend/ascend-toolkit/latest/{platform.machine()}-linux/ascend_toolkit_install.info",
        "package_name=Ascend-cann-toolkit\nversion=8.5.0\ninnerversion=V100R001C25\narch=x86_64\n",
    )
