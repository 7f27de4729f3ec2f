"""Calls for the tests of verify="sampled", every part of them in turn, and kernels whose results are spoiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from steadysum.kernels.gradients import Gradients, LogitGradient, PullBack, Wanted
from steadysum.kernels.problem import Operands, Statistics
from steadysum.kernels.registry import Kernel

ROWS, HIDDEN, VOCAB = 6, 40, 1100
ALL = Wanted(True, True, True)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)


def problem(rows: int = ROWS, hidden: int = HIDDEN, vocab: int = VOCAB, **options: Any) -> Operands:
    plain = {"bias": None, "scale": 1.0, "softcap": None, "temperature": None, "valid_vocab": vocab}
    operands = {"input": draw(rows, hidden), "weight": draw(vocab, hidden, seed=1) / hidden**0.5}
    return Operands(**{**operands, **plain, "target": torch.arange(rows) * 3 % vocab, **options})


FULL = problem(
    bias=draw(VOCAB, seed=2),
    scale=0.5,
    softcap=8.0,
    temperature=draw(ROWS, seed=3).abs() + 0.5,
    valid_vocab=900,
    wants_ties=True,
    wants_column_sum=True,
    column_weight=draw(VOCAB, seed=4).abs(),
    dense=draw(ROWS, VOCAB, seed=5),
)

FEWER = replace(FULL, wants_column_sum=False, dense=None)  # what every part of a kernel can be asked for
ENTROPY = replace(FEWER, wants_ties=False, wants_weighted_sum=True)  # no kernel needs to carry both at once


def cross_entropy(found: Statistics, start: int, stop: int) -> LogitGradient:
    return LogitGradient(exp=1 / found.sum_exp, target=-torch.ones_like(found.sum_exp))


def every_term(found: Statistics, start: int, stop: int) -> LogitGradient:
    a, b = draw(2, ROWS, seed=7)[:, start:stop].to(found.max.dtype)
    assert found.ties is not None
    return LogitGradient(
        exp=a / found.sum_exp,
        slope=b / found.sum_exp,
        center=a,
        column=b,
        dense=a * b,
        tie=a / found.ties,
        target=b,
        keep_above=found.sum_exp * 1e-3,
    )


class Spoiled:
    """A kernel whose results are spoiled, the first `times` of them."""

    def __init__(self, kernel: Kernel, spoil: Callable[[Any], None], times: int) -> None:
        self.kernel, self.spoil, self.times = kernel, spoil, times
        self.name, self.computed = kernel.name, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kernel, name)

    def _spoiled(self, result: Any) -> Any:
        self.computed += 1
        if self.computed <= self.times:
            self.spoil(result)
        return result

    def statistics(self, calls: Sequence[Operands]) -> list[Statistics]:
        return [self._spoiled(found) for found in self.kernel.statistics(calls)]

    def chunk_statistics(self, call: Operands) -> Statistics:
        return self._spoiled(self.kernel.chunk_statistics(call))  # type: ignore[no-any-return]

    def logits(self, call: Operands, out: Tensor) -> Statistics:
        found = self.kernel.logits(call, out)
        self._spoiled(out)
        return found

    def softmax(self, call: Operands, out: Tensor) -> None:
        self.kernel.softmax(call, out)
        self._spoiled(out)

    def gradients(self, call: Operands, pull_back: PullBack, wanted: Wanted, known: Any = None) -> Gradients:
        return self._spoiled(self.kernel.gradients(call, pull_back, wanted, known))  # type: ignore[no-any-return]

    def log(self, sum_exp: Tensor) -> Tensor:
        return self._spoiled(self.kernel.log(sum_exp))  # type: ignore[no-any-return]

    def logprobs(self, found: Statistics) -> Tensor:
        return self._spoiled(self.kernel.logprobs(found))  # type: ignore[no-any-return]

    def entropy(self, found: Statistics) -> Tensor:
        return self._spoiled(self.kernel.entropy(found))  # type: ignore[no-any-return]


def everything(kernel: Kernel, call: Operands) -> list[Tensor | None]:
    """Every part of a call, in turn."""
    out = torch.zeros(call.size, call.weight.shape[0], dtype=call.dtype)
    fewer = replace(call, wants_column_sum=False, dense=None)  # as FEWER
    entropy = replace(fewer, wants_ties=False, wants_weighted_sum=True)
    found = kernel.statistics([entropy])[0]
    results: list[Tensor | None] = [*found, kernel.entropy(found), *kernel.chunk_statistics(call)]
    results += [*kernel.logits(fewer, out), out.clone()]
    kernel.softmax(fewer, out)
    results.append(out)
    terms = cross_entropy if call.dense is None else every_term
    results += kernel.gradients(call, terms, ALL)
    found = kernel.statistics([fewer])[0]
    results += kernel.gradients(fewer, cross_entropy, ALL, Statistics(found.max, found.sum_exp))
    return [*results, kernel.log(found.sum_exp), kernel.logprobs(found)]


def same(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one.nan_to_num(123.0, 1e30, -1e30), other.nan_to_num(123.0, 1e30, -1e30))
