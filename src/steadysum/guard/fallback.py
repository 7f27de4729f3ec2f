"""Fallback: another way to the same result: a callable, another kernel of steadysum, or another device.

Not here: when it is taken (healing.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from steadysum import kernels
from steadysum.errors import OperandTypeError, OptionError, UnknownKernelError
from steadysum.guard.attempt import Target
from steadysum.guard.refusal import owner_of
from steadysum.guard.shadow import shadow
from steadysum.guard.tensors import map_tensors, tensors_of

__all__ = ["Fallback", "accept_fallback"]


@dataclass(frozen=True)
class Fallback:
    """Another way to the result."""

    name: str  # for notices: "native", "cpu", the callable's name
    run: Callable[[Target], Any]
    fits: Callable[[Target], str | None] = lambda target: None  # noqa: ARG005  # why it is no other way, or None


def accept_fallback(fallback: Any, function: Callable[..., Any]) -> Fallback | None:
    """The fallback that protect() was given, for what it guards.

    Raises:
        OperandTypeError, UnknownKernelError: neither a callable, nor a kernel's or a device's name.
        OptionError: a kernel's name, for a callable that has no choice of kernels.
    """
    if fallback is None:
        return None
    if isinstance(fallback, torch.device):
        return _on_device(fallback)
    if isinstance(fallback, str):
        if fallback in kernels.names():
            return _by_kernel(fallback, function)
        try:
            return _on_device(torch.device(fallback))
        except RuntimeError:
            raise UnknownKernelError(
                "fallback",
                repr(fallback),
                f"a kernel ({', '.join(kernels.names())}) or a device",
                "Or pass a callable.",
            ) from None
    if not callable(fallback):
        raise OperandTypeError(
            "type of fallback",
            type(fallback).__name__,
            "a callable, or a kernel's or device's name",
            "None: no fallback.",
        )
    name = getattr(fallback, "__name__", type(fallback).__name__)
    return Fallback(name, lambda target: fallback(*target.args, **target.kwargs))


def _by_kernel(name: str, function: Callable[..., Any]) -> Fallback:
    takes_kernel = _takes_kernel(function)
    if not takes_kernel and not _is_ours(function):
        raise OptionError(
            f"fallback={name!r}",
            f"{getattr(function, '__name__', type(function).__name__)}, which has no choice of kernels",
            "a kernel's name for functions and modules of steadysum alone",
            "Pass a callable, or a device's name.",
        )

    def run(target: Target) -> Any:
        with kernels.use(name):
            if takes_kernel:
                return target.function(*target.args, **{**target.kwargs, "kernel": name})
            function = target.callee
            if isinstance(function, nn.Module) and hasattr(function, "kernel"):
                function = shadow(function, kernel=name)
            return function(*target.args, **target.kwargs)

    return Fallback(name, run)


def _takes_kernel(function: Callable[..., Any]) -> bool:
    called = function.forward if isinstance(function, nn.Module) else function
    try:
        return "kernel" in inspect.signature(called).parameters
    except (TypeError, ValueError):
        return False


def _is_ours(function: Callable[..., Any]) -> bool:
    owner = owner_of(function)
    modules = [function] if owner is None else owner.modules()
    return any(str(getattr(each, "__module__", "")).split(".")[0] == "steadysum" for each in modules)


def _on_device(device: torch.device) -> Fallback:
    def fits(target: Target) -> str | None:
        if _devices(target) <= {device.type}:
            return f"its operands are on {device} already"
        return None

    def run(target: Target) -> Any:
        def there(value: Any) -> Any:
            return map_tensors(lambda tensor: tensor.to(device), value)

        args, kwargs = there(target.args), there(dict(target.kwargs))
        owner = owner_of(target.callee)
        if owner is None:
            output = target.function(*args, **kwargs)
        elif owner is target.callee or target.callee == owner.forward:
            state = {**dict(owner.named_parameters(remove_duplicate=False)), **dict(owner.named_buffers())}
            output = torch.func.functional_call(owner, there(state), args, kwargs)
        else:
            raise OptionError(
                f"fallback={str(device)!r}",
                "a method of a module",
                "a function, or a module itself",
                "Pass a callable.",
            )
        back = next((tensor.device for tensor in tensors_of((target.args, target.kwargs))), device)
        return map_tensors(lambda tensor: tensor.to(back), output)

    return Fallback(str(device), run, fits)


def _devices(target: Target) -> set[str]:
    tensors = list(tensors_of((target.args, target.kwargs)))
    owner = owner_of(target.callee)
    if owner is not None:
        tensors += list(owner.parameters())
    return {tensor.device.type for tensor in tensors}
