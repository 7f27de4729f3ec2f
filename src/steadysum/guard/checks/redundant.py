"""Redundant: the call once more; a result that isn't the same twice is wrong at least once.

Not here: which of the two is right, and a fault that repeats.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from steadysum.guard.checks.calls import call_of
from steadysum.guard.checks.nearness import first_difference
from steadysum.guard.checks.protocol import Finding, Made
from steadysum.guard.checks.random_state import random_state_put_back
from steadysum.guard.tensors import differing_rows, same_bits, tensors_of

__all__ = ["Redundant"]

MOST_ROWS: Final = 16


@dataclass(frozen=True)
class Redundant:
    """Runs the callable again on the same arguments; both results must agree, bit for bit unless a tolerance is given.

    The second run may draw random numbers: random states are put back. If it has drawn some, the two results don't say
    anything about each other, and the check passes with that as its summary. A callable that writes to its arguments
    is no target for this check: the second run would write once more.

    Args:
        rtol, atol: |second - first| <= atol + rtol |first|; both None: equal bits.

    >>> x = torch.tensor([1.0, 2.0])
    >>> Redundant().judge(Made(torch.exp, (x,), {}, torch.tensor([2.0, 7.0]))).rows
    (0, 1)
    """

    rtol: float | None = None
    atol: float | None = None

    @property
    def name(self) -> str:
        """redundant."""
        return "redundant"

    def fits(self, made: Made) -> str | None:
        """Callables that leave their arguments and their own state as they were."""
        function, args, kwargs = call_of(made)
        if made.written:
            return "the call has changed what it was given; protect(..., restore=True) takes copies"
        if any(
            tensor is argument for tensor in tensors_of(made.output) for argument in tensors_of((args, dict(kwargs)))
        ):
            return "its output is one of its arguments: a second run would start from the result of the first"
        if isinstance(function, torch.nn.Module) and any(
            module.training and any(True for _ in module.buffers(recurse=False)) for module in function.modules()
        ):
            return "it has buffers and is in training mode: a second run may change them"
        return None

    def judge(self, made: Made) -> Finding:
        """`measured` is the largest difference, with a tolerance."""
        with random_state_put_back(made) as state:
            again = made.function(*made.args, **made.kwargs)
        if state.has_changed:
            return Finding(self.name, passed=True, summary="not compared: the callable draws random numbers")
        with torch.no_grad():
            if self.rtol is not None or self.atol is not None:
                return first_difference(self.name, again, made.output, self.rtol or 0.0, self.atol or 0.0)
            if same_bits(again, made.output):
                return Finding(self.name, passed=True)
            rows = differing_rows(again, made.output, MOST_ROWS)
        summary = (
            f"a second run gives other bits, in rows {', '.join(map(str, rows))}" if rows else "a second run differs"
        )
        return Finding(self.name, passed=False, summary=summary, rows=rows)
