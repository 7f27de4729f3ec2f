"""Sets of floats, and the comparison of bits, for the tests of the published bits. Nothing here computes a result."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from .scalar_bits import Floats, to_floats

__all__ = ["around", "assert_same_bits", "every", "f32", "random_floats", "widened"]


def assert_same_bits(found: Floats, expected: Floats, what: str = "values") -> None:
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype == np.float32
    differ = np.flatnonzero(found.view(np.int32).ravel() != expected.view(np.int32).ravel())
    if differ.size:
        first = differ[0]
        pytest.fail(
            f"{what}: {differ.size} of {found.size} differ from docs/bits.md, the first at "
            f"{tuple(map(int, np.unravel_index(first, found.shape)))}: {float(found.ravel()[first]).hex()} "
            f"(0x{found.view(np.uint32).ravel()[first]:08X}), published {float(expected.ravel()[first]).hex()} "
            f"(0x{expected.view(np.uint32).ravel()[first]:08X})"
        )


def f32(values: object) -> Floats:
    return np.asarray(values, dtype=np.float32)


def widened(tensor: Tensor) -> Floats:
    if tensor.dtype == torch.bfloat16:
        return to_floats(tensor.contiguous().view(torch.int16).numpy(), bfloat16=True)
    return to_floats(tensor.numpy())


def every(step: int, first: float, last: float) -> Floats:
    """Each step-th float from first on, away from 0, and last; both have the same sign."""
    start, stop = (int(np.float32(end).view(np.uint32)) for end in (first, last))
    return np.append(np.arange(start, stop, step, dtype=np.uint32), np.uint32(stop)).view(np.float32)


def around(x: float, count: int) -> Floats:
    """The float nearest to x, its neighbours on both sides, and -0."""
    bits = np.int64(np.float32(x).view(np.int32))
    ordered = bits if bits >= 0 else -(bits & 0x7FFFFFFF)
    near = ordered + np.arange(-count, count + 1)
    magnitude = np.abs(near).astype(np.uint32)
    values = np.where(near < 0, magnitude | np.uint32(0x80000000), magnitude).astype(np.uint32).view(np.float32)
    return np.append(values, np.float32(-0.0))


def random_floats(random: np.random.Generator, count: int) -> Floats:
    """Half of them any finite bits at all, half near 1."""
    bits = random.integers(0, 2**32, count, dtype=np.uint32).view(np.float32)
    near = np.float32(random.standard_normal(count))
    return np.where((random.random(count) < 0.5) & np.isfinite(bits), bits, near)
