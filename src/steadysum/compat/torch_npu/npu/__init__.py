"""What scripts call as torch_npu.npu: settings, synchronisation, `debug` and `memory`. No other name can be set."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, Final, NoReturn

from steadysum.compat.stopgaps import config, set_compile_mode, synchronize
from steadysum.compat.torch_npu.npu import debug, memory

__all__ = ["config", "debug", "memory", "set_compile_mode", "synchronize"]

_HERE: Final = "steadysum.compat.torch_npu.npu"


class _Sealed(ModuleType):
    """A module that refuses what nobody would read: a slip of the pen in a setting's name."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) or name.startswith("__"):  # the import system's
            super().__setattr__(name, value)
        elif name in __all__:
            raise AttributeError(f"{_HERE}.{name} can't be replaced")
        else:
            __getattr__(name)


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(f"{_HERE} has no {name!r}; it offers {', '.join(__all__)}")


sys.modules[__name__].__class__ = _Sealed
