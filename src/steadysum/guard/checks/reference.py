"""Reference: another callable's result beside this one's.

Not here: how two results are compared (comparison.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from steadysum.guard.checks.nearness import first_difference
from steadysum.guard.checks.protocol import Finding, Made
from steadysum.guard.checks.random_state import random_state_put_back

__all__ = ["Reference"]


@dataclass(frozen=True)
class Reference:
    """Calls a second implementation with the same arguments; every element must be within a tolerance of its result.

    Args:
        reference: called as the guarded callable is, without gradients. It must not change its arguments.
        rtol, atol: |output - reference| <= atol + rtol |reference|. NaN equals NaN, and an infinity itself.

    >>> x = torch.tensor([1.0, 2.0])
    >>> Reference(torch.square).judge(Made(torch.exp, (x,), {}, torch.tensor([1.0, 5.0]))).places
    ((1, 0),)
    """

    reference: Callable[..., Any]
    rtol: float = 1e-3
    atol: float = 1e-5

    @property
    def name(self) -> str:
        """reference."""
        return "reference"

    def fits(self, made: Made) -> str | None:
        """Any call, unless it has changed its arguments, and nobody has copies for the reference."""
        own = set[int]()
        if made.written and isinstance(made.function, torch.nn.Module):
            own = {id(tensor) for tensor in (*made.function.parameters(), *made.function.buffers())}
        if any(id(tensor) not in own for tensor in made.written):
            return "the call has changed its arguments; protect(..., restore=True) takes copies"
        return None

    def judge(self, made: Made) -> Finding:
        """`measured` is the largest difference, `allowed` what it may be there."""
        with torch.no_grad(), random_state_put_back(made):
            expected = self.reference(*made.args, **made.kwargs)
            return first_difference(self.name, made.output, expected, self.rtol, self.atol)
