"""The published bits a second time: an implementation written from docs/bits.md alone, without a look at native/.

It reads like that page: loops in scalar_bits.c, the grid and the fold here. Its fused multiply-add is the C library's,
which `exact_fma` (rational arithmetic) checks. Not here: comparisons (test_published_bits.py), or anything fast.
"""

from __future__ import annotations

import ctypes
import math
import subprocess
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import reduce
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Coefficients",
    "Floats",
    "Partial",
    "RowSums",
    "Scalar",
    "canonical",
    "compile_loops",
    "exact_fma",
    "exact_product",
    "grid",
    "to_floats",
]

Floats = NDArray[np.float32]
Node = TypeVar("Node")

CANONICAL_NAN: Final = np.uint32(0x7FC00000)
ROUNDING: Final = ("nearest", "up", "down", "zero")
FLAGS: Final = ("-std=c11", "-O1", "-ffp-contract=off", "-fPIC", "-shared")


class Partial(NamedTuple):
    """One element per row: the maximum, the sum of exp(z - max), and the sum of exp(z - max) * (z - max)."""

    max: Floats
    sum_exp: Floats
    weighted_sum: Floats


class RowSums(NamedTuple):
    """One element per row; sums over a dense matrix are None without one."""

    ties: Floats
    column_sum: Floats
    dense_total: Floats | None = None
    dense_sum: Floats | None = None
    dense_exp: Floats | None = None


class Coefficients(NamedTuple):
    """Of the gradient of the logits [N], by the letters of the page; None: left out. C needs A, as K does."""

    A: Floats | None = None
    K: Floats | None = None
    C: Floats | None = None
    U: Floats | None = None
    D: Floats | None = None
    T: Floats | None = None
    B: Floats | None = None
    L: Floats | None = None


Beyond = tuple[int, int]  # columns of the vocabulary before and after those at hand
WHOLE: Final[Beyond] = (0, 0)


class Scalar:
    """The functions of docs/bits.md on arrays of floats; holds the compiled loops."""

    def __init__(self, library: Path) -> None:
        self._loops = ctypes.CDLL(str(library))

    # --- Elementwise --------------------------------------------------------------------------------------------------
    def fma(self, a: Floats, b: Floats, c: Floats) -> Floats:
        return self._each("fma_each", a, b, c)

    def exp(self, x: Floats) -> Floats:
        return self._each("exp_each", x)

    def tanh(self, x: Floats) -> Floats:
        return self._each("tanh_each", x)

    def log(self, x: Floats) -> Floats:
        return self._each("log_each", x)

    def logprob(self, target_logit: Floats, max: Floats, sum_exp: Floats) -> Floats:
        return self._each("logprob", target_logit, max, sum_exp)

    def entropy(self, found: Partial) -> Floats:
        return self._each("entropy", found.sum_exp, found.weighted_sum)

    # --- "Logits" -----------------------------------------------------------------------------------------------------
    def logits(
        self,
        input: Floats,  # [N, H]
        weight: Floats,  # [V, H]
        bias: Floats | None = None,  # [V]
        scale: float = 1.0,
        softcap: float | None = None,
        temperature: Floats | None = None,  # [1] or [N]
    ) -> Floats:  # [N, V]
        """Logits of all columns; masking is left to those who use them."""
        (N, H), V = input.shape, weight.shape[0]
        out = np.empty((N, V), dtype=np.float32)
        if temperature is not None:
            temperature = np.ascontiguousarray(np.broadcast_to(temperature, (N,)))
        self._loops.logits(
            *map(ctypes.c_int64, (N, H, V)),
            _pointer(input),
            _pointer(weight),
            _pointer_or_null(bias),
            ctypes.c_float(scale),  # ctypes converts a double as C does: rounded to nearest
            None if softcap is None else ctypes.byref(ctypes.c_float(softcap)),
            _pointer_or_null(temperature),
            _pointer(out),
        )
        return out

    # --- "The grid", "A tile", "Fold" ---------------------------------------------------------------------------------
    def statistics(self, logits: Floats, valid_vocab: int, beyond: Beyond = WHOLE) -> Partial:
        """max, sum_exp and weighted sum of each row of logits [N, V], of which the first valid_vocab columns count."""
        V = logits.shape[1]
        segments = [
            reduce(self.merge, [self._tile(logits, start, min(stop, valid_vocab)) for start, stop in tiles])
            for tiles in grid(V, beyond)
        ]
        return Partial(*map(canonical, _tree(segments, self.merge)))

    def merge(self, a: Partial, b: Partial) -> Partial:
        """a ⊕ b."""
        out = Partial(*(np.empty_like(a.max) for _ in Partial._fields))
        self._loops.merge(ctypes.c_int64(a.max.size), *map(_pointer, (*a, *b, *out)))
        return out

    def _tile(self, logits: Floats, start: int, stop: int) -> Partial:
        N, V = logits.shape
        out = Partial(*(np.empty(N, dtype=np.float32) for _ in Partial._fields))
        sizes = (N, V), (start, _columns(start, stop))
        self._loops.tile(
            *map(ctypes.c_int64, sizes[0]), _pointer(logits), *map(ctypes.c_int64, sizes[1]), *map(_pointer, out)
        )
        return out

    # --- "Derived values" ---------------------------------------------------------------------------------------------
    def softmax(self, logits: Floats, max: Floats, sum_exp: Floats) -> Floats:
        out = np.empty_like(logits)
        self._loops.softmax(*map(ctypes.c_int64, logits.shape), *map(_pointer, (logits, max, sum_exp, out)))
        return out

    # --- "Gradients" --------------------------------------------------------------------------------------------------
    def row_sums(
        self,
        logits: Floats,  # [N, V]
        valid_vocab: int,
        max: Floats,  # [N]
        column_weight: Floats | None = None,  # [V]
        dense: Floats | None = None,  # [N, V]
        beyond: Beyond = WHOLE,
    ) -> RowSums:
        N, V = logits.shape

        def tile(start: int, stop: int) -> RowSums:
            out = [np.empty(N, dtype=np.float32) for _ in RowSums._fields]
            self._loops.tile_sums(
                *map(ctypes.c_int64, (N, V)),
                _pointer(logits),
                *map(ctypes.c_int64, (start, _columns(start, stop))),
                *map(_pointer_or_null, (max, column_weight, dense)),
                *map(_pointer, out),
            )
            return RowSums(*out[: 2 if dense is None else 5])

        def add(a: RowSums, b: RowSums) -> RowSums:
            return RowSums(*(None if x is None or y is None else _sum(x, y) for x, y in zip(a, b, strict=True)))

        cut = grid(V, beyond)
        segments = [reduce(add, [tile(start, min(stop, valid_vocab)) for start, stop in tiles]) for tiles in cut]
        found = _tree(segments, add)
        # "A tile": with a NaN all sums are NaN, and ties are carried with the partials.
        return found._replace(ties=np.where(np.isnan(max), np.float32(np.nan), found.ties))

    def logit_gradient(
        self,
        logits: Floats,  # [N, V]
        valid_vocab: int,
        max: Floats,  # [N]
        coefficients: Coefficients,
        column_weight: Floats | None = None,  # [V]
        dense: Floats | None = None,  # [N, V]
        target: NDArray[np.int64] | None = None,  # [N]
        scale: float = 1.0,
        softcap: float | None = None,
        temperature: Floats | None = None,  # [1] or [N]
    ) -> Floats:  # [N, V]
        """G; masked columns are NaN."""
        N, V = logits.shape
        out = np.full((N, V), np.nan, dtype=np.float32)
        if temperature is not None:
            temperature = np.ascontiguousarray(np.broadcast_to(temperature, (N,)))
        letters = (ctypes.c_void_p * len(coefficients))(*map(_pointer_or_null, coefficients))
        self._loops.logit_gradient(
            *map(ctypes.c_int64, (N, V, valid_vocab)),
            *map(_pointer, (logits, max)),
            ctypes.byref(letters),
            *map(_pointer_or_null, (column_weight, dense)),
            None if target is None else ctypes.c_void_p(target.ctypes.data),
            ctypes.c_float(scale),
            None if softcap is None else ctypes.byref(ctypes.c_float(softcap)),
            _pointer_or_null(temperature),
            _pointer(out),
        )
        return out

    def input_gradient(
        self,
        logit_gradient: Floats,  # [N, V]
        weight: Floats,  # [V, H]
        valid_vocab: int,
        beyond: Beyond = WHOLE,
    ) -> Floats:  # [N, H]
        (N, V), H = logit_gradient.shape, weight.shape[1]

        def segment(start: int, stop: int) -> Floats:
            out = np.empty((N, H), dtype=np.float32)
            self._loops.segment_input_gradient(
                *map(ctypes.c_int64, (N, H, V)),
                *map(_pointer, (logit_gradient, weight)),
                *map(ctypes.c_int64, (start, _columns(start, stop))),
                _pointer(out),
            )
            return out

        return _tree([segment(tiles[0][0], min(tiles[-1][1], valid_vocab)) for tiles in grid(V, beyond)], _sum)

    def weight_gradient(self, logit_gradient: Floats, input: Floats, valid_vocab: int) -> Floats:  # [V, H]
        (N, V), H = logit_gradient.shape, input.shape[1]
        out = np.zeros((V, H), dtype=np.float32)
        sizes = map(ctypes.c_int64, (N, H, V, valid_vocab))
        self._loops.weight_gradient(*sizes, *map(_pointer, (logit_gradient, input, out)))
        return out

    def bias_gradient(self, logit_gradient: Floats, valid_vocab: int) -> Floats:  # [V]
        out = np.zeros(logit_gradient.shape[1], dtype=np.float32)
        sizes = map(ctypes.c_int64, (*logit_gradient.shape, valid_vocab))
        self._loops.bias_gradient(*sizes, *map(_pointer, (logit_gradient, out)))
        return out

    # --- A caller's floating-point mode: for tests, no part of the page -----------------------------------------------
    def set_rounding(self, mode: str) -> None:
        """Of this thread: one of ROUNDING."""
        assert self._loops.set_rounding(ROUNDING.index(mode)) == 0

    def rounding(self) -> str:
        return ROUNDING[self._loops.rounding()]

    def _each(self, name: str, *arrays: Floats) -> Floats:
        out = np.empty_like(arrays[0])
        getattr(self._loops, name)(ctypes.c_int64(out.size), *map(_pointer, (*arrays, out)))
        return out


def grid(V: int, beyond: Beyond = WHOLE) -> list[list[tuple[int, int]]]:
    """For each segment of V columns its tiles, each as (first column, one past the last).

    The V columns are all of the vocabulary but those beyond them, which decide the segments with them ("Shards").
    """
    whole = beyond[0] + V + beyond[1]
    width = math.ceil(whole / 16) if whole >= 8192 else 512
    segments = [(first - beyond[0], first - beyond[0] + width) for first in range(0, whole, width)]
    segments = [(max(first, 0), min(stop, V)) for first, stop in segments if stop > 0 and first < V]
    return [[(start, min(start + 512, stop)) for start in range(first, stop, 512)] for first, stop in segments]


def _columns(start: int, stop: int) -> int:
    """How many a tile or segment has; none where it is masked, and so stops before it starts."""
    return max(stop - start, 0)


def _tree(leaves: Sequence[Node], join: Callable[[Node, Node], Node], most: int = 16) -> Node:
    """The node over at most `most` leaves, of which the first one exists: those that don't are on the right."""
    if most == 1:
        return leaves[0]
    left = _tree(leaves[: most // 2], join, most // 2)
    right = leaves[most // 2 :]
    return join(left, _tree(right, join, most // 2)) if right else left


def _sum(a: Floats, b: Floats) -> Floats:
    with np.errstate(all="ignore"):  # infinities and NaN are among the values
        return np.add(a, b, dtype=np.float32)


def to_floats(values: NDArray[Any], bfloat16: bool = False) -> Floats:
    """Elements as floats, C-contiguous: fp64 rounded, others exact; a bfloat16 array comes as its 16-bit integers."""
    if bfloat16:
        return (np.ascontiguousarray(values).view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    with np.errstate(over="ignore"):  # an fp64 element may be too large
        return np.ascontiguousarray(values, dtype=np.float32)


def canonical(values: Floats) -> Floats:
    """The same values, every NaN being the one of the page."""
    return np.where(np.isnan(values), CANONICAL_NAN, values.view(np.uint32)).view(np.float32)


def compile_loops(compiler: str, folder: Path) -> Scalar:
    """Compile scalar_bits.c into this folder. Raises CalledProcessError with the compiler's messages printed."""
    library = folder / "scalar_bits.so"
    source = Path(__file__).with_suffix(".c")
    subprocess.run([compiler, *FLAGS, "-o", str(library), str(source), "-lm"], check=True)
    return Scalar(library)


# --- The fused multiply-add, exactly ----------------------------------------------------------------------------------
def exact_fma(a: float, b: float, c: float) -> float:
    """a * b + c of three finite floats, rounded once to binary32, ties to even; in rational arithmetic."""
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:  # an exact zero is +0, unless both terms are -0
        product_sign = math.copysign(1, a) * math.copysign(1, b)
        both_negative_zeros = Fraction(a) * Fraction(b) == 0 and product_sign < 0 and math.copysign(1, c) < 0
        return -0.0 if both_negative_zeros else 0.0
    quantum = Fraction(2) ** (max(_exponent(exact), -126) - 23)
    rounded = round(exact / quantum) * quantum  # round() of a Fraction: to nearest, ties to even
    magnitude = math.inf if abs(rounded) >= Fraction(2) ** 128 else float(abs(rounded))
    return math.copysign(magnitude, exact)


def exact_product(input: Floats, weight: Floats) -> Floats:
    """Step 1 of "Logits" with `exact_fma`, in plain Python; for tiny problems."""
    (N, H), V = input.shape, weight.shape[0]
    out = np.zeros((N, V), dtype=np.float32)
    for i in range(N):
        for j in range(V):
            sums = []
            for first in range(0, H, 128):
                c = 0.0
                for k in range(first, min(first + 128, H)):
                    c = exact_fma(float(input[i, k]), float(weight[j, k]), c)
                sums.append(np.float32(c))
            for index, c32 in enumerate(sums):
                out[i, j] = c32 if index == 0 else out[i, j] + c32
    return out


def _exponent(value: Fraction) -> int:
    """The e with 2^e <= |value| < 2^(e+1)."""
    e = abs(value.numerator).bit_length() - value.denominator.bit_length()
    return e if abs(value) >= Fraction(2) ** e else e - 1


def _pointer(array: NDArray[Any]) -> ctypes.c_void_p:
    assert array.dtype == np.float32, array.dtype
    assert array.flags.c_contiguous, array.strides
    return ctypes.c_void_p(array.ctypes.data)


def _pointer_or_null(array: NDArray[Any] | None) -> ctypes.c_void_p | None:
    return None if array is None else _pointer(array)
