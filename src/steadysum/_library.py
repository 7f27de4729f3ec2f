"""The torch.library namespace `steadysum`: every operator of the package is registered through `register`.

Not here: any operator. We define operators through torch.library.Library, since torch.library.custom_op imports
torch._dynamo at the first call (1.3 s) and costs 3 times the overhead per call (21 against 6.5 microseconds, measured).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd import forward_ad

from steadysum.errors import GradientError

__all__ = ["NAMESPACE", "below_autograd", "operator", "register"]

NAMESPACE: Final = "steadysum"
_LIBRARY: Final = torch.library.Library(NAMESPACE, "DEF")  # type: ignore[no-untyped-call]


def register(
    schema: str,
    implementation: Callable[..., Any],
    fake: Callable[..., Any],
    derivative: type[torch.autograd.Function] | None = None,
    differentiable: Sequence[str] = (),
) -> None:
    """Register one operator.

    Args:
        schema: name, parameters and results, in torch's notation.
        implementation: computes it, on any device; takes all parameters by position, those with defaults too.
        fake: its shape function, which takes them in the same way.
        derivative: runs in place of the operator where a result must be differentiable; its forward takes the
            operator's arguments, and calls it by `below_autograd`. None: the operator has no gradients.
        differentiable: names of the parameters that may require grad.
    """
    name = schema.split("(", 1)[0]
    _LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]
    signature = _Signature(name)
    opaque = signature.by_position(_opaque(implementation))
    _LIBRARY.impl(name, opaque, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    autograd = _autograd(name, signature, derivative, tuple(differentiable))
    _LIBRARY.impl(name, signature.by_position(autograd), "Autograd")  # type: ignore[no-untyped-call]
    qualified = f"{NAMESPACE}::{name}"
    torch.library.register_fake(qualified, signature.by_position(fake), lib=_LIBRARY)
    if schema.endswith("-> Tensor[]"):  # functorch has a loop of its own for all others
        torch.library.register_vmap(qualified, _one_by_one(name), lib=_LIBRARY)


def below_autograd(name: str, *arguments: Any) -> Any:
    """Call an operator from inside its derivative: its results don't require grad by themselves."""
    with ExitStack() as modes:
        if torch._C._functorch.peek_interpreter_stack() is not None:
            # autograd.Function has turned these off, but the other levels' differentiation is not its affair.
            modes.enter_context(torch.enable_grad())
            modes.enter_context(forward_ad._set_fwd_grad_enabled(True))
        modes.enter_context(torch._C._AutoDispatchBelowAutograd())
        return operator(name)(*arguments)


@functools.cache
def operator(name: str) -> Any:
    """The operator of this name."""
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def _autograd(
    name: str,
    signature: _Signature,
    derivative: type[torch.autograd.Function] | None,
    differentiable: tuple[str, ...],
) -> Callable[..., Any]:
    """What autograd runs in place of an operator: its derivative, or an error in modes that it has no derivative for.

    Without the error a direct call would return a tensor whose backward does nothing, and forward mode a tangent of 0.
    """

    called = operator(name)
    parameters = [
        (position, parameter.name)
        for position, parameter in enumerate(called._schema.arguments)
        if "Tensor" in str(parameter.type)
    ]
    is_list = "List" in str(called._schema.returns[0].type)

    def call(*arguments: Any) -> Any:
        wanted = False
        for position, parameter in parameters:
            argument = arguments[position]
            for tensor in argument if isinstance(argument, (list, tuple)) else (argument,):
                if tensor is None:
                    continue
                if tensor.requires_grad and torch.is_grad_enabled():
                    if parameter not in differentiable:
                        raise _refusal(name, parameter, "requires_grad in grad mode", differentiable)
                    wanted = True
                if forward_ad._current_level >= 0 and _has_tangent(tensor):
                    raise _refusal(name, parameter, "a tangent of forward-mode differentiation", differentiable)
        if wanted:
            assert derivative is not None
            results = _apply(derivative, arguments)
            return list(results) if is_list else results
        with torch._C._AutoDispatchBelowAutograd():
            return signature.call(called, arguments)

    return call


class _Signature:
    """An operator's parameters: from the call that the dispatcher passes on to all values by position, and back.

    The dispatcher leaves out what equals its default, and names keyword-only parameters.
    """

    def __init__(self, name: str) -> None:
        parameters = operator(name)._schema.arguments
        self.names = tuple(parameter.name for parameter in parameters)
        self.defaults = tuple(parameter.default_value for parameter in parameters)
        self.positional = sum(not parameter.kwarg_only for parameter in parameters)
        self.is_plain = not any(parameter.kwarg_only or parameter.has_default_value() for parameter in parameters)

    def by_position(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function as the dispatcher calls it: itself, where nothing is left out or named."""
        if self.is_plain:
            return function

        @functools.wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Any:
            rest = range(len(arguments), len(self.names))
            values = (keywords.get(self.names[position], self.defaults[position]) for position in rest)
            return function(*arguments, *values)

        return call

    def call(self, called: Any, values: tuple[Any, ...]) -> Any:
        """Call the operator."""
        if self.is_plain:
            return called(*values)
        keywords = zip(self.names[self.positional :], values[self.positional :], strict=True)
        return called(*values[: self.positional], **dict(keywords))


def _refusal(name: str, parameter: str, seen: str, differentiable: tuple[str, ...]) -> GradientError:
    allowed = f"gradients of {', '.join(differentiable)} alone" if differentiable else "operands without grad"
    return GradientError(
        f"gradients of {name}",
        seen=f"{parameter} with {seen}",
        allowed=f"{allowed}, in reverse mode" if differentiable else allowed,
        remedy="Use torch.no_grad(), or pass .detach()ed operands.",
    )


def _has_tangent(tensor: Tensor) -> bool:
    return forward_ad._is_fwd_grad_enabled() and torch._VF._unpack_dual(tensor, level=0)[1] is not None


def _apply(derivative: type[torch.autograd.Function], arguments: tuple[Any, ...]) -> Any:
    """derivative.apply; under torch.func.grad for its present level alone, as functorch calls torch's own operators.

    We are inside the dispatcher there, which sends what runs below autograd on to the next level by itself, so
    autograd.Function's own way through the levels, which starts from outside, must be left out.
    """
    functorch = torch._C._functorch
    if functorch.peek_interpreter_stack() is None:
        return derivative.apply(*arguments)  # type: ignore[no-untyped-call]
    before = functorch.get_single_level_autograd_function_allowed()
    functorch.set_single_level_autograd_function_allowed(True)
    try:
        return super(torch.autograd.Function, derivative).apply(*arguments)  # type: ignore[misc]
    finally:
        functorch.set_single_level_autograd_function_allowed(before)


def _one_by_one(name: str) -> Callable[..., Any]:
    """vmap of an operator that returns a list: one call per element, as functorch does it for other operators."""

    def pick(argument: Any, dimension: Any, element: int) -> Any:
        if isinstance(argument, (list, tuple)):
            return [pick(*each, element) for each in zip(argument, dimension, strict=True)]
        return argument if dimension is None else argument.select(dimension, element)

    def call(info: Any, dimensions: tuple[Any, ...], *arguments: Any) -> Any:
        results = [
            operator(name)(*(pick(*each, element) for each in zip(arguments, dimensions, strict=True)))
            for element in range(info.batch_size)
        ]
        stacked = [torch.stack(column) for column in zip(*results, strict=True)]
        return stacked, [0] * len(stacked)

    return call


def _opaque(function: Callable[..., Any]) -> Callable[..., Any]:
    """Keep torch.compile out of an implementation: a compiled `eager` kernel would have other bits than itself."""

    @functools.cache
    def disabled() -> Callable[..., Any]:
        wrapped: Callable[..., Any] = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
        return wrapped

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        if "torch._dynamo" in sys.modules:  # else nothing is being compiled, and importing it costs a second
            return disabled()(*arguments)
        return function(*arguments)

    return call
