"""Refusal: why a call must not be run again: it wrote to what it was given, or it talks to other ranks.

Writes are seen by tensors' versions, which count them, and by what lists, dicts and objects hold afterwards. Where
tensors have no versions (those of inference mode), and where collectives are possible, the call is rehearsed once under
a watch that stops it before the first write or collective.
Not here: putting back what was written (restore.py).
"""

from __future__ import annotations

import functools
import random
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from steadysum.guard.tensors import memory_of, tensors_of

__all__ = ["Watched", "owner_of", "rehearse", "runs_python", "watch"]

# Namespaces of torch's collectives: torch.distributed's own, and the functional ones.
_COLLECTIVES = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd", "symm_mem"})
# Values that hold no others, or are watched in another way.
_WHOLE = (Tensor, nn.Module, torch.Generator, str, bytes, int, float, complex, type(None), torch.dtype, torch.device)
_ITERATOR: Final = object()  # stands for one: whether a run has taken from it can't be seen without taking more
_DEEPEST = 6  # a cache holds layers, which hold lists of tensors
# Modules whose forward is known to draw nothing from Python's or numpy's generators, while it is torch's own.
_PLAIN = (nn.Linear, nn.Embedding)


class Watched(NamedTuple):
    """The tensors that a call can reach, with their versions before it."""

    tensors: tuple[Tensor, ...]  # arguments, then parameters and buffers
    versions: tuple[int | None, ...]  # None: of a tensor that has none
    graphs: tuple[Any, ...]  # grad_fn, which an operation in place replaces
    devices: frozenset[torch.device]  # theirs, but the CPU
    owner: nn.Module | None
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    held: tuple[tuple[str, Any, tuple[Any, ...]], ...]  # arguments that hold others: name, argument, what it holds

    def changed(self) -> tuple[Tensor, ...]:
        """The tensors that the call has written to, by their versions."""
        each = zip(self.tensors, self.versions, strict=True)
        return tuple(tensor for tensor, version in each if version is not None and tensor._version != version)

    def why_written(self) -> str | None:
        """What the call has written to, or None; versions count writes."""
        for tensor, version in zip(self.tensors, self.versions, strict=True):
            if version is not None and tensor._version != version:
                return f"it changed {self.name_of(tensor)} in place"
        changed = self._why_consumed() or self._why_other_contents()
        if changed is not None:
            return changed
        if self._has_replaced():
            return "it replaced a buffer or parameter"
        for name, module in self.owner.named_modules() if self.owner is not None else ():
            if _keeps_statistics(module):  # torch's kernels of batch norm write these without raising their version
                return f"it keeps running statistics{f' in {name}' if name else ''}"
        return None

    def why_not_restorable(self) -> str | None:
        """What has changed and can't be put back by copies: a parameter, or a tensor's place in the graph; or None."""
        consumed = self._why_consumed()
        if consumed is not None:
            return consumed
        changed = self._why_other_contents()
        if changed is not None:
            return f"{changed}, which isn't copied"
        if self._has_replaced():
            return "it replaced a buffer or parameter by another tensor, which isn't undone"
        parameters = set() if self.owner is None else {id(parameter) for parameter in self.owner.parameters()}
        for tensor, version, graph in zip(self.tensors, self.versions, self.graphs, strict=True):
            if tensor.grad_fn is not graph:
                return f"it changed {self.name_of(tensor)} in place, and with it the autograd graph"
            if id(tensor) in parameters and version is not None and tensor._version != version:
                return f"it changed {self.name_of(tensor)} in place, and parameters aren't copied"
        return None

    def _why_consumed(self) -> str | None:
        for name, _, held in self.held:
            if any(leaf is _ITERATOR for leaf in held):
                return f"argument {name} holds an iterator, which a run consumes"
        return None

    def _why_other_contents(self) -> str | None:
        for name, value, held in self.held:
            now = tuple(_leaves(value))
            if len(now) != len(held) or not all(map(_is_same, now, held)):
                return f"it changed what argument {name} holds"
        return None

    def _has_replaced(self) -> bool:
        if self.owner is None:
            return False
        known = {id(tensor) for tensor in self.tensors}
        return any(id(tensor) not in known for tensor in _state(self.owner))

    def has_unversioned(self) -> bool:
        """Whether there are tensors whose writes aren't counted."""
        return None in self.versions

    def name_of(self, tensor: Tensor) -> str:
        """The tensor's name, for people."""
        for name, value in [*enumerate(self.args), *self.kwargs.items()]:
            if any(each is tensor for each in _leaves(value)):
                return f"argument {name}"
        if self.owner is not None:
            for name, each in self.owner.named_buffers():
                if each is tensor:
                    return f"buffer {name}"
            for name, each in self.owner.named_parameters():
                if each is tensor:
                    return f"parameter {name}"
        return "a tensor of a module among the arguments"

    def writable(self) -> tuple[Tensor, ...]:
        """What is copied where restore=True: all but parameters."""
        return tuple(tensor for tensor in self.tensors if not isinstance(tensor, nn.Parameter))


def watch(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Watched:
    """Notes what the call can reach, and its versions; about a tenth of a microsecond a tensor."""
    owner = owner_of(function)
    named = [*((str(place), value) for place, value in enumerate(args)), *kwargs.items()]
    if isinstance(function, functools.partial):
        named.append(("of the partial call", function))
    held = tuple((name, value, tuple(_leaves(value))) for name, value in named if not isinstance(value, _WHOLE))
    tensors = [value for _, value in named if isinstance(value, Tensor)]
    tensors += [leaf for _, _, leaves in held for leaf in leaves if isinstance(leaf, Tensor)]
    modules = [owner, *(value for _, value in named if isinstance(value, nn.Module))]
    for module in modules:
        if module is not None:
            tensors += _state(module)
    return Watched(
        tuple(tensors),
        tuple(None if tensor.is_inference() else tensor._version for tensor in tensors),
        tuple(tensor.grad_fn for tensor in tensors),
        frozenset(tensor.device for tensor in tensors if tensor.device.type not in ("cpu", "meta")),
        owner,
        args,
        kwargs,
        held,
    )


def owner_of(function: Callable[..., Any]) -> nn.Module | None:
    """The module that a callable is, or belongs to, or None.

    >>> owner_of(nn.Linear(1, 1).forward)
    Linear(in_features=1, out_features=1, bias=True)
    """
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, nn.Module):
        return function
    owner = getattr(function, "__self__", None)
    return owner if isinstance(owner, nn.Module) else None


def runs_python(function: Callable[..., Any]) -> bool:
    """Whether the callable may run Python code that isn't torch's, which may draw from Python's and numpy's generators.

    >>> runs_python(torch.matmul), runs_python(nn.Linear(1, 1)), runs_python(lambda x: x)
    (False, False, True)
    """
    if isinstance(function, nn.Module):
        has_hooks = function._forward_hooks or function._forward_pre_hooks or "forward" in function.__dict__
        return bool(has_hooks) or not any(type(function).forward is plain.forward for plain in _PLAIN)
    return not isinstance(function, type(torch.matmul))


def rehearse(function: Callable[..., Any], watched: Watched) -> str | None:
    """Runs the call once, for nothing, and stops it before it writes to what it was given, or calls a collective.

    Returns:
        Why it must not be run again, or None.
    """
    try:
        with _Watch(watched):
            function(*watched.args, **watched.kwargs)
    except _Stopped as stop:
        return str(stop)
    except Exception as error:
        return f"a rehearsal of it failed: {type(error).__name__}: {error}"
    return None


class _Stopped(BaseException):
    """Passes through `except Exception` of what is rehearsed."""


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Stops at the first operator that writes to memory of the call's own tensors, or that talks to other ranks."""

    def __init__(self, watched: Watched) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._watched = watched
        self._memory = {memory_of(tensor): tensor for tensor in watched.tensors}
        self._memory.pop(0, None)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if func.namespace in _COLLECTIVES:
            raise _Stopped(f"it calls a collective ({func})")
        for place, parameter in enumerate(func._schema.arguments):
            if parameter.alias_info is not None and parameter.alias_info.is_write:
                given = args[place] if place < len(args) else named.get(parameter.name)
                for tensor in tensors_of(given):
                    if (hit := self._memory.get(memory_of(tensor))) is not None:
                        raise _Stopped(f"it changes {self._watched.name_of(hit)} in place")
        return func(*args, **named)


def _leaves(value: Any, depth: int = _DEEPEST) -> Iterator[Any]:
    """What a value holds, by way of containers, partial calls and objects' attributes; of random generators the state.

    Of bytes and arrays a checksum stands for what they hold, since a copy of them may be large.
    """
    if isinstance(value, _WHOLE) or depth == 0:
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield from _leaves(item, depth - 1)
    elif isinstance(value, (tuple, list, set, frozenset, deque)):
        for item in value:
            yield from _leaves(item, depth - 1)
    elif isinstance(value, functools.partial):
        yield from _leaves((value.func, value.args, value.keywords), depth - 1)
    elif isinstance(value, Iterator):
        yield _ITERATOR
    elif isinstance(value, bytearray):
        yield zlib.crc32(value)
    elif isinstance(value, np.ndarray):
        yield value.shape
        yield repr(value) if value.dtype.hasobject else zlib.crc32(value.tobytes())
    elif isinstance(value, np.random.Generator):
        yield repr(value.bit_generator.state)
    elif isinstance(value, random.Random):
        yield repr(value.getstate())
    elif hasattr(value, "__dict__") and not callable(value):
        yield from _leaves(vars(value), depth - 1)
    else:
        yield value


def _is_same(now: Any, before: Any) -> bool:
    if now is before:
        return True
    kinds = (str, bytes, int, float, complex, tuple)
    return isinstance(now, kinds) and type(now) is type(before) and bool(now == before)


def _state(module: nn.Module) -> Iterator[Tensor]:
    for each in module.modules():
        yield from (tensor for tensor in each._parameters.values() if tensor is not None)
        yield from (tensor for tensor in each._buffers.values() if tensor is not None)


def _keeps_statistics(module: nn.Module) -> bool:
    return (
        isinstance(module, nn.modules.batchnorm._NormBase)
        and module.training
        and module.track_running_stats
        and module.running_mean is not None
    )
