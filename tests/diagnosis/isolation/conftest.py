"""Operators with planted ends, in a file of their own, as a user's would be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from steadysum.diagnosis.isolation.inputs import OwnInputs
from steadysum.diagnosis.isolation.supervisor import Limits, Supervisor

OPERATORS = """
import ctypes, os, threading, time
import numpy as np
import torch

hoard = []

def make_inputs(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randint(-3, 4, (8, 16), generator=generator).float(),)

def right(x): return x.sum(1)
def pair(x): return {"sum": x.sum(1), "largest": x.numpy().max(1), "count": 8}
def seventh(x):
    if count() == 7: raise ValueError("seven is too many")
    return x.sum(1)
def third_deviates(x): return x.sum(1) + float(count() == 3)
def always_another(x): return x.sum(1) + count()
def segfault(x):
    if count() == 5: ctypes.string_at(0)
    return x.sum(1)
def leaves(x):
    if count() == 2: os._exit(3)
    return x.sum(1)
def hangs(x):
    if count() == 4: wait_for_a_peer()
    return x.sum(1)
def wait_for_a_peer(): time.sleep(1000)
def too_large(x):
    if count() == 2: return torch.empty(1 << 45)
    return x.sum(1)
def slow(x):
    time.sleep(0.02)
    return x.sum(1)
def writes(x): return x.add_(1.0).sum(1)
def writes_by_numpy(x):
    x.numpy()[:] += 1.0
    return x.sum(1)
def draws(x): return x.sum(1) + torch.rand(8)
def prints(x):
    print("a line that is no answer", flush=True)
    return x.sum(1)
"""


@pytest.fixture
def operators(user_file: Callable[[str], Path]) -> Path:
    return user_file(OPERATORS)


@pytest.fixture
def supervise(operators: Path) -> Iterator[Callable[..., Supervisor]]:
    """Starts an operator of the file."""
    with ExitStack() as stack:

        def start(name: str, limits: Limits | None = None) -> Supervisor:
            return stack.enter_context(Supervisor(f"{operators}:{name}", OwnInputs(), limits or Limits()))

        yield start
