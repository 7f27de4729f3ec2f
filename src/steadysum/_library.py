"""The torch.library namespace `steadysum`: every operator of the package is registered through `register`.

Not here: any operator. We define operators through torch.library.Library, since torch.library.custom_op imports
torch._dynamo at the first call (1.3 s) and costs 3 times the overhead per call (21 against 6.5 microseconds, measured).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd import forward_ad

from steadysum.errors import GradientError

__all__ = ["NAMESPACE", "register"]

NAMESPACE: Final = "steadysum"
_LIBRARY: Final = torch.library.Library(NAMESPACE, "DEF")  # type: ignore[no-untyped-call]


def register(schema: str, implementation: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """Register one operator: its schema, the function that computes it on any device, and its shape function."""
    name = schema.split("(", 1)[0]
    _LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]
    _LIBRARY.impl(name, _opaque(implementation), "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    _LIBRARY.impl(name, _refusing_gradients(name), "Autograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_LIBRARY)


def _refusing_gradients(name: str) -> Callable[..., Any]:
    """What autograd runs in place of an operator without gradients: an error in every mode of differentiation.

    Without it a direct call would return a tensor whose backward does nothing, and forward mode a tangent of zero.
    """

    operator = getattr(getattr(torch.ops, NAMESPACE), name).default
    parameters = [parameter.name for parameter in operator._schema.arguments]

    def call(*arguments: Any) -> Any:
        for parameter, argument in zip(parameters, arguments, strict=False):
            for tensor in argument if isinstance(argument, (list, tuple)) else (argument,):
                seen = _differentiated(tensor) if isinstance(tensor, Tensor) else None
                if seen is not None:
                    raise GradientError(
                        f"gradients of {name}",
                        seen=f"{parameter} with {seen}",
                        allowed="operands without grad",
                        remedy="Gradients come in a later version: use torch.no_grad(), or pass .detach()ed operands.",
                    )
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*arguments)

    return call


def _differentiated(tensor: Tensor) -> str | None:
    if tensor.requires_grad and torch.is_grad_enabled():
        return "requires_grad in grad mode"
    if forward_ad._is_fwd_grad_enabled() and torch._VF._unpack_dual(tensor, level=0)[1] is not None:
        return "a tangent of forward-mode differentiation"
    return None


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
