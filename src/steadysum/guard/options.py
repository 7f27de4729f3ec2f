"""Options of a guard: what protect() was told, checked once.

Not here: what they do.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from steadysum.errors import OperandTypeError, OptionError, RangeError
from steadysum.guard.bundle import BundleStore
from steadysum.guard.checks.protocol import Check
from steadysum.guard.failure import Failure
from steadysum.guard.fallback import Fallback
from steadysum.guard.sampling import Escalate

__all__ = ["BUNDLES", "Bundles", "OnFailure", "Options"]

BUNDLES: Final = "steadysum-bundles"  # in the working directory: a failing check leaves a bundle, asked for or not

OnFailure = Literal["raise", "warn", "return"] | Callable[[Failure], Any]
Bundles = BundleStore | str | os.PathLike[str] | None


@dataclass(frozen=True)
class Options:
    """What a guard was told; protect() documents each."""

    operator: str
    checks: tuple[Check, ...]
    max_retries: int = 3
    fallback: Fallback | None = None
    synchronize: bool = True
    on_failure: OnFailure = "raise"
    every: int = 1
    escalate: Escalate | None = None
    bundles: BundleStore | None = None
    restore: bool = False
    all_ranks_decide: Callable[[bool], bool] | None = None

    def shown(self) -> dict[str, Any]:
        """As plain values, for a bundle."""
        escalate = self.escalate
        return {
            "checks": [repr(check) for check in self.checks],
            "max_retries": self.max_retries,
            "fallback": None if self.fallback is None else self.fallback.name,
            "synchronize": self.synchronize,
            "on_failure": self.on_failure if isinstance(self.on_failure, str) else repr(self.on_failure),
            "every": self.every,
            "escalate": None if escalate is None else f"{escalate.strikes} strikes in {escalate.window} calls",
            "restore": self.restore,
        }


def accept_number(name: str, value: Any, least: int) -> int:
    """The value, if it is a whole number of at least `least`. Raises OperandTypeError, RangeError."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise OperandTypeError(f"type of {name}", type(value).__name__, "int", "Pass a whole number.")
    if value < least:
        raise RangeError(name, str(value), f"at least {least}", "Pass a larger number.")
    return value


def accept_checks(checks: Any) -> tuple[Check, ...]:
    """The checks as a tuple. Raises OperandTypeError, OptionError."""
    if not isinstance(checks, Sequence) or isinstance(checks, str):
        raise OperandTypeError(
            "type of checks", type(checks).__name__, "a list of checks, or None", "Put a single check in a list."
        )
    if not checks:
        raise OptionError("checks", "none", "one at least", "Pass checks=None for those that suit what is guarded.")
    for check in checks:
        if isinstance(check, type) or not all(hasattr(check, name) for name in ("name", "fits", "judge")):
            raise OperandTypeError(
                "type of a check",
                repr(check) if isinstance(check, type) else type(check).__name__,
                "an object with name, fits and judge, such as guard.checks.Finite()",
                "Wrap a function of your own as guard.checks.Custom(function).",
            )
    return tuple(checks)


def accept_on_failure(value: Any) -> OnFailure:
    """Raises RangeError."""
    if callable(value) or value in ("raise", "warn", "return"):
        return value  # type: ignore[no-any-return]
    raise RangeError("on_failure", repr(value), "'raise', 'warn', 'return' or a callable", "'raise' is the default.")


def accept_bundles(bundles: Bundles) -> BundleStore | None:
    """A folder's store, or the store itself. Raises OperandTypeError."""
    if bundles is None or isinstance(bundles, BundleStore):
        return bundles
    if isinstance(bundles, (str, os.PathLike)):
        return BundleStore(bundles)
    raise OperandTypeError(
        "type of bundles", type(bundles).__name__, "a folder, a BundleStore or None", "None: no bundles are written."
    )


def accept_escalate(value: Any) -> Escalate | None:
    """Raises OperandTypeError."""
    if value is None or isinstance(value, Escalate):
        return value
    raise OperandTypeError("type of escalate", type(value).__name__, "Escalate or None", "Use guard.Escalate(checks).")


def accept_decision(value: Any) -> Callable[[bool], bool] | None:
    """Raises OperandTypeError."""
    if value is None or callable(value):
        return value  # type: ignore[no-any-return]
    raise OperandTypeError("type of all_ranks_decide", type(value).__name__, "a callable or None", "See the guide.")
