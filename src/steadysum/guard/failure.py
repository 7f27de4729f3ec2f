"""Failure: a result that stayed wrong: as an error, as a warning, or for the user's own callable.

Not here: how it came to that (healing.py).
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from steadysum.errors import AccuracyError
from steadysum.guard.attribution import Verdict
from steadysum.guard.checks.protocol import Finding

__all__ = ["Failure", "callers_level", "end", "mention"]

_REMEDIES = {
    "persistent": "Leave this kernel or device out; its evidence is in the bundle.",
    "application": "Look at the inputs and at the check: the operator gives the same on every way.",
    "undecided": "Run reproduce.py of the bundle, or give protect() a fallback to compare with.",
    "transient": "Look for what disturbs this device: load, temperature, memory.",
}


_BETWEEN = ("steadysum.guard.", "torch.", "contextlib")  # modules whose frames lie between a caller and a warning


class Failure(NamedTuple):
    """A call whose result stayed wrong."""

    operator: str
    findings: tuple[Finding, ...]  # what failed of the first result
    verdict: Verdict
    output: Any  # of the last run, with its graph
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    bundle: Path | None

    def error(self) -> AccuracyError:
        """As an error, which has findings, attribution and bundle, too."""
        shown = "; ".join(_told(finding) for finding in self.findings[:4])
        bundle = "" if self.bundle is None else f" Bundle: {self.bundle}."
        return AccuracyError(
            f"accuracy check failed: {self.operator}",
            seen=f"{shown or 'a failure on another rank'} ({self.verdict.attribution}: {self.verdict.reason})",
            allowed="a result that passes its checks, at once or after a rerun",
            remedy=_REMEDIES[self.verdict.attribution] + bundle,
            findings=self.findings,
            attribution=self.verdict.attribution,
            bundle=None if self.bundle is None else str(self.bundle),
        )


def end(failure: Failure, on_failure: Literal["raise", "warn", "return"] | Callable[[Failure], Any]) -> Any:
    """What the caller gets in place of a right result. Raises AccuracyError where that is asked for."""
    if on_failure == "raise":
        raise failure.error()
    if on_failure == "warn":
        warnings.warn(str(failure.error()), RuntimeWarning, stacklevel=callers_level())
    elif on_failure != "return":
        return on_failure(failure)
    return failure.output


def mention(text: str) -> None:
    """A RuntimeWarning that never stops the run, of something that has been taken care of."""
    with contextlib.suppress(Warning):
        warnings.warn(text, RuntimeWarning, stacklevel=callers_level())


def callers_level() -> int:
    """The stacklevel at which a warning points at whoever called what is guarded."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).startswith(_BETWEEN):
        frame, level = frame.f_back, level + 1
    return level


def _told(finding: Finding) -> str:
    rows = f", rows {', '.join(map(str, finding.rows))}" if finding.rows else ""
    return f"{finding.check}: {finding.summary or 'failed'}{rows}"
