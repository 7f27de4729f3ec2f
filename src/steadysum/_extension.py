"""The native extension, or the reason why it is missing; nothing else imports `steadysum._native`.

The environment variable STEADYSUM_ISA (avx512, avx2, portable) forces one set of instructions; it is read here, once.
Not here: any decision about which kernel runs (kernels/registry.py).
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import Final

__all__ = ["ISA_VARIABLE", "module", "reason", "refused"]

ISA_VARIABLE: Final = "STEADYSUM_ISA"


def _load() -> tuple[ModuleType | None, str]:
    name = "steadysum._native"
    try:
        found = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            return None, f"the native extension needs the module {error.name!r}, which isn't installed"
        return None, "the native extension wasn't built (no C++20 compiler was found when steadysum was installed)"
    except ImportError as error:  # a library that it links is missing, or it was built for another Python
        return None, f"the native extension can't be loaded: {error}"
    isa = os.environ.get(ISA_VARIABLE)
    try:
        if isa:
            found.set_isa(isa)
    except ValueError as error:  # the user wants these instructions or none: another set would hide the mistake
        return None, f"{ISA_VARIABLE}={isa}: {error}"
    return found, ""


module, reason = _load()
# Whether the user asked for instructions that can't be had: then nothing may stand in for `native` in silence.
refused: Final = module is None and bool(os.environ.get(ISA_VARIABLE))
