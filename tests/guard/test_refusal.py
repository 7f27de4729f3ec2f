"""Refusal: calls that must not be run again are known by what they wrote, or by a rehearsal that stops in time."""

from __future__ import annotations

import functools
import random
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from steadysum.guard.refusal import owner_of, rehearse, watch


def written(function: Callable[..., Any], *args: Any, **kwargs: Any) -> str | None:
    watched = watch(function, args, kwargs)
    function(*args, **kwargs)
    return watched.why_written()


class Cache:
    """As libraries keep keys and values: an object that holds layers, which hold tensors."""

    def __init__(self) -> None:
        self.layers = [{"keys": torch.zeros(0, 2)}]
        self.seen = 0

    def grow(self, keys: Tensor) -> Tensor:
        self.layers[0]["keys"] = torch.cat([self.layers[0]["keys"], keys])
        return self.layers[0]["keys"].sum()


def test_a_call_that_only_reads_has_written_nothing() -> None:
    assert written(torch.add, torch.ones(2), torch.ones(2)) is None
    assert written(nn.Linear(2, 2), torch.ones(1, 2)) is None


@pytest.mark.parametrize("as_keyword", [False, True])
def test_an_argument_changed_in_place_is_named(as_keyword: bool) -> None:
    if as_keyword:
        assert written(lambda *, x: x.add_(1), x=torch.ones(2)) == "it changed argument x in place"
    else:
        assert written(torch.Tensor.add_, torch.ones(2), 1) == "it changed argument 0 in place"


def test_a_view_of_an_argument_counts_as_the_argument() -> None:
    assert written(lambda x: x[0].zero_(), torch.ones(2, 2)) == "it changed argument 0 in place"


def test_a_buffer_and_a_parameter_changed_in_place_are_named() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor, into: str) -> Tensor:
            with torch.no_grad():
                getattr(self, into).add_(1)
            return x

    assert written(Counts(), torch.ones(1), "seen") == "it changed buffer seen in place"
    assert written(Counts(), torch.ones(1), "scale") == "it changed parameter scale in place"
    assert watch(Counts(), (torch.ones(1), "scale"), {}).why_not_restorable() is None


def test_running_statistics_count_as_written_although_torch_does_not_count_them() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    assert written(model, torch.randn(4, 2)) is not None
    assert written(model.eval(), torch.randn(4, 2)) is None


def test_a_cache_that_grows_is_noticed_although_no_tensor_is_changed() -> None:
    cache = Cache()
    keys = torch.ones(1, 2)
    watched = watch(cache.grow, (cache, keys), {})
    cache.grow(keys)
    assert watched.why_written() == "it changed what argument 0 holds"
    assert watched.why_not_restorable() == "it changed what argument 0 holds, which isn't copied"
    assert written(lambda cache: cache.seen, cache) is None


def test_a_list_that_is_appended_to_is_noticed() -> None:
    assert written(lambda out: out.append(1), []) == "it changed what argument 0 holds"


def test_a_tensor_in_a_list_or_dict_is_watched_and_restorable() -> None:
    nest = {"state": [torch.zeros(2)]}
    watched = watch(torch.sum, (nest,), {})
    nest["state"][0].add_(1)
    assert watched.why_written() == "it changed argument 0 in place"
    assert watched.why_not_restorable() is None
    assert watched.writable()[0] is nest["state"][0]


def test_writing_into_a_tensor_of_a_graph_cannot_be_restored() -> None:
    x = torch.ones(2, requires_grad=True) * 1
    watched = watch(torch.Tensor.mul_, (x, 2), {})
    x.mul_(2)
    assert watched.why_not_restorable() == "it changed argument 0 in place, and with it the autograd graph"


def test_owners_are_found_behind_methods_and_partials() -> None:
    layer = nn.Linear(1, 1)
    assert owner_of(layer) is layer
    assert owner_of(functools.partial(layer.forward)) is layer
    assert owner_of(torch.sin) is None


def test_a_rehearsal_stops_before_the_first_write() -> None:
    with torch.inference_mode():
        x = torch.ones(3)

        def halve(x: Tensor) -> Tensor:
            y = x * 2
            return x[:1].div_(2) + y

        watched = watch(halve, (x,), {})
        assert watched.has_unversioned()
        assert rehearse(halve, watched) == "it changes argument 0 in place"
        assert x.tolist() == [1.0, 1.0, 1.0]
        assert rehearse(torch.sin, watch(torch.sin, (x,), {})) is None


def test_a_rehearsal_that_fails_says_how() -> None:
    def broken(x: Tensor) -> Tensor:
        raise ValueError("no such luck")

    x = torch.ones(1)
    assert rehearse(broken, watch(broken, (x,), {})) == "a rehearsal of it failed: ValueError: no such luck"


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "broadcast", "barrier"])
def test_a_rehearsal_stops_before_the_first_collective(tmp_path: Path, collective: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        ways: dict[str, Callable[[Tensor], Any]] = {
            "all_reduce": dist.all_reduce,
            "all_gather": lambda x: dist.all_gather([torch.empty_like(x)], x),
            "broadcast": lambda x: dist.broadcast(x, 0),
            "barrier": lambda x: dist.barrier(),  # noqa: ARG005
        }

        def talks(x: Tensor) -> Tensor:
            y = x + 1
            ways[collective](y)
            return y

        x = torch.ones(2)
        assert (rehearse(talks, watch(talks, (x,), {})) or "").startswith("it calls a collective (c10d.")
        assert rehearse(torch.sin, watch(torch.sin, (x,), {})) is None
    finally:
        dist.destroy_process_group()


def by_name(name: str) -> Any:
    """An object of a kind that changes in place, and isn't a tensor."""
    return {
        "set": {1},
        "deque": deque([1]),
        "bytearray": bytearray(b"a"),
        "array": np.zeros(3),
        "dates": np.zeros(3, "datetime64[D]"),
        "numpy's generator": np.random.default_rng(0),
        "Python's generator": random.Random(0),
    }[name]


CHANGES: dict[str, Callable[[Any], Any]] = {
    "set": lambda value: value.add(2),
    "deque": lambda value: value.append(2),
    "bytearray": lambda value: value.append(98),
    "array": lambda value: value.fill(1),
    "dates": lambda value: value.fill("2026-12-03"),
    "numpy's generator": lambda value: value.random(),
    "Python's generator": lambda value: value.random(),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("inside", [lambda value: value, lambda value: {"a": [value]}])
def test_what_containers_arrays_and_generators_hold_is_watched(name: str, inside: Callable[[Any], Any]) -> None:
    value = by_name(name)
    held = inside(value)
    assert written(lambda _: None, held) is None
    assert written(lambda _: CHANGES[name](value), held) == "it changed what argument 0 holds"


@pytest.mark.parametrize("inside", [lambda value: value, lambda value: {"a": value}, lambda value: (1, [value])])
def test_an_iterator_is_not_there_for_a_second_run(inside: Callable[[Any], Any]) -> None:
    why = "argument 0 holds an iterator, which a run consumes"
    watched = watch(lambda _: None, (inside(iter([1, 2])),), {})
    assert watched.why_written() == why
    assert watched.why_not_restorable() == why


def test_what_a_partial_call_holds_is_watched() -> None:
    function = functools.partial(lambda values, x: sum(values) + x, (value for value in (1, 2)))
    why = "argument of the partial call holds an iterator, which a run consumes"
    assert written(function, torch.ones(1)) == why
    assert written(functools.partial(lambda values, x: sum(values) + x, [1]), torch.ones(1)) is None
