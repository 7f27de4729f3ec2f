"""Attempt: one result, and what the checks say of it.

Not here: what follows when they object (healing.py), and checks themselves (checks/).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch

from steadysum.guard.checks.protocol import Check, Finding, Made
from steadysum.notices import heard, post

__all__ = ["Target", "failed", "is_unguarded", "judge", "unguardable", "unguarded"]

# A check, or a fallback, may call what is guarded here: that runs as it is, or it would never end.
_unguarded: ContextVar[bool] = ContextVar("steadysum_guard_unguarded", default=False)


class Target(NamedTuple):
    """What is guarded, as one call finds it."""

    function: Callable[..., Any]  # what runs, unguarded
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    shown: Callable[..., Any] | None = None  # what checks see in its place: a module that is guarded in place

    @property
    def callee(self) -> Callable[..., Any]:
        """What people, and checks, know it as."""
        return self.function if self.shown is None else self.shown

    def run(self) -> Any:
        """One run."""
        return self.function(*self.args, **self.kwargs)

    def made(self, output: Any) -> Made:
        """What a check looks at."""
        return Made(self.callee, self.args, self.kwargs, output)


def judge(checks: tuple[Check, ...], made: Made, operator: str) -> tuple[Finding, ...]:
    """What the checks that fit the call find; empty if none fits."""
    with unguarded():
        return tuple(_judge(check, made, operator) for check in checks if check.fits(made) is None)


def failed(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Those that object."""
    return tuple(finding for finding in findings if not finding.passed)


@contextmanager
def unguarded() -> Iterator[None]:
    """Inside, in this thread or task, guarded callables run as if they weren't."""
    token = _unguarded.set(True)
    try:
        yield
    finally:
        _unguarded.reset(token)


def is_unguarded() -> bool:
    """Whether we are inside of `unguarded`."""
    return _unguarded.get()


def unguardable() -> str | None:
    """Why nothing can be checked where we are: values don't exist yet, or can't be looked at; or None."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "it runs under a transform of torch.func"
    if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
        return "it runs on fake tensors"
    if torch._C._is_tracing():
        return "it is being traced"
    if torch.cuda._initialized and torch.cuda.is_current_stream_capturing():
        return "a CUDA graph is being captured"
    return None


def _judge(check: Check, made: Made, operator: str) -> Finding:
    if not heard():
        return check.judge(made)
    start = time.perf_counter()
    finding = check.judge(made)
    outcome = "passed" if finding.passed else "failed"
    post("check", time.perf_counter() - start, operator=operator, check=finding.check, outcome=outcome)
    return finding
