"""Errors of the loss and of both gradients against float64: ours, the plain computation's and torch's chunked one's.

The bar of ours is twice the error of the plain computation in the same dtype. Errors are relative: a gradient's is the
Frobenius norm of the difference over that of the exact one. Not here: the gradient filter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.contenders import Contender, Work, missing
from benchmarks.results import Measure
from benchmarks.training.contenders import CHUNKED_PEER, OURS, PLAIN_PEER, forget_gradients, gradients
from benchmarks.training.problems import Problem, in_dtype, wanting_gradients
from steadysum.diagnosis.arguments import Shape

AGAINST: Final = "float64"
ALLOWED_RATIO: Final = 2.0  # of the plain computation's error
ONE_ROUNDING: Final = 2.0**-24  # of a loss, an fp32 number: allowed where the plain computation is luckier than that

# 64 rows, since torch's 16-bit products take seconds each. Its chunks have N H / 2 V rows, so that there are as many of
# them as at 2048 rows: 64.
SHAPE = Shape(64, 768, 32000)
QUICK_SHAPE = Shape(64, 64, 2048)
# Losses are one number a draw: with 16 the ratio of two root mean squares exceeds 2 by luck in 4 of 1000 cases. In 16
# bits the plain loss is wrong by far more than ours, and four will do.
DRAWS: Final = {"fp32": 16, "bf16": 4, "fp16": 4}
QUICK_DRAWS: Final = {"fp32": 2, "bf16": 2}
CONFIDENCE: Final = 16.0  # added to the target's logit: its probability is then 0.99 of 32000, and the loss 0.01


class Exact(NamedTuple):
    """The loss and both gradients in float64."""

    loss: Tensor  # []
    input: Tensor  # [N, H]
    weight: Tensor  # [V, H]


class Errors(NamedTuple):
    """Relative errors."""

    loss: float
    input: float
    weight: float


def measure_training_errors(quick: bool) -> Iterator[Measure]:
    """One measure for each problem, dtype, quantity and contender."""
    shape = QUICK_SHAPE if quick else SHAPE
    for dtype, draws in (QUICK_DRAWS if quick else DRAWS).items():
        random = [Problem(dtype, shape, seed) for seed in range(draws)]
        yield from _errors(random[0].title, (problem.load() for problem in random))
        yield from _errors(f"{random[0].title}, loss near 0", (_confident(problem.load()) for problem in random))
        if not quick:
            yield from _errors_on_real_head(Problem(dtype, None))


def exact(work: Work) -> Exact:
    """What the operands, as they are, give in float64."""
    wide = wanting_gradients(in_dtype(work, torch.float64))
    loss = F.cross_entropy(F.linear(wide.input, wide.weight), wide.target)
    loss.backward()  # type: ignore[no-untyped-call]
    return Exact(loss.detach(), *gradients(wide))


def errors(contender: Contender, work: Work, expected: Exact) -> Errors:
    """The contender's relative errors."""
    (loss,) = contender.call(work)
    seen = (loss.detach(), *gradients(work))
    forget_gradients(work)
    return Errors(*(_relative(*pair) for pair in zip(seen, expected, strict=True)))


def _errors_on_real_head(problem: Problem) -> Iterator[Measure]:
    if (reason := problem.missing()) is not None:
        yield Measure(problem.title, OURS.name, AGAINST, None, note=reason)
        return
    yield from _errors(problem.title, iter((problem.load(),)))


def _errors(
    title: str,
    works: Iterator[Work],  # draws of one problem
) -> Iterator[Measure]:
    unable = {each: reason for each in (PLAIN_PEER, CHUNKED_PEER, OURS) if (reason := missing(each)) is not None}
    able = [each for each in (PLAIN_PEER, CHUNKED_PEER, OURS) if each not in unable]
    seen: dict[Contender, list[Errors]] = {contender: [] for contender in able}
    for work in works:
        expected = exact(work)
        for contender in able:
            seen[contender].append(errors(contender, work, expected))
    for quantity in Errors._fields:
        name = quantity if quantity == "loss" else f"{quantity} gradient"
        mean = {each: _root_mean_square(getattr(draw, quantity) for draw in draws) for each, draws in seen.items()}
        allowed = ALLOWED_RATIO * mean[PLAIN_PEER]
        if quantity == "loss":
            allowed = max(allowed, ONE_ROUNDING)
        for contender, error in mean.items():
            bar = allowed if contender is OURS else None
            note = f"{error / mean[PLAIN_PEER]:.3g} of the plain error" if mean[PLAIN_PEER] else ""
            yield Measure(title, f"{contender.name}: {name}", AGAINST, error, bar, note, unit="")
        for contender, reason in unable.items():
            bar = allowed if contender is OURS else None
            yield Measure(title, f"{contender.name}: {name}", AGAINST, None, bar, reason)


def _confident(work: Work) -> Work:
    """The same problem, its hidden states leaning towards their target's row of the head."""
    towards = CONFIDENCE * work.weight.detach()[work.target]
    return wanting_gradients(Work(work.input.detach() + towards, work.weight, work.target))


def _relative(seen: Tensor, expected: Tensor) -> float:
    return float((seen.double() - expected).norm() / expected.norm())


def _root_mean_square(values: Iterator[float]) -> float:
    squares = [value**2 for value in values]
    return math.sqrt(sum(squares) / len(squares))
