"""Problems for the tests of the published bits: what hypothesis draws, and the operands made of it.

Not here: what is expected of them (scalar_bits.py), or any comparison (test_published_bits.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

__all__ = ["DTYPES", "KINDS", "LAYOUTS", "SPECIAL", "Operands", "Problem", "lengths", "operands", "problems", "special"]

# How elements lie in memory, as a function that lays out a contiguous tensor that way.
LAYOUTS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "contiguous": lambda t: t.clone(),
    "transposed": lambda t: t.T.contiguous().T,
    "stepped": lambda t: _inside(t, [2 * n for n in t.shape])[tuple(slice(0, 2 * n, 2) for n in t.shape)].copy_(t),
    "offset": lambda t: _inside(t, [n + 3 for n in t.shape])[tuple(slice(1, n + 1) for n in t.shape)].copy_(t),
    "repeated": lambda t: t[:1].clone().expand(t.shape),  # stride 0: every row is the first one
}
DTYPES: Final = (torch.float32, torch.bfloat16, torch.float16)
KINDS: Final = ("normal", "ternary", "spread", "wild")  # of the elements, see _elements
SPECIAL: Final = ("inf", "-inf", "nan", "0", "-0", "smallest", "subnormal", "normal", "huge", "-huge")


@dataclass(frozen=True)
class Problem:
    """A drawn problem. Everything not named here follows from the seed."""

    seed: int
    N: int
    H: int
    V: int
    valid_vocab: int
    dtype: torch.dtype
    kind: str
    size: float  # of the logits, about
    input_layout: str
    weight_layout: str
    bias: str | None  # its layout
    bias_dtype: torch.dtype
    bias_tail: str | None  # a special value in all columns from a random one on
    planted: tuple[tuple[str, str], ...]  # operand, and the special value put somewhere into it
    scale: float
    softcap: float | None
    temperature: tuple[float, ...] | None  # rows take turns; one value: a tensor of one element
    threads: int
    beyond: tuple[int, int] | None = None  # columns of a larger vocabulary before and after the V columns at hand

    @property
    def shard(self) -> tuple[int, int] | None:
        """Where the columns at hand begin in the larger vocabulary, and how many it has."""
        return None if self.beyond is None else (self.beyond[0], sum(self.beyond) + self.V)


@dataclass(frozen=True)
class Operands:
    input: Tensor  # [N, H]
    weight: Tensor  # [V, H]
    bias: Tensor | None  # [V]
    temperature: Tensor | None  # [1] or [N]
    target: Tensor  # [N]


def lengths(most: int, edges: tuple[int, ...]) -> st.SearchStrategy[int]:
    """0 to `most`, about half of them beside an edge."""
    near = sorted({min(max(edge + step, 0), most) for edge in edges for step in (-1, 0, 1)})
    return st.one_of(st.integers(0, most), st.sampled_from(near))


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """One in six has the grid of 16 wide segments, at a few rows and a short reduction."""
    wide = draw(st.integers(0, 5)) == 5
    V = draw(st.integers(8192, 9000) if wide else lengths(1500, (1, 16, 512, 1024)).filter(bool))
    factor = st.floats(1e-3, 1e3, width=64)  # rounded to float by the operator, so it need not be one
    special_factor = st.sampled_from([0.0, -0.0, -1.0, 1e-45, 1e-39, 1e38, float("inf"), float("nan"), 0.1, 1.0])
    special_cap = special_factor.filter(bool)  # the operator refuses a softcap of 0, and the page has no meaning for it
    temperatures = st.lists(st.floats(0.125, 4, width=32), min_size=1, max_size=40)
    special_temperatures = st.lists(
        st.sampled_from([1.0, 0.0, -0.0, -0.5, float("inf"), float("nan"), 2.0**-149, 2.0**100]),
        min_size=1,
        max_size=3,
    )
    common = st.integers(0, 9).map(lambda n: n < 8)  # the rest: values nobody asks for, which have bits all the same
    return Problem(
        seed=draw(st.integers(0, 2**32 - 1)),
        N=draw(st.integers(0, 3) if wide else lengths(40, (1, 8, 32))),
        H=draw(st.integers(0, 6) if wide else st.one_of(lengths(600, (1, 128, 256, 512)), st.integers(257, 600))),
        V=V,
        valid_vocab=draw(st.one_of(st.just(V), st.integers(1, V))),
        dtype=draw(st.sampled_from(DTYPES)),
        kind=draw(st.sampled_from(KINDS)),
        size=draw(st.sampled_from([1.0, 8.0, 60.0, 1e-3, 1e4, 1e-38, 1e38])),
        input_layout=draw(st.sampled_from(sorted(LAYOUTS))),
        weight_layout=draw(st.sampled_from(sorted(LAYOUTS))),
        bias=draw(st.sampled_from([None, "contiguous", "stepped", "offset"])),
        bias_dtype=draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16])),
        bias_tail=draw(st.sampled_from([None, None, None, "-inf", "inf", "nan", "-0", "-huge"])),
        planted=tuple(
            draw(
                st.lists(st.tuples(st.sampled_from(["input", "weight", "bias"]), st.sampled_from(SPECIAL)), max_size=4)
            )
            if draw(st.booleans())
            else ()
        ),
        scale=draw(st.one_of(st.just(1.0), factor if draw(common) else special_factor)),
        softcap=draw(st.one_of(st.none(), factor if draw(common) else special_cap)),
        temperature=draw(st.one_of(st.none(), (temperatures if draw(common) else special_temperatures).map(tuple))),
        threads=draw(st.integers(1, 3)),
        beyond=draw(st.one_of(st.none(), st.tuples(*[lengths(9000, (512, 1024, 4096))] * 2))),
    )


def operands(problem: Problem) -> Operands:
    """The tensors of a problem, the same in every run."""
    random = np.random.default_rng(problem.seed)
    N, H, V = problem.N, problem.H, problem.V
    input = _tensor(_elements(random, (N, H), problem.kind), problem.dtype)
    weight = _tensor(_elements(random, (V, H), problem.kind) * problem.size / max(H, 1) ** 0.5, problem.dtype)
    bias = None
    if problem.bias is not None:
        # a bias has the dtype of the weight, or is fp32
        bias_dtype = torch.float32 if problem.bias_dtype == torch.float32 else problem.dtype
        bias = _tensor(_elements(random, (V,), problem.kind) * problem.size, bias_dtype)
        if problem.bias_tail is not None:
            bias[int(random.integers(0, V)) :] = special(problem.bias_tail, bias_dtype)
    for name, value in problem.planted:
        tensor = {"input": input, "weight": weight, "bias": bias}[name]
        if tensor is not None and tensor.numel() > 0:
            tensor.view(-1)[int(random.integers(0, tensor.numel()))] = special(value, tensor.dtype)
    temperature = None
    if problem.temperature is not None:
        rows = 1 if len(problem.temperature) == 1 else N
        temperature = torch.tensor(np.resize(np.array(problem.temperature, dtype=np.float32), rows))
    return Operands(
        LAYOUTS[problem.input_layout](input),
        LAYOUTS[problem.weight_layout](weight),
        None if bias is None or problem.bias is None else LAYOUTS[problem.bias](bias),
        temperature,
        torch.from_numpy(random.integers(0, problem.valid_vocab, N)),
    )


def _elements(random: np.random.Generator, shape: tuple[int, ...], kind: str) -> np.ndarray:
    if kind == "ternary":  # many equal logits, and zeros of both signs
        return random.choice([-1.0, -0.0, 0.0, 1.0], shape)
    normal = random.standard_normal(shape)
    if kind == "spread":  # magnitudes over twelve decades
        return normal * 10.0 ** random.uniform(-6, 6, shape)
    if kind == "wild":  # over all of them, beyond the range of float at both ends
        return normal * 10.0 ** random.uniform(-50, 38.5, shape)
    return normal


def _tensor(values: np.ndarray, dtype: torch.dtype) -> Tensor:
    """Rounded to dtype; what is too large becomes its largest number: infinities are planted, not met by chance."""
    largest = torch.finfo(dtype).max
    return torch.from_numpy(np.clip(values, -largest, largest)).to(dtype)


def special(name: str, dtype: torch.dtype) -> float:
    """The number of this dtype that one of SPECIAL names."""
    limits = torch.finfo(dtype)
    named = {
        "smallest": limits.smallest_normal * limits.eps,
        "subnormal": limits.smallest_normal * 0.625,
        "normal": limits.smallest_normal,
        "huge": limits.max,
        "-huge": limits.min,
    }
    return named[name] if name in named else float(name)


def _inside(tensor: Tensor, shape: list[int]) -> Tensor:
    """A larger buffer, NaN where the operand isn't: reading there would be noticed."""
    return torch.full(shape, float("nan"), dtype=tensor.dtype)
