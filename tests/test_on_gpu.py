"""on_gpu.adapt puts every tensor of a call on the device, and changes no result. The kernel here is eager.

That everything is on the device is seen with fake tensors, which have devices that aren't there, and refuse to mix
them; that results stay the same with copies on the CPU.

Not here: the triton kernel on a GPU, which the tests with operands on the CPU run by means of this.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any, Final

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from steadysum.kernels import eager, registry, triton
from steadysum.kernels.gradients import LogitGradient, Wanted
from steadysum.kernels.problem import Operands, Problem, Statistics
from steadysum.kernels.registry import Kernel

from . import on_gpu

CPU = torch.device("cpu")
ELSEWHERE = torch.device("lazy", 0)  # the one fake device that a build of torch without GPUs has views and copies for
ROWS, HIDDEN, VOCAB = 6, 8, 600  # two tiles
ALL: Final = Wanted(input=True, weight=True, bias=True)
COMPUTED: Final = [name for name in on_gpu.ADAPTORS if name != "supports"]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def operands(rows: int = ROWS, **options: Any) -> Operands:
    plain = Operands(
        draw(ROWS, HIDDEN),
        draw(VOCAB, HIDDEN, seed=1),
        bias=draw(VOCAB, seed=2),
        scale=0.5,
        softcap=8.0,
        temperature=1 + draw(rows, seed=3).abs(),
        valid_vocab=VOCAB - 1,
        target=torch.arange(rows) * 90,
        wants_weighted_sum=True,
        wants_ties=True,
    )
    return replace(plain, **options)


def everything() -> Operands:
    """Rows left out, class weights, and class probabilities in another dtype."""
    return operands(
        4,
        kept=torch.tensor([0, 2, 3, 5]),
        column_weight=draw(VOCAB, seed=4).abs(),
        wants_column_sum=True,
        dense=draw(4, VOCAB, seed=5).bfloat16(),
    )


def pull_back(found: Statistics, start: int, stop: int) -> LogitGradient:
    """As an operator's, of numbers that lie where the call's operands do: statistics that lie elsewhere don't mix."""
    numbers = draw(2, ROWS, seed=6)[:, start:stop]
    return LogitGradient(
        exp=numbers[0] / found.sum_exp, column=numbers[1], dense=numbers[0] + found.max, target=numbers[1]
    )


def statistics() -> Statistics:
    return Statistics(draw(ROWS), 1 + draw(ROWS, seed=1).abs(), draw(ROWS, seed=2), draw(ROWS, seed=3))


# The arguments of each function; an output holds numbers that may not be left in it.
ARGUMENTS: Final[dict[str, Callable[[], tuple[Any, ...]]]] = {
    "statistics": lambda: ([operands(), operands(target=None), operands(bias=None, temperature=None)],),
    "chunk_statistics": lambda: (everything(),),
    "gradients": lambda: (everything(), pull_back, ALL),
    "gradients, statistics known": lambda: (
        everything(),
        pull_back,
        ALL._replace(bias=False),
        Statistics(draw(4), 1 + draw(4).abs()),
    ),
    "logits": lambda: (operands(), torch.full((ROWS, VOCAB), torch.nan)),
    "softmax": lambda: (operands(), torch.full((ROWS, VOCAB), torch.nan)),
    "logprobs": lambda: (statistics(),),
    "entropy": lambda: (statistics(),),
    "log": lambda: (draw(ROWS).abs(),),
}


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors of arguments or results, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Operands):
        yield from tensors([getattr(value, each.name) for each in fields(value)])
    elif isinstance(value, tuple | list):
        for each in value:
            yield from tensors(each)


def run(case: str) -> list[Tensor]:
    """What a function of eager gives, and what stands in its arguments afterwards."""
    arguments = ARGUMENTS[case]()
    found = getattr(eager, case.split(",")[0])(*arguments)
    return [*tensors(found), *tensors(arguments)]


def test_every_function_of_a_kernel_is_adapted() -> None:
    functions = {name for name, each in vars(Kernel).items() if inspect.isfunction(each) and not name.startswith("_")}
    assert set(on_gpu.ADAPTORS) == functions - {"missing"}
    assert {case.split(",")[0] for case in ARGUMENTS} == {*COMPUTED}


@pytest.mark.parametrize("case", ARGUMENTS)
def test_results_are_those_of_the_kernel_as_it_is(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run(case)
    on_gpu.adapt(eager, CPU, monkeypatch)
    found = run(case)
    assert len(found) == len(expected)
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("case", ARGUMENTS)
def test_the_kernel_sees_tensors_on_the_device_alone_and_the_caller_none(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = case.split(",")[0]
    right, seen = getattr(eager, name), list[Tensor]()

    def spy(*arguments: Any) -> Any:
        found = right(*arguments)
        seen.extend(tensors([arguments, found]))
        return found

    monkeypatch.setattr(eager, name, spy)
    on_gpu.adapt(eager, ELSEWHERE, monkeypatch)
    with FakeTensorMode():
        found = run(case)
    assert {each.device for each in seen} == {ELSEWHERE}
    assert {each.device for each in found} == {CPU}


LAYOUTS: Final[dict[str, Callable[[], Tensor]]] = {
    "transposed": lambda: draw(HIDDEN, VOCAB).T,
    "with gaps": lambda: draw(2 * VOCAB, 3 * HIDDEN)[::2, ::3],
    "one row for all": lambda: draw(1, HIDDEN).expand(VOCAB, HIDDEN),
    "one column for all": lambda: draw(VOCAB, 1).expand(VOCAB, HIDDEN),
    "no rows": lambda: draw(VOCAB, HIDDEN)[:0],
    "one number for all": lambda: torch.tensor(2.0).expand(VOCAB, HIDDEN),
    "from the middle on": lambda: draw(VOCAB + 1, HIDDEN)[1:],
    "lazily negated": lambda: torch._neg_view(draw(VOCAB, HIDDEN)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_copies_have_the_strides_of_the_originals(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weight, seen = LAYOUTS[layout](), list[Tensor]()
    monkeypatch.setattr(eager, "statistics", lambda calls: [seen.append(call.weight) for call in calls])
    on_gpu.adapt(eager, CPU, monkeypatch)
    eager.statistics([operands(weight=weight)])
    (there,) = seen
    assert there.stride() == weight.stride()
    assert there.storage_offset() == 0
    assert not there.is_neg()
    assert torch.equal(there, weight)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A triton kernel as it is on a machine with a GPU; what it supports stands for the rest."""
    monkeypatch.setattr(triton, "missing", lambda: None)
    monkeypatch.setattr(triton, "interpreted", lambda: False)

    def supports(problem: Problem) -> str | None:
        return None if problem.device.type == "cuda" and problem.dtype == torch.float32 else f"not {problem}"

    monkeypatch.setattr(triton, "supports", supports)


def test_triton_takes_operands_on_the_cpu_where_it_compiles(compiled: None, request: pytest.FixtureRequest) -> None:
    one = Problem(rows=4, hidden=8, vocab=100)
    assert triton.supports(one) is not None
    request.getfixturevalue("triton_takes_cpu_operands")
    assert triton.supports(one) is None
    assert registry.select(one, "triton") is triton
    assert "device(type='cuda')" in str(triton.supports(replace(one, dtype=torch.float64)))
    assert "device(type='meta')" in str(triton.supports(replace(one, device=torch.device("meta"))))


def test_an_interpreted_triton_is_left_as_it_is(
    compiled: None, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton, "interpreted", lambda: True)
    before = dict(vars(triton))
    request.getfixturevalue("triton_takes_cpu_operands")
    assert vars(triton) == before
