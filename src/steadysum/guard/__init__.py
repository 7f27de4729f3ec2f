"""Guard: results that are checked as they are made, healed when they are wrong, and accounted for.

Everything here is imported when it is asked for. Not here: the checks themselves (guard.checks).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from steadysum.guard import checks as checks
    from steadysum.guard.attribution import Verdict as Verdict
    from steadysum.guard.bundle import Bundle as Bundle
    from steadysum.guard.bundle import BundleStore as BundleStore
    from steadysum.guard.bundle import read_bundle as read_bundle
    from steadysum.guard.comparison import compare_accuracy as compare_accuracy
    from steadysum.guard.failure import Failure as Failure
    from steadysum.guard.healing import Healing as Healing
    from steadysum.guard.model_protection import ProtectedModel as ProtectedModel
    from steadysum.guard.model_protection import protect_model as protect_model
    from steadysum.guard.protection import protect as protect
    from steadysum.guard.safe_module import SafeModule as SafeModule
    from steadysum.guard.sampling import Escalate as Escalate

_WHERE: Final = {
    "Bundle": "bundle",
    "BundleStore": "bundle",
    "Escalate": "sampling",
    "Failure": "failure",
    "Healing": "healing",
    "ProtectedModel": "model_protection",
    "SafeModule": "safe_module",
    "Verdict": "attribution",
    "compare_accuracy": "comparison",
    "protect": "protection",
    "protect_model": "model_protection",
    "read_bundle": "bundle",
}

__all__ = [*_WHERE, "checks"]


def __getattr__(name: str) -> Any:
    if name == "checks":
        return importlib.import_module("steadysum.guard.checks")
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
