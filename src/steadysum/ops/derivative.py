"""What autograd runs for an operator: what is saved, how the backward operator is called, gradients of gradients.

Every backward pass is an operator of its own, so that its bits don't change under torch.compile. Its arguments are
those of the operator, then what the forward pass knows, then the gradients of the operator's results, then which
gradients are wanted, [input, weight, bias]; it returns those.
Not here: the mathematics, which each operator's file has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from steadysum._library import below_autograd, operator
from steadysum.errors import GradientError
from steadysum.kernels import eager, reference
from steadysum.kernels.gradients import Gradients, Wanted
from steadysum.kernels.problem import Problem, Statistics
from steadysum.kernels.registry import select
from steadysum.kernels.verification import choice, split
from steadysum.ops.arguments import Arguments

__all__ = [
    "OPERANDS",
    "Plain",
    "by_plain_operations",
    "fake_gradients",
    "in_shape_of",
    "keep_kernel",
    "nan_where_infinite_max",
    "recomputing",
    "restore",
    "save",
    "second_order",
    "spread",
]

OPERANDS: Final = ("input", "weight", "bias")  # the first parameters of every operator: those that may require grad
KERNEL: Final = Arguments._fields.index("kernel")

# From an operator's arguments to its differentiable results, by torch's differentiable operations alone.
Plain = Callable[..., Sequence[Tensor]]


def recomputing(
    run: str,  # the operator that the forward pass runs: the one differentiated, or one that returns more
    backward: str,  # the backward operator
    *,
    returned: int,  # of the results of `run`, how many the differentiated operator has
    differentiable: int,  # how many of those have gradients
    known: slice = slice(0),  # those results of `run` that backward takes
) -> type[torch.autograd.Function]:
    """The derivative of an operator whose backward pass computes the logits once more."""

    class Recomputing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Any:
            found = below_autograd(run, *arguments)
            results = (found,) if isinstance(found, Tensor) else tuple(found)
            save(ctx, (*keep_kernel(arguments), *results[known]))
            ctx.set_materialize_grads(False)
            ctx.mark_non_differentiable(*results[differentiable:returned])
            return found if isinstance(found, Tensor) else results[:returned]

        @staticmethod
        def backward(ctx: Any, *upstream: Tensor | None) -> Any:
            wanted = list(ctx.needs_input_grad[: len(OPERANDS)])
            missing = len(ctx.needs_input_grad)
            saved = restore(ctx)  # always asked for, since a graph that was freed says so here
            if all(gradient is None for gradient in upstream[:differentiable]):
                return (None,) * missing
            gradients = operator(backward)(*saved, *upstream[:differentiable], wanted)
            return spread(gradients, wanted, missing)

    return Recomputing


def second_order(
    backward: str,  # the backward operator, whose derivative this is
    plain: Plain,
    *,
    arguments: int,  # how many the forward operator has
    known: int,  # how many arguments follow
    upstream: int,  # how many gradients of results follow
) -> type[torch.autograd.Function]:
    """The derivative of a backward operator, for create_graph=True: formed only if it is asked for, by `plain`."""
    first = arguments + known

    def results(values: list[Any]) -> tuple[Tensor, ...]:
        # The wanted gradients of the operands.
        positions = [position for position in range(len(OPERANDS)) if values[-1][position]]
        return _pulled_back(
            lambda inner: plain(*inner[:arguments]), values, positions, values[first : first + upstream]
        )

    return by_plain_operations(backward, results, range(first, first + upstream))


def by_plain_operations(
    run: str,
    results: Callable[[list[Any]], Sequence[Tensor]],
    sources: Sequence[int] = (),
    differentiable: int | None = None,
) -> type[torch.autograd.Function]:
    """The derivative of an operator whose last argument is which gradients of the operands are wanted.

    Args:
        run: the operator.
        results: from its arguments to its results, by torch's differentiable operations; called only when the
            derivative is formed.
        sources: positions of the arguments, beside the operands, that have gradients.
        differentiable: how many of its results, the first, have gradients; None: all.
    """

    class ByPlainOperations(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *values: Any) -> Any:
            save(ctx, values)
            ctx.set_materialize_grads(False)
            found = tuple(below_autograd(run, *values))
            if differentiable is not None:
                ctx.mark_non_differentiable(*found[differentiable:])
            return found

        @staticmethod
        def backward(ctx: Any, *upstream: Tensor | None) -> Any:
            values = restore(ctx)
            _refuse_fixed_bits(values)
            positions = [*range(len(OPERANDS)), *sources]
            needed = [position for position in positions if ctx.needs_input_grad[position]]
            if all(gradient is None for gradient in upstream[:differentiable]):
                return (None,) * len(values)
            gradients = _pulled_back(results, values, needed, upstream[:differentiable])
            by_position = dict(zip(needed, gradients, strict=True))
            return tuple(by_position.get(position) for position in range(len(values)))

    return ByPlainOperations


def _pulled_back(
    results: Callable[[list[Any]], Sequence[Tensor]],
    values: list[Any],
    positions: Sequence[int],
    upstream: Sequence[Tensor | None],  # of the results
) -> tuple[Tensor, ...]:
    """The gradients of the values at these positions, differentiable in their turn, at every level of functorch."""
    present = [index for index, gradient in enumerate(upstream) if gradient is not None]
    there = [gradient for gradient in upstream if gradient is not None]

    def present_results(*operands: Tensor) -> tuple[Tensor, ...]:
        inner = list(values)
        for position, operand in zip(positions, operands, strict=True):
            inner[position] = operand
        found = results(inner)
        return tuple(found[index] for index in present)

    outcome, pull_back = torch.func.vjp(  # type: ignore[misc]  # mypy counts the third value of has_aux=True
        present_results, *(values[position] for position in positions)
    )
    gradients = (gradient.to(result.dtype) for gradient, result in zip(there, outcome, strict=True))
    pulled: tuple[Tensor, ...] = pull_back(tuple(gradients))
    return pulled


def _refuse_fixed_bits(values: Sequence[Any]) -> None:
    name = select(Problem.of(values[0], values[1]), values[KERNEL]).name
    if name not in (eager.name, reference.name):
        raise GradientError(
            "gradients of gradients",
            seen=f"kernel {name!r}",
            allowed="kernel='eager' or 'reference'",
            remedy="Name one of them in the call: they form second derivatives with all logits stored.",
        )


# ---- saving ------------------------------------------------------------------------------------------------------


def save(ctx: Any, values: Sequence[Any]) -> None:
    """Save all values for backward: tensors as autograd saves them, others as they are; lists of tensors not at all."""
    positions = [position for position, value in enumerate(values) if isinstance(value, Tensor)]
    ctx.save_for_backward(*(values[position] for position in positions))
    ctx.positions = positions
    ctx.others = [None if _holds_tensors(value) else value for value in values]


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, Tensor) or (isinstance(value, (list, tuple)) and any(map(_holds_tensors, value)))


def restore(ctx: Any) -> list[Any]:
    """What save saved."""
    values = list(ctx.others)
    for position, tensor in zip(ctx.positions, ctx.saved_tensors, strict=True):
        values[position] = tensor
    return values


def keep_kernel(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments with the name of the kernel that runs now: backward may run in another thread or context.

    How its results are verified stays as it is.

    Not while torch.compile traces: there the kernel is chosen when the compiled code runs.
    """
    input, weight = arguments[:2]
    if type(input) not in (Tensor, torch.nn.Parameter) or weight.dim() != 2 or input.dim() == 0:
        return arguments
    problem = Problem.of(input, weight)
    name = select(replace(problem, wants=problem.wants | {"gradients"}), arguments[KERNEL]).name
    return (*arguments[:KERNEL], choice(name, split(arguments[KERNEL])[1]), *arguments[KERNEL + 1 :])


def nan_where_infinite_max(values: Tensor, found: Statistics) -> Tensor:
    """Values of rows, NaN where the max is infinite: such a row has no softmax, and in torch NaN gradients."""
    return values.masked_fill(found.max.isinf(), torch.nan)


# ---- gradients as operators return them --------------------------------------------------------------------------


def in_shape_of(operands: Arguments, gradients: Gradients, wanted: Wanted) -> list[Tensor]:
    """The wanted gradients, each in the shape and the dtype of its operand."""
    pairs = zip(gradients, operands[: len(OPERANDS)], wanted, strict=True)
    return [
        gradient.reshape(operand.shape).to(operand.dtype)
        for gradient, operand, is_wanted in pairs
        if is_wanted and gradient is not None and isinstance(operand, Tensor)
    ]


def fake_gradients(*values: Any) -> list[Tensor]:
    """The shape function of every backward operator: its first arguments are the operands, its last is `wanted`."""
    pairs = zip(values[: len(OPERANDS)], values[-1], strict=True)
    return [torch.empty_like(operand, memory_format=torch.contiguous_format) for operand, wanted in pairs if wanted]


def spread(gradients: Sequence[Tensor], wanted: Sequence[bool], count: int) -> tuple[Tensor | None, ...]:
    """The gradients of the operands at their positions, None for all other arguments."""
    present = iter(gradients)
    return (*(next(present) if is_wanted else None for is_wanted in wanted), *(None,) * (count - len(wanted)))
