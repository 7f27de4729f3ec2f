"""Problems for the test of the published gradients: what hypothesis draws, and the kernel's calls made of it.

Operands and options are those of published_problems.py, in other sizes: rows across blocks of 128, and few of them
where the vocabulary is wide. Not here: what is expected (scalar_bits.py), or any comparison
(test_published_gradients.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Final, NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from steadysum.kernels.gradients import LogitGradient, Wanted
from steadysum.kernels.problem import Operands as Call
from steadysum.tiling import Shard

from .published_problems import DTYPES, LAYOUTS, SPECIAL, Problem, lengths, operands, problems, special

__all__ = ["EVERY_CHOICE", "GradientProblem", "GradientWork", "chunks", "gradient_problems", "gradient_work"]

LETTERS: Final = dict(zip("AKCUDTBL", LogitGradient._fields, strict=True))  # of docs/bits.md, to the kernel's names
OF_EXP: Final = ("", "A", "AK", "AC", "AKC")  # the page says what K and C do beside A; alone they mean nothing
# Every choice of coefficients: 5 * 2^5.
EVERY_CHOICE: Final = [
    of_exp + "".join(letter for bit, letter in enumerate("UDTBL") if others >> bit & 1)
    for of_exp in OF_EXP
    for others in range(2**5)
]


@dataclass(frozen=True)
class GradientProblem:
    """A drawn problem. Everything not named here follows from the seed of `forward`."""

    forward: Problem  # its N rows are those that take part
    left_out: int | None  # how many rows of input don't; None: the call doesn't choose among them
    letters: str  # the coefficients
    size: float  # of the coefficients, about
    planted: tuple[tuple[str, str], ...]  # coefficient, and the special value that a row of it has
    column_weight: bool
    dense: str | None  # its layout; without one there is no C and no D
    dense_dtype: torch.dtype
    carried: str | None  # beside max and sum_exp: ties or weighted_sum
    known: bool  # the statistics are
    blocks: tuple[int, ...]  # of 128 rows in a chunk; chunks take turns
    wanted: Wanted


class GradientWork(NamedTuple):
    """A kernel's call, and the coefficients of all its rows."""

    call: Call
    terms: LogitGradient


def chunks(problem: GradientProblem) -> Iterator[tuple[int, int]]:
    """Rows [start, stop) of each chunk."""
    start, N = 0, problem.forward.N
    blocks = cycle(problem.blocks)
    while start < N:
        stop = min(start + 128 * next(blocks), N)
        yield start, stop
        start = stop


@st.composite
def _forward(draw: st.DrawFn) -> Problem:
    """Many rows, a wide vocabulary, or a long reduction: not together, since the second implementation is slow."""
    shape = draw(st.sampled_from(["rows", "rows", "wide", "segments", "hidden"]))
    rows, few = lengths(300, (1, 128, 256)), st.integers(0, 6)
    if shape == "rows":
        N, H, V = draw(rows), draw(lengths(40, (1, 8, 16, 32))), draw(lengths(700, (1, 128, 512)).filter(bool))
    elif shape == "wide":
        N, H, V = draw(few), draw(lengths(20, (1, 8, 16))), draw(st.integers(8192, 9000))
    elif shape == "segments":
        N, H, V = draw(lengths(20, (1, 8, 16))), draw(lengths(20, (1, 8, 16))), draw(st.integers(1000, 8191))
    else:
        N, H, V = draw(lengths(20, (1, 8, 16))), draw(lengths(600, (128, 256, 512))), draw(lengths(300, (1,)))
    V = max(V, 1)
    # In half of the problems nothing special is near, so that a wrong bit can't hide behind a NaN.
    plain = {"kind": "normal", "planted": (), "bias_tail": None} if draw(st.booleans()) else {}
    if plain:
        plain |= {
            "size": draw(st.sampled_from([1.0, 8.0, 60.0])),
            "scale": draw(st.sampled_from([1.0, 1.0, 0.3, -2.5])),
            "softcap": draw(st.sampled_from([None, None, 3.0, 30.0])),
            "temperature": draw(st.sampled_from([None, None, (0.7,), (0.5, 1.3, 2.0)])),
        }
    valid = draw(st.one_of(st.just(V), st.integers(1, V), st.integers(1, min(V, 600))))
    return replace(draw(problems()), N=N, H=H, V=V, valid_vocab=valid, **plain)


@st.composite
def gradient_problems(draw: st.DrawFn) -> GradientProblem:
    letters = draw(st.sampled_from(EVERY_CHOICE))
    needs_dense = bool(set("CD") & set(letters))
    layouts = [name for name in sorted(LAYOUTS) if name != "repeated"]
    planted = st.lists(st.tuples(st.sampled_from(letters or "A"), st.sampled_from(SPECIAL)), max_size=3)
    return GradientProblem(
        forward=draw(_forward()),
        left_out=draw(st.one_of(st.none(), st.integers(0, 40))),
        letters=letters,
        size=draw(st.sampled_from([1.0, 1.0, 1.0, 1e-30, 1e30])),
        planted=tuple(draw(planted) if draw(st.integers(0, 4)) == 0 else ()),
        column_weight=draw(st.booleans()),
        dense=draw(st.sampled_from([*layouts, "repeated"] if needs_dense else [None, None, *layouts])),
        dense_dtype=draw(st.sampled_from([*DTYPES, torch.float64])),
        carried=draw(st.sampled_from([None, "ties", "weighted_sum"])),
        known=draw(st.booleans()),
        blocks=tuple(draw(st.lists(st.integers(1, 2), min_size=1, max_size=2))),
        wanted=draw(st.sampled_from([Wanted(True, True, True)] * 4 + [Wanted(*each) for each in SOME_WANTED])),
    )


SOME_WANTED: Final = [(True, False, False), (False, True, False), (False, False, True), (False, True, True)]


def gradient_work(problem: GradientProblem) -> GradientWork:
    """The call of a problem, the same in every run.

    What takes no part, masked columns and rows that are left out, is NaN.
    """
    forward = problem.forward
    random = np.random.default_rng([forward.seed, 1])
    N, V, valid = forward.N, forward.V, forward.valid_vocab
    M = N + (problem.left_out or 0)
    given = operands(replace(forward, N=M))
    kept = torch.from_numpy(np.sort(random.choice(M, N, replace=False)))
    temperature = given.temperature
    if temperature is not None and len(forward.temperature or ()) > 1:
        temperature = temperature[kept]
    if forward.input_layout != "repeated":
        given.input[np.setdiff1d(np.arange(M), kept.numpy())] = torch.nan
    if forward.weight_layout != "repeated":
        given.weight[valid:] = torch.nan
    if given.bias is not None:
        given.bias[valid:] = torch.nan
    dense = None
    if problem.dense is not None:
        dense = LAYOUTS[problem.dense](_dense(random, (N, V), problem.dense_dtype))
        if problem.dense != "repeated":
            dense[:, valid:] = torch.nan
    column_weight = None
    if problem.column_weight:
        column_weight = torch.from_numpy(np.float32(random.choice([0.0, 0.3, 1.0, 2.5], V)))
        column_weight[valid:] = torch.nan
    call = Call(
        given.input,
        given.weight,
        given.bias,
        forward.scale,
        forward.softcap,
        temperature,
        valid,
        target=given.target[kept],
        wants_weighted_sum=problem.carried == "weighted_sum",
        wants_ties=problem.carried == "ties",
        column_weight=column_weight,
        wants_column_sum=True,
        dense=dense,
        kept=None if problem.left_out is None else kept,
        shard=None if forward.shard is None else Shard(*forward.shard),
    )
    return GradientWork(call, _terms(random, problem))


def _terms(random: np.random.Generator, problem: GradientProblem) -> LogitGradient:
    N = problem.forward.N
    terms = {}
    for letter in problem.letters:
        if letter == "L":  # of exp(z - max), so between 0 and 1
            values = random.choice([0.0, 2.0**-12, 0.05, 0.5, 1.0], N)
        else:
            values = random.standard_normal(N) * problem.size
        terms[letter] = torch.from_numpy(np.float32(values))
    for letter, name in problem.planted:
        if letter in terms and N:
            terms[letter][int(random.integers(0, N))] = special(name, torch.float32)
    return LogitGradient(**{LETTERS[letter]: values for letter, values in terms.items()})


def _dense(random: np.random.Generator, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """Normal numbers, some of them 0; fp64 ones must be rounded, and some are beyond the range of float."""
    values = random.standard_normal(shape) * random.choice([0.0, 1.0, 1.0], shape)
    if dtype == torch.float64 and random.integers(0, 4) == 0:
        values = values * 10.0 ** random.choice([0, 0, 0, -40, -46], shape)
    return torch.from_numpy(values).to(dtype)
