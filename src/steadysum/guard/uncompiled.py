"""Uncompiled: functions that torch.compile never traces: a check looks at values, which don't exist in a graph.

The graph ends before such a function, and goes on after it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

__all__ = ["own_code", "uncompiled"]

P = ParamSpec("P")
R = TypeVar("R")


def uncompiled(function: Callable[P, R]) -> Callable[P, R]:
    """The function, run beside the compiler where there is one.

    Its own decorator, torch.compiler.disable, would import the compiler, a second's work, for those who don't compile.
    """
    disabled: Callable[P, R] = torch._disable_dynamo(function)  # type: ignore[attr-defined]

    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        # Also where this frame isn't traced itself: those that it calls would be.
        if torch.compiler.is_compiling() or "torch._dynamo" in sys.modules:
            return disabled(*args, **kwargs)
        return function(*args, **kwargs)

    return own_code(run)


def own_code(function: Callable[P, R]) -> Callable[P, R]:
    """The function with a code object of its own: the compiler compiles one object for so many callers at most."""
    function.__code__ = function.__code__.replace()
    return function
