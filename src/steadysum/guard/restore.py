"""Restore: what a call found around it, saved before and put back before a rerun: random states, autocast, grad mode.

A rerun must be the first run over again: same random draws, same casts, same graph. Not here: whether a rerun may be
made at all (refusal.py), and when (healing.py).
"""

from __future__ import annotations

import functools
import importlib
import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from steadysum.guard.tensors import map_tensors, same_bits

__all__ = ["Ambient", "Contents", "ambient", "put", "synchronise", "within"]


class Ambient(NamedTuple):
    """What surrounds a call and isn't among its arguments."""

    cpu: Tensor  # torch's random state
    devices: tuple[tuple[torch.device, Tensor], ...]  # the same of devices
    generators: tuple[tuple[torch.Generator, Tensor], ...]  # of those handed over as arguments
    python: Any  # Python's random state; None: not saved
    numpy: Any  # numpy's global one; None: not saved
    autocast: tuple[tuple[str, bool, torch.dtype], ...]  # device type, whether it is on, dtype
    has_autocast_cache: bool
    has_grad: bool
    is_inference: bool


def ambient(
    devices: frozenset[torch.device], args: tuple[Any, ...], kwargs: Mapping[str, Any], *, runs_python: bool
) -> Ambient:
    """Saves what surrounds a call; some microseconds.

    Args:
        devices: other than the CPU, on which the call may draw.
        args, kwargs: the call's; generators among them are saved.
        runs_python: whether the callable may draw from Python's or numpy's generators (8 and 35 microseconds).
    """
    found = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Generator)]
    return Ambient(
        torch.get_rng_state(),
        tuple((device, _rng(device).get_rng_state(*_place(device))) for device in devices),
        tuple((generator, generator.get_state()) for generator in found),
        random.getstate() if runs_python else None,
        _numpy_random().get_state() if runs_python and "numpy" in sys.modules else None,
        tuple((kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in _device_types()),
        torch.is_autocast_cache_enabled(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
    )


def put(saved: Ambient) -> None:
    """Puts it back. Autocast's cache is emptied: a cast weight in it may be what was damaged, and has the first graph.

    Inference mode alone can't be put back, but only be entered: see `within`.
    """
    torch.set_rng_state(saved.cpu)
    for device, state in saved.devices:
        _rng(device).set_rng_state(state, *_place(device))
    for generator, state in saved.generators:
        generator.set_state(state)
    if saved.python is not None:
        random.setstate(saved.python)
    if saved.numpy is not None:
        _numpy_random().set_state(saved.numpy)
    for kind, is_on, dtype in saved.autocast:
        torch.set_autocast_enabled(kind, is_on)
        torch.set_autocast_dtype(kind, dtype)
    torch.set_autocast_cache_enabled(saved.has_autocast_cache)
    torch.clear_autocast_cache()
    torch.set_grad_enabled(saved.has_grad)


@contextmanager
def within(saved: Ambient) -> Iterator[None]:
    """Inside, a call is surrounded by what was saved."""
    put(saved)
    if saved.is_inference == torch.is_inference_mode_enabled():
        yield
    else:
        with torch.inference_mode(saved.is_inference):
            torch.set_grad_enabled(saved.has_grad)
            yield


class Contents(NamedTuple):
    """Copies of tensors that a call may write to."""

    tensors: tuple[Tensor, ...]
    copies: tuple[Tensor, ...]

    @classmethod
    def of(cls, tensors: tuple[Tensor, ...]) -> Contents:
        """Copies them; as much memory again."""
        return cls(tensors, tuple(tensor.detach().clone() for tensor in tensors))

    def put(self) -> None:
        """Writes the copies back, where anything has changed; versions stay, as do graphs."""
        with torch.no_grad():
            for tensor, copy in zip(self.tensors, self.copies, strict=True):
                if tensor.is_inference() and not torch.is_inference_mode_enabled():
                    with torch.inference_mode():
                        tensor.copy_(copy)
                else:
                    tensor.data.copy_(copy)

    def changed(self) -> Contents:
        """Those whose bits aren't what they were; one pass over all."""
        pairs = [pair for pair in zip(self.tensors, self.copies, strict=True) if not same_bits(*pair)]
        return Contents(tuple(tensor for tensor, _ in pairs), tuple(copy for _, copy in pairs))

    def swapped(self, value: Any) -> Any:
        """The nest with the copies in the tensors' places."""
        by_id = {id(tensor): copy for tensor, copy in zip(self.tensors, self.copies, strict=True)}
        return map_tensors(lambda tensor: by_id.get(id(tensor), tensor), value)


def synchronise(devices: frozenset[torch.device]) -> None:
    """Waits until the devices have done all work that was given to them; the CPU has when a call returns."""
    for device in devices:
        torch.accelerator.synchronize(device)


@functools.cache
def _device_types() -> tuple[str, ...]:
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return ("cpu",) if accelerator is None else ("cpu", accelerator.type)


@functools.cache
def _numpy_random() -> Any:
    # numpy imports this when it is first used, and seeds it by chance: within a call that would be too late.
    return importlib.import_module("numpy.random")


def _rng(device: torch.device) -> Any:
    return torch.get_device_module(device)


def _place(device: torch.device) -> tuple[torch.device, ...]:
    return () if device.type == "mps" else (device,)  # there is one at most, and its functions take none
