"""What follows from finished statistics, in torch operations: shared by the kernels that promise no bits for it.

Not here: the published bits of the same values (native.py).
"""

from __future__ import annotations

from torch import Tensor

from steadysum.kernels.problem import Statistics

__all__ = ["entropy", "log", "logprobs"]


def logprobs(found: Statistics) -> Tensor:
    """Log-probability of each row's target."""
    assert found.target_logit is not None
    return (found.target_logit - found.max) - found.sum_exp.log()


def entropy(found: Statistics) -> Tensor:
    """Entropy of each row in nats."""
    assert found.weighted_sum is not None
    return found.sum_exp.log() - found.weighted_sum / found.sum_exp


def log(sum_exp: Tensor) -> Tensor:
    """Elementwise natural logarithm."""
    return sum_exp.log()
