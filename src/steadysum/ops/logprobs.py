"""linear_logprobs: log-probabilities of target tokens, and the entropy of each row, without storing the logits.

Not here: losses, which reduce over rows and ignore some of them.
"""

from __future__ import annotations

from typing import Literal, overload

import torch
from torch import Tensor

from steadysum import _library
from steadysum.kernels.problem import Operands, Statistics
from steadysum.kernels.registry import select
from steadysum.ops.arguments import (
    SCHEMA,
    Arguments,
    accept,
    accept_target,
    check,
    check_target,
    empty_column,
    leading_shape,
    operands,
)

__all__ = ["linear_logprobs"]


@overload
def linear_logprobs(
    input: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    bias: Tensor | None = ...,
    scale: float = ...,
    softcap: float | None = ...,
    temperature: float | Tensor | None = ...,
    valid_vocab: int | None = ...,
    kernel: str = ...,
    return_entropy: Literal[False] = ...,
) -> Tensor: ...


@overload
def linear_logprobs(
    input: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    bias: Tensor | None = ...,
    scale: float = ...,
    softcap: float | None = ...,
    temperature: float | Tensor | None = ...,
    valid_vocab: int | None = ...,
    kernel: str = ...,
    return_entropy: Literal[True],
) -> tuple[Tensor, Tensor]: ...


def linear_logprobs(
    input: Tensor,  # [..., H]
    weight: Tensor,  # [V, H]
    target: Tensor,  # [...]
    *,
    bias: Tensor | None = None,  # [V]
    scale: float = 1.0,
    softcap: float | None = None,
    temperature: float | Tensor | None = None,
    valid_vocab: int | None = None,
    kernel: str = "auto",
    return_entropy: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Log-probability of each row's target token under the softmax of the logits of a linear layer.

    Computed as (z_target - max) - log(sum_exp): the difference of log-sum-exp and z_target would lose everything
    where all logits share a large offset.

    Args:
        input, weight, bias, scale, softcap, temperature, valid_vocab, kernel: as in linear_max_sum.
        target: int64 or int32, the leading shape of input; 0 to valid_vocab - 1.
        return_entropy: also return -sum(p log p) of each row, in nats.

    Returns:
        logprobs, or (logprobs, entropy), each [...], fp32 (fp64 for fp64 operands), logprobs <= 0. As in
        torch.log_softmax, a row that holds NaN or +inf, or nothing but -inf, is NaN.

    Raises:
        What linear_max_sum raises; TargetShapeError; TargetRangeError, an IndexError, with the first bad position.

    >>> logprobs, entropy = linear_logprobs(
    ...     torch.ones(1), torch.zeros(4, 1), torch.tensor(2), return_entropy=True)
    >>> logprobs, entropy  # one of four equal tokens: -log 4, log 4
    (tensor(-1.3863), tensor(1.3863))
    """
    accept_target(target)
    arguments = accept(input, weight, bias, scale, softcap, temperature, valid_vocab, kernel)
    found: Tensor | tuple[Tensor, Tensor]
    if return_entropy:
        found = torch.ops.steadysum.linear_logprobs_and_entropy(*arguments, target)
    else:
        found = torch.ops.steadysum.linear_logprobs(*arguments, target)
    return found


def _linear_logprobs(*values: object) -> Tensor:
    arguments, target = _checked(*values)
    call = operands(arguments, target)
    kernel = select(call.problem(), arguments.kernel)
    (found,) = kernel.statistics([call])
    return _nan_where_infinite(kernel.logprobs(found), found, call).reshape(leading_shape(arguments))


def _linear_logprobs_and_entropy(*values: object) -> tuple[Tensor, Tensor]:
    arguments, target = _checked(*values)
    call = operands(arguments, target, wants_weighted_sum=True)
    kernel = select(call.problem(), arguments.kernel)
    (found,) = kernel.statistics([call])
    shape = leading_shape(arguments)
    return (
        _nan_where_infinite(kernel.logprobs(found), found, call).reshape(shape),
        _nan_where_infinite(kernel.entropy(found), found, call).reshape(shape),
    )


def _nan_where_infinite(values: Tensor, found: Statistics, call: Operands) -> Tensor:
    """A row with +inf has no softmax (torch: NaN); rows of -inf alone are NaN by themselves (-inf - -inf, 0 / 0)."""
    return values.masked_fill(found.max == torch.inf, torch.nan).to(call.dtype)


def _fake(*values: object) -> Tensor:
    arguments, _ = _checked(*values)
    return empty_column(arguments)


def _fake_and_entropy(*values: object) -> tuple[Tensor, Tensor]:
    arguments, _ = _checked(*values)
    return empty_column(arguments), empty_column(arguments)


def _checked(*values: object) -> tuple[Arguments, Tensor]:
    *common, target = values
    arguments = Arguments(*common)  # type: ignore[arg-type]  # the dispatcher has checked them against the schema
    check(arguments)
    assert isinstance(target, Tensor)
    check_target(arguments, target)
    return arguments, target


_library.register(f"linear_logprobs({SCHEMA}, Tensor target) -> Tensor", _linear_logprobs, _fake)
_library.register(
    f"linear_logprobs_and_entropy({SCHEMA}, Tensor target) -> (Tensor logprobs, Tensor entropy)",
    _linear_logprobs_and_entropy,
    _fake_and_entropy,
)
