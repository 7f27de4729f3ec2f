"""Restore: what surrounds a call is put back, so that a second run draws, casts and records what the first one did."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from steadysum.guard.restore import Contents, ambient, put, within

NOWHERE: frozenset[torch.device] = frozenset()


def draws(generator: torch.Generator) -> list[float]:
    return [
        float(torch.rand(())),
        random.random(),
        float(np.random.rand()),
        float(torch.rand((), generator=generator)),
    ]


def test_the_same_numbers_are_drawn_again_from_every_generator() -> None:
    generator = torch.Generator().manual_seed(1)
    saved = ambient(NOWHERE, (generator,), {}, runs_python=True)
    first = draws(generator)
    put(saved)
    assert draws(generator) == first


def test_generators_that_cannot_be_drawn_from_are_left_alone() -> None:
    saved = ambient(NOWHERE, (), {}, runs_python=False)
    assert saved.python is None
    assert saved.numpy is None
    before = random.getstate()
    put(saved)
    assert random.getstate() == before


def test_autocast_and_grad_mode_are_put_back() -> None:
    x, w = torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.float16), torch.no_grad():
        saved = ambient(NOWHERE, (), {}, runs_python=False)
    after = ambient(NOWHERE, (), {}, runs_python=False)
    try:
        with within(saved):
            assert (x @ w).dtype == torch.float16
            assert not (x @ w).requires_grad
    finally:
        put(after)
    assert (x @ w).dtype == torch.float32
    assert (x @ w).requires_grad


@pytest.mark.parametrize("was_inference", [True, False])
def test_inference_mode_is_entered_or_left(was_inference: bool) -> None:
    with torch.inference_mode(was_inference):
        saved = ambient(NOWHERE, (), {}, runs_python=False)
    with torch.inference_mode(not was_inference):
        with within(saved):
            assert torch.is_inference_mode_enabled() == was_inference
            assert torch.is_grad_enabled() == saved.has_grad
        assert torch.is_inference_mode_enabled() != was_inference


def test_contents_are_written_back_without_a_trace_in_versions_or_graphs() -> None:
    leaf = torch.zeros(3, requires_grad=True)
    tensor = leaf * 1
    contents = Contents.of((tensor,))
    with torch.no_grad():
        tensor.data.add_(5.0)
    version, graph = tensor._version, tensor.grad_fn
    contents.put()
    assert tensor.tolist() == [0.0, 0.0, 0.0]
    assert (tensor._version, tensor.grad_fn) == (version, graph)


def test_contents_of_inference_tensors_are_written_back_too() -> None:
    with torch.inference_mode():
        tensor = torch.zeros(3)
    contents = Contents.of((tensor,))
    with torch.inference_mode():
        tensor.add_(1.0)
    contents.put()
    assert tensor.tolist() == [0.0, 0.0, 0.0]


def test_copies_take_the_places_of_tensors_in_a_nest() -> None:
    tensor = torch.zeros(2)
    contents = Contents.of((tensor,))
    tensor.add_(1.0)
    assert contents.swapped({"x": [tensor, 3]})["x"][0].tolist() == [0.0, 0.0]
