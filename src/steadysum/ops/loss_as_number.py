"""The operators of the loss as one number: the gradients are formed in the forward pass and kept until backward.

Not here: the mathematics (token_loss.py), or the loss of each row (loss_per_row.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import torch
from torch import Tensor

from steadysum import _library
from steadysum.kernels.gradients import Gradients, LogitGradient, Wanted
from steadysum.kernels.problem import Statistics
from steadysum.kernels.registry import Kernel, select
from steadysum.ops.arguments import Arguments, empty_column
from steadysum.ops.derivative import (
    OPERANDS,
    by_plain_operations,
    fake_gradients,
    keep_kernel,
    restore,
    save,
    second_order,
    spread,
)
from steadysum.ops.loss_arguments import LOSS_SCHEMA, LossArguments, loss_dtype, token_loss, unpack
from steadysum.ops.loss_per_row import PARAMETERS, every_row, fake_correct, plain_losses, statistics_of
from steadysum.ops.reduction import total
from steadysum.ops.token_loss import Losses, TokenLoss

__all__: list[str] = []  # the operators are called by their registered names

_STATISTICS: Final = ("max", "sum_exp", "token_loss", "correct")  # results that follow the loss, if they are asked for


def _linear_cross_entropy(*values: object) -> list[Tensor]:
    arguments, loss = unpack(values)
    rule = token_loss(arguments, loss)
    kernel = select(rule.call.problem(), arguments.kernel)
    collected = _Collected(arguments, loss, rule)
    collected.add(kernel, statistics_of(kernel, rule), 0, rule.call.size)
    return collected.results()


def _linear_cross_entropy_and_gradients(*values: object) -> list[Tensor]:
    *forward, wanted = values
    arguments, loss = unpack(forward)
    rule = token_loss(arguments, loss)
    kernel = select(rule.call.problem(wants_gradients=True), arguments.kernel)
    collected = _Collected(arguments, loss, rule)
    divisor, divisor_of_z = collected.divisors()

    def pull_back(found: Statistics, start: int, stop: int) -> LogitGradient:
        collected.add(kernel, found, start, stop)
        upstream, upstream_of_z = _share(divisor, found), _share(divisor_of_z, found)
        return rule.logit_gradient(kernel, found, start, stop, upstream, upstream_of_z)

    which = Wanted(*wanted)  # type: ignore[misc]
    gradients = kernel.gradients(rule.call, pull_back, which)
    return [*collected.results(), *_in_shape(forward, gradients)]


def _in_shape(forward: list[object], gradients: Gradients) -> list[Tensor]:
    """In the operands' shapes, but as wide as they were accumulated: they may yet be multiplied."""
    operands = forward[: len(OPERANDS)]
    pairs = zip(gradients, operands, strict=True)
    return [each.reshape(operand.shape) for each, operand in pairs if each is not None and isinstance(operand, Tensor)]


def _share(divisor: Tensor | float, found: Statistics) -> Tensor:
    """Of each row, the gradient of the scalar with respect to its loss. Divided in fp64, rounded once."""
    if isinstance(divisor, float):
        return torch.full_like(found.max, 1 / divisor)  # not 0: this row takes part
    return (1 / divisor).to(found.max.dtype).expand_as(found.max)


class _Collected:
    """The losses and statistics of the chunks of rows seen so far, and what is made of them in the end."""

    def __init__(self, arguments: Arguments, loss: LossArguments, rule: TokenLoss) -> None:
        self.arguments, self.loss, self.rule = arguments, loss, rule
        self.losses: list[Losses] = []
        self.statistics: list[Statistics] = []

    def add(self, kernel: Kernel, found: Statistics, start: int, stop: int) -> None:
        if start == 0:  # of a kernel that begins again, since something was wrong
            self.losses.clear()
            self.statistics.clear()
        self.losses.append(self.rule.losses(kernel, found, start, stop))
        if self.loss.return_stats:
            self.statistics.append(found)

    def divisors(self) -> tuple[Tensor | float, Tensor | float]:  # fp64
        """By what the sums of the cross-entropies and of the z-losses are divided."""
        if self.loss.reduction == "sum":
            return 1.0, 1.0
        count, weight = float(self.rule.call.size), self.rule.target_weight
        return (count if weight is None else total(weight)), count

    def results(self) -> list[Tensor]:
        """The loss; and max, sum_exp, losses of all rows, number of correct rows, if the statistics are asked for."""
        divisor, divisor_of_z = self.divisors()
        value = total(self._joined(each.cross_entropy for each in self.losses)) / divisor
        if self.rule.z_loss:
            value = value + total(self._joined(each.of_z for each in self.losses)) / divisor_of_z
        value = value.to(loss_dtype(self.arguments))
        if not self.loss.return_stats:
            return [value]

        def all_rows(values: Iterable[Tensor], ignored: float) -> Tensor:
            return every_row(self.arguments, self.rule, self._joined(values), ignored)

        hits = self._joined(self.rule.correct(each) for each in self.statistics)
        return [
            value,
            all_rows((each.max for each in self.statistics), -torch.inf),
            all_rows((each.sum_exp for each in self.statistics), 0.0),
            all_rows((each.sum for each in self.losses), 0.0),
            hits.sum(dtype=torch.int64),
        ]

    def _joined(self, chunks: Iterable[Tensor | None]) -> Tensor:
        present = [chunk for chunk in chunks if chunk is not None]
        if len(present) == 1:
            return present[0]
        return torch.cat(present) if present else self.rule.call.input.new_empty((0,), dtype=self.rule.call.dtype)


class _GradientsInForward(torch.autograd.Function):
    """The derivative of linear_cross_entropy: gradients for an upstream gradient of 1, kept until backward."""

    @staticmethod
    def forward(ctx: Any, *values: Any) -> Any:
        wanted = list(ctx.needs_input_grad[: len(OPERANDS)])
        found = _library.below_autograd("linear_cross_entropy_and_gradients", *values, wanted)
        count = len(found) - sum(wanted)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*found[1:count])
        save(ctx, (*keep_kernel(values), *found[count:]))
        # A hook may keep what it is given beyond backward, so that this may not be overwritten then.
        ctx.may_overwrite = torch._C._autograd._top_saved_tensors_default_hooks(True) is None
        return tuple(found[:count])

    @staticmethod
    def backward(ctx: Any, upstream: Tensor | None, *_: Any) -> Any:
        values = restore(ctx)
        count = len(ctx.needs_input_grad)
        wanted = list(ctx.needs_input_grad[: len(OPERANDS)])
        forward, gradients = values[:count], values[count:]
        if upstream is None:
            return (None,) * count
        if torch.is_grad_enabled():  # create_graph=True, torch.func.grad
            return spread(
                _library.operator("linear_cross_entropy_backward")(*forward, gradients, upstream, wanted), wanted, count
            )
        dtypes = [operand.dtype for operand, is_wanted in zip(forward, wanted, strict=False) if is_wanted]
        if _is_last_use(upstream):
            if not (upstream.device.type == "cpu" and upstream.item() == 1):
                if ctx.may_overwrite:
                    gradients = [gradient.mul_(upstream) for gradient in gradients]
                else:
                    gradients = [gradient * upstream for gradient in gradients]
        else:
            gradients = [gradient * upstream for gradient in gradients]
        return spread([each.to(dtype) for each, dtype in zip(gradients, dtypes, strict=True)], wanted, count)


def _is_last_use(upstream: Tensor) -> bool:
    """Whether the saved gradients are freed after this backward pass, so that they can be handed over as they are.

    Never while torch.compile traces, or for a tensor subclass: whether its value is 1 isn't known.
    """
    return type(upstream) is Tensor and not torch._C._autograd._get_current_graph_task_keep_graph()


def _linear_cross_entropy_backward(*values: object) -> list[Tensor]:
    *forward, gradients, upstream, wanted = values
    dtypes = [each.dtype for each, is_wanted in zip(forward, wanted, strict=False) if is_wanted]  # type: ignore[call-overload]
    return [(each * upstream).to(dtype) for each, dtype in zip(gradients, dtypes, strict=True)]  # type: ignore[call-overload]


def _plain_scalar(*values: object) -> tuple[Tensor]:
    arguments, loss, rule, losses = plain_losses(*values)
    divisor, divisor_of_z = _Collected(arguments, loss, rule).divisors()
    value = losses.cross_entropy.double().sum() / divisor
    if losses.of_z is not None:
        value = value + losses.of_z.double().sum() / divisor_of_z
    return (value.to(loss_dtype(arguments)),)


def _fake_scalar(*values: object) -> list[Tensor]:
    arguments, loss = unpack(values)
    results = [arguments.input.new_empty((), dtype=loss_dtype(arguments))]
    if loss.return_stats:
        results += [empty_column(arguments) for _ in _STATISTICS[:-1]]
        results.append(fake_correct(arguments))
    return results


def _fake_scalar_and_gradients(*values: object) -> list[Tensor]:
    *forward, _ = values
    arguments, _ = unpack(forward)
    wide = loss_dtype(arguments)
    return [*_fake_scalar(*forward), *(each.to(wide) for each in fake_gradients(*values))]


_library.register(
    f"linear_cross_entropy({LOSS_SCHEMA}) -> Tensor[]",
    _linear_cross_entropy,
    _fake_scalar,
    _GradientsInForward,
    OPERANDS,
)
_library.register(
    f"linear_cross_entropy_and_gradients({LOSS_SCHEMA}, bool[] wanted) -> Tensor[]",
    _linear_cross_entropy_and_gradients,
    _fake_scalar_and_gradients,
    # For torch.func.grad inside torch.func.grad: the outer one differentiates what the inner one runs.
    by_plain_operations(
        "linear_cross_entropy_and_gradients", lambda values: _plain_scalar(*values[:PARAMETERS]), differentiable=1
    ),
    OPERANDS,
)
_library.register(
    f"linear_cross_entropy_backward({LOSS_SCHEMA}, Tensor[] gradients, Tensor upstream, bool[] wanted) -> Tensor[]",
    _linear_cross_entropy_backward,
    fake_gradients,
    second_order("linear_cross_entropy_backward", _plain_scalar, arguments=PARAMETERS, known=1, upstream=1),
    (*OPERANDS, "upstream"),
)
