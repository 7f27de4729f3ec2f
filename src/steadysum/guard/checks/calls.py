"""What a call was: its arguments by name, and the linear product that it formed, if it is one.

Not here: what a check makes of it.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any, Final, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from steadysum.guard.checks.protocol import Made
from steadysum.guard.tensors import memories_of, memory_of
from steadysum.kernels.problem import FLOATS, SIXTEEN_BIT
from steadysum.nn import LinearCrossEntropyLoss

__all__ = [
    "Call",
    "LinearProduct",
    "Operands",
    "arguments_of",
    "call_of",
    "linear_product",
    "only_output",
    "plain_module",
    "unusable",
]

M = TypeVar("M", bound=torch.nn.Module)

# A user's own way to say what a call multiplies: (input [..., K], weight [V, K], bias [V] or None).
Operands = Callable[[Made], tuple[Tensor, Tensor, Tensor | None]]

# Torch's own functions have no signature to bind to: the names of their first arguments.
_BUILTINS: Final[tuple[tuple[Callable[..., Any], tuple[str, ...]], ...]] = (
    (F.linear, ("input", "weight", "bias")),
    (torch.matmul, ("input", "other")),
    (torch.mm, ("input", "mat2")),
    (operator.matmul, ("input", "other")),
    (torch.Tensor.matmul, ("input", "other")),
    (torch.Tensor.mm, ("input", "mat2")),
    (torch.Tensor.__matmul__, ("input", "other")),
)


class Call(NamedTuple):
    """A call with partial arguments, and modules that are known, taken apart."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


class LinearProduct(NamedTuple):
    """One call of output = input @ weight.T + bias, as it was computed: under autocast with rounded operands."""

    input: Tensor  # [N, K]
    weight: Tensor  # [V, K], the tensor itself, or its transpose
    bias: Tensor | None  # [V]
    output: Tensor  # [N, V]
    operand_dtype: torch.dtype  # what input, weight and bias are rounded to before they are multiplied


def call_of(made: Made) -> Call:
    """The call behind functools.partial."""
    function, args, kwargs = made.function, tuple(made.args), dict(made.kwargs)
    while isinstance(function, functools.partial):
        args, kwargs = (*function.args, *args), {**function.keywords, **kwargs}
        function = function.func
    return Call(function, args, kwargs)


def arguments_of(made: Made) -> dict[str, Any] | None:
    """The call's arguments by name, defaults included; None where the callable doesn't say how they are called.

    >>> arguments_of(Made(F.linear, (1, 2), {}, None))
    {'input': 1, 'weight': 2}
    """
    function, args, kwargs = call_of(made)
    for known, names in _BUILTINS:
        if function is known:
            return {**dict(zip(names, args, strict=False)), **kwargs}
    if isinstance(function, LinearCrossEntropyLoss):
        named = {**dict(zip(("input", "target"), args, strict=False)), **kwargs}
        return {**_loss_settings(function), **named}
    target = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        found = inspect.signature(target).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return None
    found.apply_defaults()
    return dict(found.arguments)


def _loss_settings(module: LinearCrossEntropyLoss) -> dict[str, Any]:
    """What the module passes to linear_cross_entropy."""
    same = ("weight", "reduction", "ignore_index", "label_smoothing", "z_loss", "scale", "softcap", "valid_vocab")
    settings = {name: getattr(module, name) for name in (*same, "return_stats")}
    return {**settings, "linear_weight": module.linear.weight, "linear_bias": module.linear.bias}


def linear_product(made: Made, operands: Operands | None = None) -> LinearProduct | str:
    """The product that a call formed, or why it is none that is known.

    Known are torch.nn.Linear, torch.nn.functional.linear, and torch.matmul, torch.mm and @ with a matrix on the right.
    """
    given = _operands(made) if operands is None else operands(made)
    if isinstance(given, str):
        return given
    input, weight, bias = given
    output = only_output(made)
    if output is None:
        return "its output isn't one tensor"
    for name, tensor in (("input", input), ("weight", weight), ("bias", bias), ("output", output)):
        reason = None if tensor is None and name == "bias" else unusable(tensor)
        if reason is not None:
            return f"its {name} {reason}"
    written = memories_of(made.written)
    for name, tensor in (("input", input), ("weight", weight), ("bias", bias)) if written else ():
        if tensor is not None and memory_of(tensor) in written:
            return f"the call has changed its {name}; protect(..., restore=True) takes a copy"
    if weight.dim() != 2 or input.dim() < 1 or input.shape[-1] != weight.shape[1]:
        return f"its operands don't fit: input {list(input.shape)}, weight {list(weight.shape)}"
    if tuple(output.shape) != (*input.shape[:-1], weight.shape[0]):
        return f"its output has the shape {list(output.shape)}, not {[*input.shape[:-1], weight.shape[0]]}"
    if len({tensor.device for tensor in (input, weight, output)}) > 1:
        return "its operands and output are on different devices"
    rows, hidden, columns = input.shape[:-1].numel(), weight.shape[1], weight.shape[0]
    return LinearProduct(
        input.detach().reshape(rows, hidden),
        weight,
        None if bias is None else bias.detach(),
        output.detach().reshape(rows, columns),
        output.dtype if output.dtype in SIXTEEN_BIT else input.dtype,  # fp32 operands under autocast are rounded
    )


def _operands(made: Made) -> tuple[Tensor, Tensor, Tensor | None] | str:
    function, args, kwargs = call_of(made)
    named = arguments_of(made)
    linear = plain_module(function, torch.nn.Linear)
    if isinstance(linear, str):
        return linear
    if linear is not None:
        input = args[0] if args else kwargs.get("input")
        return input, linear.weight, linear.bias  # type: ignore[return-value]  # looked at by the caller
    if function is F.linear and named is not None:
        return named.get("input"), named.get("weight"), named.get("bias")  # type: ignore[return-value]
    if named is not None and any(function is known for known, _ in _BUILTINS):
        left, right = named.get("input"), named.get("other", named.get("mat2"))
        if not isinstance(right, Tensor) or right.dim() != 2:
            return "its right operand isn't a matrix"
        return left, right.T, None  # type: ignore[return-value]
    return f"{getattr(function, '__name__', type(function).__name__)} isn't a linear product that is known"


def plain_module(function: Any, kind: type[M]) -> M | str | None:
    """The module behind a call, if the call computes what its class does; or why it may not; None: it's no such module.

    A bound forward, which runs no hooks, is taken as the module's call too.
    """
    is_forward = isinstance(function, MethodType) and function.__name__ == "forward"
    module = function.__self__ if is_forward else function
    if not isinstance(module, kind):
        return None
    name = type(module).__name__
    if type(module).forward is not kind.forward or ("forward" in vars(module) and not is_forward):
        return f"{name} has a forward of its own"
    if isinstance(getattr(type(module), "weight", None), property):
        return f"the weight of {name} is computed anew whenever it is asked for"
    if not is_forward and (module._forward_pre_hooks or module._forward_hooks):
        return f"{name} has hooks, which may change what it is given, or what it gives"
    return module


def only_output(made: Made) -> Tensor | None:
    """The output, if it is one tensor."""
    return made.output if isinstance(made.output, Tensor) else None


def unusable(tensor: Any) -> str | None:
    """Why the values of a floating-point tensor can't be looked at, or None."""
    if not isinstance(tensor, Tensor):
        return f"is a {type(tensor).__name__}"
    if type(tensor) not in (Tensor, torch.nn.Parameter, torch.nn.Buffer):
        return f"is a {type(tensor).__name__}, whose elements may lie elsewhere"
    if tensor.is_meta or tensor.layout != torch.strided:
        return "holds no dense values"
    return None if tensor.dtype in FLOATS else f"has the dtype {tensor.dtype}"
