"""Tests of steadysum.environment.vendor, with the vendor's files and a stand-in for his tool."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from steadysum.environment import vendor
from steadysum.environment.vendor import NAMES, Found, vendor_versions, vendor_versions_by_tool

# What npu-smi 24.1 prints on a machine with two NPUs, as users show it in public reports.
INFO = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 24.1.rc3                 Version: 24.1.rc3                                             |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B3               | OK            | 91.2        36                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          3162 / 65536         |
+===========================+===============+====================================================+
| 1     910B3               | OK            | 90.5        37                0    / 0             |
| 0                         | 0000:01:00.0  | 0           0    / 0          3163 / 65536         |
+===========================+===============+====================================================+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| 0       0                 | 12345         | python                   | 120                     |
+===========================+===============+====================================================+
"""
BOARD = "        NPU ID                         : 0\n        Firmware Version               : 7.5.0.1.129\n"
ANSWERS = f"case \"$*\" in\ninfo) cat <<'END'\n{INFO}END\n;;\n*) cat <<'END'\n{BOARD}END\n;;\nesac"


@pytest.fixture(autouse=True)
def _with_cat(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in needs cat and sleep, which lie elsewhere than the machine's own programs."""
    monkeypatch.setenv("PATH", f"{bare / 'bin'}:/usr/bin:/bin")


def test_a_machine_without_the_vendors_tools_says_where_it_looked(bare: Path) -> None:
    found = vendor_versions_by_tool()
    assert tuple(found) == NAMES
    assert [name for name, each in found.items() if each.version is not None] == []
    assert found["cann"].where == f"no version below {bare}/usr/local/Ascend, nor below {bare}/home/Ascend"
    assert found["npu-driver"].where == f"no version in {bare}/usr/local/Ascend/driver/version.info"
    assert found["npu-chip"].where == "npu-smi isn't on the PATH"


def test_versions_are_read_from_the_files_that_the_installers_leave(toolkit: Path, bare: Path) -> None:
    found = vendor_versions()
    assert found["cann"] == Found("8.5.0", str(toolkit))
    assert found["npu-driver"] == Found("25.5.0", f"{bare}/usr/local/Ascend/driver/version.info")
    assert found["npu-firmware"].version == "7.8.0.5.216"


def test_no_program_of_the_vendors_is_run_for_the_files_alone(
    toolkit: Path, tool: Callable[[str], Path], bare: Path
) -> None:
    tool(f"touch {bare}/was-run")
    vendor_versions()
    assert not (bare / "was-run").exists()


def test_the_toolkit_that_is_set_in_the_environment_comes_first(
    toolkit: Path, write: Callable[[str, str], Path], bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = write(f"mine/{platform.machine()}-linux/ascend_toolkit_install.info", "version=8.3.RC1\n")
    monkeypatch.setenv("ASCEND_HOME_PATH", str(bare / "mine"))
    assert vendor_versions()["cann"] == Found("8.3.RC1", str(record))


def test_a_toolkit_that_is_set_and_not_there_is_named(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_HOME_PATH", "/opt/cann")
    assert vendor_versions()["cann"].where.startswith("no version in /opt/cann, nor below ")


def test_a_toolkit_that_only_says_what_runs_is_read_from_that(write: Callable[[str, str], Path]) -> None:
    config = write(
        "usr/local/Ascend/ascend-toolkit/latest/version.cfg",
        "# version: 1.0\nruntime_running_version=[7.6.0.1.220:8.0.0]\ntoolkit_running_version=[7.6.0.1.220:8.0.0]\n",
    )
    assert vendor_versions()["cann"] == Found("8.0.0", str(config))


def test_a_driver_elsewhere_is_found_by_the_record_of_its_installation(
    write: Callable[[str, str], Path], bare: Path
) -> None:
    write("etc/ascend_install.info", f"UserName=HwHiAiUser\nDriver_Install_Path_Param={bare}/opt/npu\n")
    file = write("opt/npu/driver/version.info", "Version=23.0.3\ncompatible_version_fw=[7.0.0,7.1.99]\n")
    assert vendor_versions()["npu-driver"] == Found("23.0.3", f"{file}; it fits firmware [7.0.0,7.1.99]")


def test_the_tool_is_asked_for_what_no_file_says(tool: Callable[[str], Path]) -> None:
    tool(ANSWERS)
    assert vendor_versions_by_tool() == {
        "cann": vendor_versions()["cann"],
        "npu-driver": Found("24.1.rc3", "npu-smi info"),
        "npu-firmware": Found("7.5.0.1.129", "npu-smi info -t board -i 0"),
        "npu-chip": Found("910B3", "npu-smi info: 2 of them"),
    }


def test_files_come_before_the_tool(toolkit: Path, tool: Callable[[str], Path]) -> None:
    tool(ANSWERS)
    found = vendor_versions_by_tool()
    assert (found["npu-driver"].version, found["npu-firmware"].version) == ("25.5.0", "7.8.0.5.216")
    assert found["npu-chip"].version == "910B3"


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("echo 'dcmi model initialized failed, because the device is used. ret is -8020' >&2; exit 1", "ret is -8020"),
        ("exit 3", "npu-smi info failed: exit code 3"),
        ("sleep 5", "npu-smi info gave no answer in 0.2 s"),
        ("echo nothing", "npu-smi info lists none"),
    ],
)
def test_a_tool_that_fails_is_a_version_that_is_missing(
    tool: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, script: str, says: str
) -> None:
    monkeypatch.setattr(vendor, "TOOL_SECONDS", 0.2)
    tool(script)
    chip = vendor_versions_by_tool()["npu-chip"]
    assert chip.version is None
    assert says in chip.where


def test_a_process_that_uses_the_npu_knows_its_chip(monkeypatch: pytest.MonkeyPatch) -> None:
    npu = SimpleNamespace(is_initialized=lambda: True, get_device_name=lambda: "Ascend910_9392")
    monkeypatch.setitem(sys.modules, "torch_npu", ModuleType("torch_npu"))
    monkeypatch.setattr(torch, "npu", npu, raising=False)
    assert vendor_versions()["npu-chip"] == Found("910_9392", "torch.npu.get_device_name()")
    npu.is_initialized = lambda: False
    assert vendor_versions()["npu-chip"].version is None
