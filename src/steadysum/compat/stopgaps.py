"""Settings of the vendor's torch_npu that people change to get around faults of the chip (field report, item R12).

With torch_npu installed and an NPU found they are passed on to it. Elsewhere they are accepted, so that a script runs
unchanged, and each says once that it has no effect. Not here: the operators, and checks of results (torch_npu.py).
"""

from __future__ import annotations

import warnings
from typing import Any, Final, NoReturn

import torch

from steadysum.errors import OperandTypeError
from steadysum.kernels import ascend

__all__ = ["Config", "Npu", "config", "npu", "set_compile_mode", "synchronize"]

NO_EFFECT: Final = "has no effect on this device"

_said: set[str] = set()


def set_compile_mode(jit_compile: bool = False) -> None:
    """Switch the compilation of operators at run time off (False) or on, on an NPU.

    Args:
        jit_compile: True or False.

    Raises:
        OperandTypeError: anything else.

    Source: field report, R12; torch_npu.npu.set_compile_mode.

    >>> set_compile_mode(jit_compile=False)
    """
    _check_bool("jit_compile", jit_compile)
    chip = ascend.devices()
    if not isinstance(chip, str):
        chip.set_compile_mode(jit_compile=jit_compile)
    else:
        _say_once("set_compile_mode", chip)


def synchronize(device: Any = None) -> None:
    """Wait until a device has done all work that was given to it.

    Args:
        device: of an accelerator; None: the current one. On a machine without accelerator there is nothing to wait for.
    """
    chip = ascend.devices()
    if not isinstance(chip, str):
        chip.synchronize(device)
    elif torch.accelerator.is_available():
        torch.accelerator.synchronize(device)
    else:
        _say_once("synchronize", "operators on the CPU have done their work when they return")


class Config:
    """The setting `allow_internal_format`: whether an NPU may store tensors in formats of its own; True by default.

    >>> config.allow_internal_format = False
    >>> config.allow_internal_format
    False
    """

    __slots__ = ("_allow_internal_format",)

    def __init__(self) -> None:
        self._allow_internal_format = True

    @property
    def allow_internal_format(self) -> bool:
        """On an NPU the vendor's setting; elsewhere what was set last, True before."""
        chip = ascend.devices()
        if not isinstance(chip, str):
            return bool(chip.config.allow_internal_format)
        return self._allow_internal_format

    @allow_internal_format.setter
    def allow_internal_format(self, value: bool) -> None:
        _check_bool("config.allow_internal_format", value)
        chip = ascend.devices()
        if not isinstance(chip, str):
            chip.config.allow_internal_format = value
        else:
            _say_once("config.allow_internal_format", chip, frames=4)
            self._allow_internal_format = value

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in ("allow_internal_format", "_allow_internal_format"):
            _refuse("config", name, ["allow_internal_format"])
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> NoReturn:
        _refuse("config", name, ["allow_internal_format"])


config: Final = Config()


class Npu:
    """What scripts call as torch_npu.npu; the functions are those of this module."""

    __slots__ = ()

    config = config
    set_compile_mode = staticmethod(set_compile_mode)
    synchronize = staticmethod(synchronize)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        if hasattr(Npu, name):
            raise AttributeError(f"steadysum.compat.torch_npu.npu.{name} can't be replaced")
        self.__getattr__(name)

    def __getattr__(self, name: str) -> NoReturn:
        _refuse("npu", name, ["config", "set_compile_mode", "synchronize"])


npu: Final = Npu()


def _say_once(setting: str, reason: str, *, frames: int = 3) -> None:
    """Warn, of the line of code that lies so many frames up."""
    if setting not in _said:
        _said.add(setting)
        warnings.warn(f"{setting} {NO_EFFECT}: {reason}. This is said once.", UserWarning, stacklevel=frames)


def _check_bool(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise OperandTypeError(f"type of {name}", type(value).__name__, "bool", "Pass True or False.")


def _refuse(where: str, name: str, offered: list[str]) -> NoReturn:
    raise AttributeError(f"steadysum.compat.torch_npu.{where} has no {name!r}; it offers {', '.join(offered)}")
