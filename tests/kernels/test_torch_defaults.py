"""What torch makes by default (dtype, device) changes no bit of a kernel's results, nor where it writes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from steadysum import kernels

from .sampled_calls import ALL, FULL, cross_entropy, everything, problem, same


@pytest.fixture(params=[torch.float64, torch.bfloat16], ids=str)
def other_default(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    """A default dtype, not yet in force; after the test the former one is."""
    before = torch.get_default_dtype()
    yield request.param
    torch.set_default_dtype(before)


def test_the_default_dtype_changes_no_bit(kernel: str, other_default: torch.dtype) -> None:
    plain = kernels.get(kernel)
    before = everything(plain, FULL)
    torch.set_default_dtype(other_default)
    after = everything(plain, FULL)
    assert all(same(one, other) for one, other in zip(after, before, strict=True))


def test_gradients_of_rows_that_take_part_have_their_dtype(kernel: str, other_default: torch.dtype) -> None:
    """Their memory is another one: they are put at their places at the end."""
    some = replace(problem(), kept=torch.tensor([0, 2, 5]), target=torch.tensor([4, 0, 7]))
    plain = kernels.get(kernel)
    before = plain.gradients(some, cross_entropy, ALL)
    torch.set_default_dtype(other_default)
    after = plain.gradients(some, cross_entropy, ALL)
    assert all(same(one, other) for one, other in zip(after, before, strict=True))
