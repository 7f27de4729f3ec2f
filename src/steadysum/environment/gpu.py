"""GPUs, their driver and their firmware, from the files that the driver itself shows; no context is made on a device.

Not here: what torch was built for (record.py), and NPUs (vendor.py).
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Final

from steadysum.environment.vendor import Found

__all__ = ["NAMES", "gpu_versions"]

NAMES: Final = ("gpu", "gpu-driver", "gpu-firmware")

NVIDIA: Final = Path("/proc/driver/nvidia")
AMD: Final = Path("/sys/module/amdgpu/version")  # of the driver outside of the kernel's tree alone
AMD_DEVICES: Final = Path("/sys/class/drm")

_NVIDIA_DRIVER: Final = re.compile(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s")


def gpu_versions() -> dict[str, Found]:
    """By name: the GPUs of the machine, whether this process may use them or not, their driver and their firmware.

    Source: the NVIDIA driver's README, "The /proc Interface"; the documentation of amdgpu in Linux.

    >>> sorted(gpu_versions()) == sorted(NAMES)
    True
    """
    devices = [_fields(file) for file in sorted(NVIDIA.glob("gpus/*/information"))]
    if devices:
        return {
            "gpu": _counted([device.get("Model", "") for device in devices], NVIDIA / "gpus"),
            "gpu-driver": _nvidia_driver(),
            "gpu-firmware": _counted([device.get("GPU Firmware", "") for device in devices], NVIDIA / "gpus"),
        }
    products = [_text(file) for file in sorted(AMD_DEVICES.glob("card*/device/product_name"))]
    driver = _text(AMD)
    return {
        "gpu": _counted(products, AMD_DEVICES),
        "gpu-driver": Found(driver or None, str(AMD) if driver else f"neither {NVIDIA} nor {AMD}"),
        "gpu-firmware": Found(None, f"not in {NVIDIA}"),
    }


def _counted(names: list[str], where: Path) -> Found:
    """Each name once: a machine's GPUs are mostly of one kind."""
    counts = Counter(name for name in names if name and name != "N/A")
    if not counts:
        return Found(None, f"nothing in {where}")
    return Found(", ".join(counts), f"{where}: {', '.join(f'{count} x {name}' for name, count in counts.items())}")


def _nvidia_driver() -> Found:
    file = NVIDIA / "version"
    matched = _NVIDIA_DRIVER.search(_text(file))
    return Found(None, f"no version in {file}") if matched is None else Found(matched[1], str(file))


def _fields(file: Path) -> dict[str, str]:
    parted = (line.partition(":") for line in _text(file).splitlines())
    return {name.strip(): value.strip() for name, sign, value in parted if sign}


def _text(file: Path) -> str:
    """Empty where it can't be read, which is as good as not there."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
