"""Switches of torch and of vendors that bear on equal results: how they are set, and what that means on this device.

What values mean is data, in switches.toml. Not here: advice (diagnosis/doctor.py).
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Any, Final, NamedTuple

import torch

from steadysum.environment.vendor import Found

__all__ = ["Reading", "Switch", "devices_here", "read_switches", "switches"]

_OF_TORCH: Final = "torch."


class Switch(NamedTuple):
    """A switch, and what its values mean."""

    name: str
    devices: frozenset[str]
    values: Mapping[str, str]  # "": not set
    other: str | None  # what any other value means
    reproducible: tuple[
        str, ...
    ]  # values with which it lets nothing vary, the usual one first; empty: it isn't for that
    source: str


class Reading(NamedTuple):
    """How a switch is set in this process."""

    name: str
    value: str | None  # None: not set, or it can't be read
    meaning: str
    matters: bool  # on a device that is here
    reproducible: bool | None  # None: it isn't for that, or can't be read
    advised: str  # the value with which it lets nothing vary; empty: it isn't for that


@lru_cache(maxsize=1)
def switches() -> tuple[Switch, ...]:
    """All of switches.toml."""
    text = files("steadysum.environment").joinpath("switches.toml").read_text(encoding="utf-8")
    return tuple(
        Switch(
            entry["name"],
            frozenset(entry["devices"]),
            entry["values"],
            entry.get("other"),
            tuple(entry["reproducible"]),
            entry["source"],
        )
        for entry in tomllib.loads(text)["switch"]
    )


def devices_here(components: Mapping[str, Found]) -> frozenset[str]:
    """Kinds of devices that this process can compute on: cpu, nvidia, amd, npu.

    Args:
        components: of the record. An NPU is here if its driver or its chip has been found.

    >>> "cpu" in devices_here({})
    True
    """
    kinds = {"cpu"}
    if torch.cuda.is_available():
        kinds.add("amd" if torch.version.hip else "nvidia")
    if any(name in components and components[name].version is not None for name in ("npu-driver", "npu-chip")):
        kinds.add("npu")
    return frozenset(kinds)


def read_switches(devices: frozenset[str]) -> tuple[Reading, ...]:
    """How every switch is set.

    Args:
        devices: of `devices_here`.

    Returns:
        One for each of `switches`.

    >>> [reading.value for reading in read_switches(frozenset({"cpu"})) if "matmul_precision" in reading.name]
    ['highest']
    """
    return tuple(_reading(switch, devices) for switch in switches())


def _reading(switch: Switch, devices: frozenset[str]) -> Reading:
    matters = not switch.devices.isdisjoint(devices)
    if not switch.name.startswith(_OF_TORCH):
        value = os.environ.get(switch.name)
    else:
        try:
            value = _TORCH[switch.name]()
        except (AttributeError, RuntimeError) as error:  # not of this torch, or set in two ways that contradict
            return Reading(switch.name, None, f"it can't be read: {str(error).splitlines()[0]}", matters, None, "")
        if value is None:
            return Reading(switch.name, None, "torch_npu isn't loaded", matters, None, "")
    key = (value or "").lower()
    reproducible = key in switch.reproducible if switch.reproducible else None
    meaning = switch.values.get(key) or switch.other or ""
    return Reading(switch.name, value, meaning, matters, reproducible, next(iter(switch.reproducible), ""))


def _on(value: Any) -> str:
    return "on" if value else "off"


def _deterministic_algorithms() -> str:
    if not torch.are_deterministic_algorithms_enabled():
        return "off"
    return "on, warn only" if torch.is_deterministic_algorithms_warn_only_enabled() else "on"


def _of_npu(part: str) -> str | None:
    """A switch of torch_npu, where it is loaded: loading it takes seconds, and wakes the device up."""
    if "torch_npu" not in sys.modules:
        return None
    npu: Any = getattr(torch, "npu")  # noqa: B009 - torch's own types don't have it
    return _on(getattr(npu, part).allow_hf32)


_TORCH: Final[Mapping[str, Callable[[], str | None]]] = {
    "torch.use_deterministic_algorithms": _deterministic_algorithms,
    "torch.utils.deterministic.fill_uninitialized_memory": lambda: _on(
        torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    ),
    "torch.backends.cudnn.deterministic": lambda: _on(torch.backends.cudnn.deterministic),
    "torch.backends.cudnn.benchmark": lambda: _on(torch.backends.cudnn.benchmark),
    "torch.get_float32_matmul_precision": torch.get_float32_matmul_precision,
    "torch.backends.cudnn.allow_tf32": lambda: _on(torch.backends.cudnn.allow_tf32),
    "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction": lambda: _on(
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    ),
    "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction": lambda: _on(
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
    ),
    "torch.npu.matmul.allow_hf32": lambda: _of_npu("matmul"),
    "torch.npu.conv.allow_hf32": lambda: _of_npu("conv"),
}
