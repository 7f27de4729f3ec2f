"""linear_logprobs: log-probabilities of target tokens, and the entropy of each row, without storing the logits.

Not here: losses, which reduce over rows and ignore some of them.
"""

from __future__ import annotations

from typing import Any, Final, Literal, overload

import torch
from torch import Tensor

from steadysum import _library
from steadysum.kernels.gradients import LogitGradient, Wanted
from steadysum.kernels.problem import Statistics
from steadysum.kernels.registry import select
from steadysum.ops import plain
from steadysum.ops.arguments import (
    SCHEMA,
    Arguments,
    accept,
    accept_target,
    check,
    check_target,
    column,
    empty_column,
    operands,
    rows,
    targets,
)
from steadysum.ops.derivative import (
    OPERANDS,
    fake_gradients,
    in_shape_of,
    nan_where_infinite_max,
    recomputing,
    second_order,
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
    verify: str = ...,
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
    verify: str = ...,
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
    verify: str = "off",
    return_entropy: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Log-probability of each row's target token under the softmax of the logits of a linear layer.

    Computed as (z_target - max) - log(sum_exp): the difference of log-sum-exp and z_target would lose everything
    where all logits share a large offset.

    Args:
        input, weight, bias, scale, softcap, temperature, valid_vocab, kernel, verify: as in linear_max_sum.
        target: int64 or int32, the leading shape of input; 0 to valid_vocab - 1.
        return_entropy: also return -sum(p log p) of each row, in nats.

    Returns:
        logprobs, or (logprobs, entropy), each [...], fp32 (fp64 for fp64 operands), logprobs <= 0. As in
        torch.log_softmax, a row that holds NaN or +inf, or nothing but -inf, is NaN.

    Raises:
        What linear_max_sum raises; TargetShapeError; TargetRangeError, an IndexError, with the first bad position.

    Gradients flow to input, weight and bias, as in linear_max_sum, from the entropy too.

    >>> logprobs, entropy = linear_logprobs(
    ...     torch.ones(1), torch.zeros(4, 1), torch.tensor(2), return_entropy=True)
    >>> logprobs, entropy  # one of four equal tokens: -log 4, log 4
    (tensor(-1.3863), tensor(1.3863))
    """
    accept_target(target)
    arguments = accept(input, weight, bias, scale, softcap, temperature, valid_vocab, kernel, verify)
    if return_entropy:
        return tuple(torch.ops.steadysum.linear_logprobs_and_entropy(*arguments, target)[:2])
    found: Tensor = torch.ops.steadysum.linear_logprobs(*arguments, target)[0]
    return found


def _linear_logprobs(*values: object) -> tuple[Tensor, Tensor, Tensor]:
    arguments, target = _checked(*values)
    call = operands(arguments, target=targets(arguments, target))
    kernel = select(call.problem(), arguments.kernel)
    (found,) = kernel.statistics([call])
    return (
        column(arguments, _nan_where_infinite(kernel.logprobs(found), found)),
        column(arguments, found.max),
        column(arguments, found.sum_exp),
    )


def _linear_logprobs_and_entropy(*values: object) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    arguments, target = _checked(*values)
    call = operands(arguments, target=targets(arguments, target), wants_weighted_sum=True)
    kernel = select(call.problem(), arguments.kernel)
    (found,) = kernel.statistics([call])
    return (
        column(arguments, _nan_where_infinite(kernel.logprobs(found), found)),
        column(arguments, _nan_where_infinite(kernel.entropy(found), found)),
        column(arguments, found.max),
        column(arguments, found.sum_exp),
    )


def _nan_where_infinite(values: Tensor, found: Statistics) -> Tensor:
    """A row with +inf has no softmax (torch: NaN); rows of -inf alone are NaN by themselves (-inf - -inf, 0 / 0)."""
    return values.masked_fill(found.max == torch.inf, torch.nan)


# ---- gradients ---------------------------------------------------------------------------------------------------


def _linear_logprobs_backward(*values: object) -> list[Tensor]:
    *forward, largest, sum_exp, of_logprobs, wanted = values
    return _backward(forward, (largest, sum_exp), None, (of_logprobs, None), wanted)


def _linear_logprobs_and_entropy_backward(*values: object) -> list[Tensor]:
    *forward, entropy, largest, sum_exp, of_logprobs, of_entropy, wanted = values
    return _backward(forward, (largest, sum_exp), entropy, (of_logprobs, of_entropy), wanted)


def _backward(forward: list[object], known: Any, entropy: Any, upstream: Any, wanted: Any) -> list[Tensor]:
    *common, target = forward
    arguments = Arguments(*common)  # type: ignore[arg-type]
    assert isinstance(target, Tensor)
    call = operands(arguments, target=targets(arguments, target))
    kernel = select(call.problem(wants_gradients=True), arguments.kernel)
    per_logprob, per_entropy = (None if each is None else rows(each) for each in upstream)
    entropies = None if entropy is None else rows(entropy)

    def pull_back(found: Statistics, start: int, stop: int) -> LogitGradient:
        # d logprob_i / d z_ij = [j = t_i] - p_ij; d entropy_i / d z_ij = -p_ij (log p_ij + entropy_i), where
        # log p_ij = d_ij - log s_i.
        target = slope = None
        total = torch.zeros_like(found.max)
        if per_logprob is not None:
            target = per_logprob[start:stop]
            total = total - target
        if per_entropy is not None and entropies is not None:
            slope = -per_entropy[start:stop]
            total = total + slope * (entropies[start:stop] - kernel.log(found.sum_exp))
            slope = slope / found.sum_exp
        return LogitGradient(exp=nan_where_infinite_max(total / found.sum_exp, found), slope=slope, target=target)

    which = Wanted(*wanted)
    found = kernel.gradients(call, pull_back, which, Statistics(*(rows(each) for each in known)))
    return in_shape_of(arguments, found, which)


def _plain(*values: object) -> tuple[Tensor]:
    arguments, target = _checked(*values)
    return (plain.logprobs(plain.logits(arguments), target),)


def _plain_and_entropy(*values: object) -> tuple[Tensor, Tensor]:
    arguments, target = _checked(*values)
    z = plain.logits(arguments)
    return plain.logprobs(z, target), plain.entropy(z)


# ---- registration ------------------------------------------------------------------------------------------------


def _fake(*values: object) -> tuple[Tensor, Tensor, Tensor]:
    arguments, _ = _checked(*values)
    return empty_column(arguments), empty_column(arguments), empty_column(arguments)


def _fake_and_entropy(*values: object) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (*_fake(*values), empty_column(_checked(*values)[0]))


def _checked(*values: object) -> tuple[Arguments, Tensor]:
    *common, target = values
    arguments = Arguments(*common)  # type: ignore[arg-type]  # the dispatcher has checked them against the schema
    check(arguments)
    assert isinstance(target, Tensor)
    check_target(arguments, target)
    return arguments, target


_PARAMETERS: Final = len(Arguments._fields) + 1

_library.register(
    f"linear_logprobs({SCHEMA}, Tensor target) -> (Tensor logprobs, Tensor max, Tensor sum_exp)",
    _linear_logprobs,
    _fake,
    recomputing("linear_logprobs", "linear_logprobs_backward", returned=3, differentiable=1, known=slice(1, 3)),
    OPERANDS,
)
_library.register(
    f"linear_logprobs_backward({SCHEMA}, Tensor target, Tensor max, Tensor sum_exp, Tensor? of_logprobs, "
    "bool[] wanted) -> Tensor[]",
    _linear_logprobs_backward,
    fake_gradients,
    second_order("linear_logprobs_backward", _plain, arguments=_PARAMETERS, known=2, upstream=1),
    (*OPERANDS, "of_logprobs"),
)
_library.register(
    f"linear_logprobs_and_entropy({SCHEMA}, Tensor target) -> "
    "(Tensor logprobs, Tensor entropy, Tensor max, Tensor sum_exp)",
    _linear_logprobs_and_entropy,
    _fake_and_entropy,
    recomputing(
        "linear_logprobs_and_entropy",
        "linear_logprobs_and_entropy_backward",
        returned=4,
        differentiable=2,
        known=slice(1, 4),
    ),
    OPERANDS,
)
_library.register(
    f"linear_logprobs_and_entropy_backward({SCHEMA}, Tensor target, Tensor entropy, Tensor max, Tensor sum_exp, "
    "Tensor? of_logprobs, Tensor? of_entropy, bool[] wanted) -> Tensor[]",
    _linear_logprobs_and_entropy_backward,
    fake_gradients,
    second_order(
        "linear_logprobs_and_entropy_backward", _plain_and_entropy, arguments=_PARAMETERS, known=3, upstream=2
    ),
    (*OPERANDS, "entropy", "of_logprobs", "of_entropy"),
)
