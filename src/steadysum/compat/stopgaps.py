"""Settings of the vendor's torch_npu that people change to get around faults of the chip (field report, item R12).

With torch_npu installed and an NPU found they are passed on to it. Elsewhere they are accepted, so that a script runs
unchanged, and each says once that it has no effect. Not here: the operators, and checks of results (torch_npu.py).
"""

from __future__ import annotations

from typing import Any, Final, NoReturn

import torch

from steadysum.compat import emulated, forced_sync
from steadysum.compat.saying import say_once
from steadysum.errors import OperandTypeError, OptionError
from steadysum.kernels import ascend
from steadysum.trace.alignment import REFERENCE, Alignment

__all__ = ["Config", "config", "set_compile_mode", "synchronize"]


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
        say_once("set_compile_mode", chip)


def synchronize(device: Any = None, *, force: bool = False) -> Alignment | None:
    """Wait until a device has done all work that was given to it; with force until all have, in every process.

    Args:
        device: of an accelerator; None: the current one. On a machine without accelerator there is nothing to wait for.
        force: wait for every device of this process. Then pass barriers together with all processes of torch's default
            group, if there is one: every rank must call it. That says how this process's clock lies to rank 0's.

    Returns:
        None; with force the Alignment of this process's clock (time.perf_counter, in microseconds) with rank 0's, as
        steadysum.trace.alignment.align takes it; REFERENCE on rank 0, and without a group.

    Raises:
        OperandTypeError: force isn't a bool. OptionError: force, and a device. SyncTimeout: with force, others don't
            come.

    Source: torch_npu.npu.synchronize; force: field report, R11.
    """
    _check_bool("force", force)
    if not force:
        _wait_for(device)
        return None
    if device is not None:
        raise OptionError("device", repr(device), "None, with force=True", "A forced synchronisation waits for all.")
    has_waited = _wait_for_all()
    if forced_sync.has_group():
        return forced_sync.align_with_group()
    if not has_waited:
        say_once("synchronize", f"{_nothing_to_wait_for()}, and there are no other processes to align clocks with")
    return REFERENCE


def _wait_for(device: Any) -> None:
    chip = ascend.devices()
    if not isinstance(chip, str):
        chip.synchronize(device)
    elif torch.accelerator.is_available():
        torch.accelerator.synchronize(device)
    else:
        say_once("synchronize", _nothing_to_wait_for(), frames=4)


def _wait_for_all() -> bool:
    """Whether there was any device to wait for."""
    chip = ascend.devices()
    if not isinstance(chip, str):
        for index in range(chip.device_count()):
            chip.synchronize(index)
        return True
    if torch.accelerator.is_available():
        for index in range(torch.accelerator.device_count()):
            torch.accelerator.synchronize(index)
        return True
    return False


def _nothing_to_wait_for() -> str:
    if emulated.current() is not None:
        return "calls of an emulated device have ended when they return"
    return "operators on the CPU have done their work when they return"


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
            say_once("config.allow_internal_format", chip, frames=4)
            self._allow_internal_format = value

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in ("allow_internal_format", "_allow_internal_format"):
            _refuse("config", name, ["allow_internal_format"])
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> NoReturn:
        _refuse("config", name, ["allow_internal_format"])


config: Final = Config()


def _check_bool(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise OperandTypeError(f"type of {name}", type(value).__name__, "bool", "Pass True or False.")


def _refuse(where: str, name: str, offered: list[str]) -> NoReturn:
    raise AttributeError(f"steadysum.compat.torch_npu.{where} has no {name!r}; it offers {', '.join(offered)}")
