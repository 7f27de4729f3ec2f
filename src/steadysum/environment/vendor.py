"""Versions of the vendor's toolkit (CANN), driver, firmware and chip, where they are installed, and where that is said.

Files are read in a millisecond; the vendor's tool npu-smi, which takes seconds, is asked for what no file says. Neither
has been tried on the vendor's machines, since we have none: forms and places are those of the vendor's installation
guide and of the files that users have shown in public reports. Not here: what a version means (rules.toml).
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import torch

__all__ = ["NAMES", "Found", "vendor_versions", "vendor_versions_by_tool"]

NAMES: Final = ("cann", "npu-driver", "npu-firmware", "npu-chip")

INSTALLED: Final = Path("/usr/local/Ascend")  # by root; other users have theirs in ~/Ascend
DRIVER_RECORD: Final = Path("/etc/ascend_install.info")  # says where the driver is, if elsewhere
TOOL: Final = "npu-smi"
TOOL_SECONDS: Final = 20.0  # the vendor's own scripts give it as long

_FOLDERS: Final = ("ascend-toolkit/latest", "cann", "nnae/latest", "nnrt/latest")
_RECORDS: Final = ("ascend_toolkit_install.info", "ascend_nnae_install.info", "ascend_nnrt_install.info")
_RUNNING: Final = ("toolkit_running_version", "runtime_running_version")  # of version.cfg: [7.6.0.1.220:8.0.0]

_TOOL_VERSION: Final = re.compile(r"Version:\s*([\w.]+)")
# The first line of an NPU: | 0     910B3   | OK   | ...; a line of a process or a chip has numbers alone there.
_TOOL_CHIP: Final = re.compile(r"^\|\s*(\d+)\s+(\w*[A-Za-z][\w-]*)\s*\|", re.MULTILINE)
_TOOL_FIRMWARE: Final = re.compile(r"Firmware Version\s*:\s*([\w.]+)")


class Found(NamedTuple):
    """A version, or why there is none."""

    version: str | None
    where: str  # the file or command that says so; what was looked for in vain


def vendor_versions() -> dict[str, Found]:
    """By name, what files say. None of the vendor's programs is run.

    Returns:
        One for each of NAMES. The chip is in no file: torch_npu knows it, in a process that has used it.

    Source: CANN Software Installation Guide, "File Paths" (hiascend.com).
    """
    return {
        "cann": _cann(),
        "npu-driver": _package("driver", ("package_version", "Version")),
        "npu-firmware": _package("firmware", ("Version", "package_version")),
        "npu-chip": _chip_in_use(),
    }


def vendor_versions_by_tool() -> dict[str, Found]:
    """By name, what files say, and what npu-smi says of the others. It takes seconds where there is an NPU."""
    found = vendor_versions()
    if shutil.which(TOOL) is None:
        missing = Found(None, f"{TOOL} isn't on the PATH")
        return {**found, "npu-chip": found["npu-chip"] if found["npu-chip"].version is not None else missing}
    said = _ask("info")
    if not isinstance(said, str):
        return {name: said if each.version is None and name != "cann" else each for name, each in found.items()}
    chips = _TOOL_CHIP.findall(said)
    if chips:
        kinds = list(dict.fromkeys(_kind(name) for _, name in chips))
        found["npu-chip"] = Found(", ".join(kinds), f"{TOOL} info: {len(chips)} of them")
    else:
        found["npu-chip"] = Found(None, f"{TOOL} info lists none")
    version = _TOOL_VERSION.search(said)
    if found["npu-driver"].version is None and version is not None:
        found["npu-driver"] = Found(version[1], f"{TOOL} info")
    if found["npu-firmware"].version is None and chips:
        found["npu-firmware"] = _firmware_of(chips[0][0], found["npu-firmware"])
    return found


def _chip_in_use() -> Found:
    npu = getattr(torch, "npu", None) if "torch_npu" in sys.modules else None
    if npu is None or not npu.is_initialized():  # else asking would wake the device up
        return Found(None, f"no file says; {TOOL} does")
    return Found(_kind(npu.get_device_name()), "torch.npu.get_device_name()")


def _kind(chip: str) -> str:
    """torch_npu calls Ascend910B3 what the vendor's tool calls 910B3."""
    return chip.removeprefix("Ascend")


def _cann() -> Found:
    for folder in _toolkits():
        for record in _records(folder):
            version = _entries(record).get("version")
            if version:
                return Found(version, str(record))
        config = folder / "version.cfg"
        entries = _entries(config)
        for name in _RUNNING:
            if entries.get(name):
                return Found(entries[name].strip("[]").rpartition(":")[2].removeprefix("CANN-"), str(config))
    places = [f"in {place}" for place in _set_places()] + [f"below {root}" for root in _roots()]
    return Found(None, f"no version {', nor '.join(places)}")


def _set_places() -> list[Path]:
    """Where the toolkit's set_env.sh says that it is."""
    return [Path(os.environ[name]) for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME") if os.environ.get(name)]


def _toolkits() -> Iterator[Path]:
    """Where the toolkit may be: what its set_env.sh has set, and then the default places."""
    yield from _set_places()
    for root in _roots():
        yield from (root / folder for folder in _FOLDERS)


def _roots() -> Iterator[Path]:
    yield INSTALLED
    if os.environ.get("HOME"):
        yield Path(os.environ["HOME"]) / "Ascend"


def _records(folder: Path) -> Iterator[Path]:
    """The install records in a toolkit's folder, this machine's architecture first."""
    own = f"{platform.machine()}-linux"
    others = sorted(path.name for path in _children(folder) if path.name.endswith("-linux") and path.name != own)
    for place in (own, *others, "."):
        yield from (folder / place / record for record in _RECORDS)


def _children(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _package(name: str, keys: tuple[str, ...]) -> Found:
    """The driver or the firmware."""
    parameter = f"{name.capitalize()}_Install_Path_Param"
    elsewhere = _entries(DRIVER_RECORD).get(parameter)
    files = [Path(root) / name / "version.info" for root in ([elsewhere] if elsewhere else []) + [str(INSTALLED)]]
    for file in files:
        entries = _entries(file)
        for key in keys:
            if entries.get(key):
                fits = entries.get("compatible_version_fw")
                return Found(entries[key], f"{file}; it fits firmware {fits}" if fits else str(file))
    return Found(None, f"no version in {', '.join(map(str, dict.fromkeys(files)))}")


def _entries(file: Path) -> dict[str, str]:
    """name=value lines; none where the file can't be read, which is as good as not there."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    parted = (line.partition("=") for line in lines if not line.lstrip().startswith("#"))
    return {name.strip(): value.strip() for name, sign, value in parted if sign}


def _ask(*arguments: str) -> str | Found:
    """What npu-smi prints, or why it doesn't."""
    command = " ".join((TOOL, *arguments))
    try:
        done = subprocess.run(
            [TOOL, *arguments], capture_output=True, text=True, errors="replace", timeout=TOOL_SECONDS
        )
    except subprocess.TimeoutExpired:
        return Found(None, f"{command} gave no answer in {TOOL_SECONDS:g} s")
    except OSError as error:
        return Found(None, f"{command} can't be run: {error.strerror}")
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        return Found(None, f"{command} failed: {said[-1] if said else f'exit code {done.returncode}'}")
    return done.stdout


def _firmware_of(npu: str, otherwise: Found) -> Found:
    said = _ask("info", "-t", "board", "-i", npu)
    if not isinstance(said, str):
        return said
    version = _TOOL_FIRMWARE.search(said)
    return otherwise if version is None else Found(version[1], f"{TOOL} info -t board -i {npu}")
