"""What a check is: it looks at one result of one call, and says whether it can be right.

Not here: what happens when it can't (protection.py), and the checks themselves, one file each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from torch import Tensor

__all__ = ["Check", "Finding", "Made"]


class Made(NamedTuple):
    """A result, and the call that has made it."""

    function: Callable[..., Any]  # the unguarded callable; a module is one
    args: tuple[Any, ...]  # as they were before the call, where there are copies
    kwargs: Mapping[str, Any]
    output: Any  # what it gave back: a tensor, or tensors in tuples, lists, dicts
    written: tuple[Tensor, ...] = ()  # of args, kwargs and the module: what the call has changed, and nobody has a copy


class Finding(NamedTuple):
    """What a check found."""

    check: str  # the check's name
    passed: bool
    summary: str = ""  # one sentence for people: what was wrong, by how much, what is allowed
    rows: tuple[int, ...] = ()  # rows of the output (leading dimensions flattened) at fault, at most 16, ascending
    places: tuple[tuple[int, ...], ...] = ()  # (row, column) at fault where the check can tell, at most 16
    measured: float | None = None  # the worst value seen
    allowed: float | None = None  # its limit


class Check(Protocol):
    """A check; frozen dataclasses with their thresholds as fields."""

    @property
    def name(self) -> str:
        """As in metrics, bundles and the command line: lower case, underscores."""
        ...

    def fits(self, made: Made) -> str | None:
        """None if the check applies to this call, else the reason why not."""
        ...

    def judge(self, made: Made) -> Finding:
        """Looks at the result; never changes it, nor the random state, nor the autograd graph."""
        ...
