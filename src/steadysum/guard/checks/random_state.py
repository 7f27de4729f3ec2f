"""Random states around a check that runs something: afterwards they are what they were before.

Not here: the states of a call that is run again (restore.py).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from steadysum.guard.checks.protocol import Made
from steadysum.guard.tensors import same_bits, tensors_of

__all__ = ["RandomState", "random_state_put_back"]


@dataclass
class RandomState:
    """Whether random numbers were drawn."""

    has_changed: bool = False  # known when the context has ended


@contextmanager
def random_state_put_back(made: Made) -> Iterator[RandomState]:
    """Puts back the states of Python, numpy, torch, the devices at hand, and generators among the arguments.

    Args:
        made: the call that is at hand.
    """
    found = RandomState()
    devices = sorted(
        {tensor.device for tensor in _tensors(made)} - {torch.device("cpu"), torch.device("meta")}, key=str
    )
    generators = [value for value in (*made.args, *made.kwargs.values()) if isinstance(value, torch.Generator)]
    before = _states(devices, generators)
    try:
        yield found
    finally:
        found.has_changed = not _same(_states(devices, generators), before)
        of_python, of_numpy, of_torch, of_devices, of_generators = before
        random.setstate(of_python)
        np.random.set_state(of_numpy)
        torch.set_rng_state(of_torch)
        for device, state in zip(devices, of_devices, strict=True):
            torch.get_device_module(device).set_rng_state(state, *_number(device))
        for generator, state in zip(generators, of_generators, strict=True):
            generator.set_state(state)


def _tensors(made: Made) -> Iterator[torch.Tensor]:
    return tensors_of((made.args, dict(made.kwargs), made.output))


def _states(devices: list[torch.device], generators: list[torch.Generator]) -> tuple[Any, ...]:
    return (
        random.getstate(),
        tuple(np.random.get_state()),
        torch.get_rng_state(),
        [torch.get_device_module(device).get_rng_state(*_number(device)) for device in devices],
        [generator.get_state() for generator in generators],
    )


def _number(device: torch.device) -> tuple[torch.device, ...]:
    """mps has one device, and its functions take none."""
    return () if device.type == "mps" else (device,)


def _same(left: Any, right: Any) -> bool:
    """same_bits, of numpy's arrays too."""
    if isinstance(left, np.ndarray):
        return np.array_equal(left, right)
    if isinstance(left, (tuple, list)):
        return len(left) == len(right) and all(map(_same, left, right))
    return same_bits(left, right)
