"""The operators of the loss of each row: linear_token_loss and its backward pass, which computes the logits once more.

Not here: the mathematics (token_loss.py), or the reduction to a scalar (loss_as_number.py).
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from steadysum import _library
from steadysum.errors import GradientError
from steadysum.kernels.chunks import row_chunks
from steadysum.kernels.gradients import LogitGradient, Wanted
from steadysum.kernels.problem import Statistics
from steadysum.kernels.registry import Kernel, select
from steadysum.ops import plain
from steadysum.ops.arguments import Arguments, column, empty_column, leading_shape, rows
from steadysum.ops.derivative import OPERANDS, fake_gradients, in_shape_of, recomputing, second_order
from steadysum.ops.loss_arguments import LOSS_SCHEMA, LossArguments, token_loss, unpack
from steadysum.ops.token_loss import Losses, TokenLoss

__all__ = ["PARAMETERS", "every_row", "fake_correct", "plain_losses", "statistics_of"]

PARAMETERS: Final = len(Arguments._fields) + len(LossArguments._fields)  # of LOSS_SCHEMA


def _linear_token_loss(*values: object) -> list[Tensor]:
    arguments, loss = unpack(values)
    rule = token_loss(arguments, loss)
    kernel = select(rule.call.problem(), arguments.kernel)
    found = statistics_of(kernel, rule)
    tokens = rule.losses(kernel, found, 0, rule.call.size).sum
    results = [
        every_row(arguments, rule, tokens, 0.0),
        every_row(arguments, rule, found.max, -torch.inf),
        every_row(arguments, rule, found.sum_exp, 0.0),
    ]
    return [*results, rule.correct(found).sum()] if loss.return_stats else results


def _linear_token_loss_backward(*values: object) -> list[Tensor]:
    *forward, largest, sum_exp, upstream, wanted = values
    arguments, loss = unpack(forward)
    rule = token_loss(arguments, loss)
    kernel = select(rule.call.problem(wants_gradients=True), arguments.kernel)
    known, per_row = Statistics(_rows(rule, largest), _rows(rule, sum_exp)), _rows(rule, upstream)
    if rule.call.dense is not None:
        known = None  # type: ignore[assignment]  # its sums over the vocabulary, too, are found once more

    def pull_back(found: Statistics, start: int, stop: int) -> LogitGradient:
        each = per_row[start:stop].to(found.max.dtype)
        return rule.logit_gradient(kernel, found, start, stop, each, each)

    which = Wanted(*wanted)  # type: ignore[misc]
    found = kernel.gradients(rule.call, pull_back, which, known)
    return in_shape_of(Arguments(*forward[: len(Arguments._fields)]), found, which)  # type: ignore[arg-type]


def statistics_of(kernel: Kernel, rule: TokenLoss) -> Statistics:
    """What the losses are made of; logits are stored, a chunk of rows at a time, only where its sums need them."""
    call = rule.call
    if call.dense is not None or call.wants_column_sum:
        return kernel.chunk_statistics(call)
    if call.kept is None or call.size == 0:
        return kernel.statistics([call.rows(0, 0) if call.kept is not None else call])[0]
    # Rows that take part are gathered, so some at a time.
    parts = [kernel.statistics([call.rows(*chunk)])[0] for chunk in row_chunks(call, stored=False)]
    columns = [None if each[0] is None else torch.cat(each) for each in zip(*parts, strict=True)]
    return Statistics(*columns)  # type: ignore[arg-type]  # max and sum_exp are always there


def every_row(arguments: Arguments, rule: TokenLoss, values: Tensor, ignored: float) -> Tensor:
    """Values of the rows that take part [n], at their places among all [...]."""
    if rule.call.kept is not None:
        everywhere = values.new_full((rule.call.input.shape[0],), ignored)
        values = everywhere.index_copy_(0, rule.call.kept, values)
    return column(arguments, values)


def _rows(rule: TokenLoss, values: Any) -> Tensor:
    """Those of the rows that take part."""
    flat = rows(values)
    return flat if rule.call.kept is None else flat[rule.call.kept]


def plain_losses(*values: object) -> tuple[Arguments, LossArguments, TokenLoss, Losses]:
    """The losses of the rows that take part by differentiable operations, with all logits stored."""
    arguments, loss = unpack(values)
    if loss.gradient_filter:
        raise GradientError(
            "gradients of gradients",
            seen=f"gradient_filter={loss.gradient_filter}",
            allowed="None",
            remedy="Filtered gradients are approximate, and have no derivative.",
        )
    rule = token_loss(arguments, loss)
    flat = arguments._replace(input=arguments.input.reshape(-1, arguments.input.shape[-1]))
    if rule.call.kept is not None:
        flat = flat._replace(input=flat.input[rule.call.kept])
    target = rule.call.target if rule.call.dense is None else rule.call.dense[:, : rule.classes]
    assert target is not None
    weight = None if loss.class_weight is None else loss.class_weight[: rule.classes]
    losses = plain.token_losses(plain.logits(flat), target, weight, loss.label_smoothing, loss.z_loss)
    return arguments, loss, rule, Losses(*losses)


def _plain_tokens(*values: object) -> tuple[Tensor]:
    arguments, _, rule, losses = plain_losses(*values)
    tokens = losses.sum
    if rule.call.kept is not None:
        tokens = tokens.new_zeros(rule.call.input.shape[0]).index_copy(0, rule.call.kept, tokens)
    return (tokens.reshape(leading_shape(arguments)),)


def _fake_tokens(*values: object) -> list[Tensor]:
    arguments, loss = unpack(values)
    results = [empty_column(arguments) for _ in ("token_loss", "max", "sum_exp")]
    return [*results, fake_correct(arguments)] if loss.return_stats else results


def fake_correct(arguments: Arguments) -> Tensor:
    """The shape of the number of correct rows."""
    return arguments.input.new_empty((), dtype=torch.int64)


_library.register(
    f"linear_token_loss({LOSS_SCHEMA}) -> Tensor[]",
    _linear_token_loss,
    _fake_tokens,
    recomputing("linear_token_loss", "linear_token_loss_backward", returned=4, differentiable=1, known=slice(1, 3)),
    OPERANDS,
)
_library.register(
    f"linear_token_loss_backward({LOSS_SCHEMA}, Tensor max, Tensor sum_exp, Tensor upstream, bool[] wanted) "
    "-> Tensor[]",
    _linear_token_loss_backward,
    fake_gradients,
    second_order("linear_token_loss_backward", _plain_tokens, arguments=PARAMETERS, known=2, upstream=1),
    (*OPERANDS, "upstream"),
)
