"""Custom: a user's own test of a result.

Not here: any test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from steadysum.errors import OperandTypeError
from steadysum.guard.checks.protocol import Finding, Made

__all__ = ["Custom"]


@dataclass(frozen=True)
class Custom:
    """Asks a callable about each result.

    Args:
        test: (made) -> True or a Finding if the result can be right; False, a Finding that hasn't passed, or a sentence
            that says what is wrong (an empty one: nothing). It is run without gradients, and must leave made as it is.
        title: the check's name in metrics and bundles: lower case, underscores.

    Raises:
        OperandTypeError: when it judges: the callable gave back something else.

    >>> positive = Custom(lambda made: bool((made.output > 0).all()), "positive")
    >>> positive.judge(Made(torch.sin, (), {}, torch.tensor([1.0, -1.0])))[:3]
    ('positive', False, 'the test says no')
    """

    test: Callable[[Made], bool | str | Finding]
    title: str = "custom"

    @property
    def name(self) -> str:
        """The title."""
        return self.title

    def fits(self, made: Made) -> str | None:  # noqa: ARG002 - the test alone knows
        """Any call."""
        return None

    def judge(self, made: Made) -> Finding:
        """What the callable says."""
        with torch.no_grad():
            said = self.test(made)
        if isinstance(said, Finding):
            return said._replace(check=self.title)
        if isinstance(said, str):
            return Finding(self.title, passed=not said, summary=said)
        if isinstance(said, bool):
            return Finding(self.title, passed=said, summary="" if said else "the test says no")
        raise OperandTypeError(
            f"what the test of check {self.title!r} gave back",
            type(said).__name__,
            "bool, str or Finding",
            "Return bool(...) of a tensor's verdict.",
        )
