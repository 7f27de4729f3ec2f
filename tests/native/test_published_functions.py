"""The native kernel's elementary functions and its merge have the bits, and the accuracy, that docs/bits.md publishes.

Every comparison is of bits; a NaN equals any other NaN only where the page promises no bits of it. Not here: whole
problems (test_published_bits.py).
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from decimal import Decimal
from types import ModuleType

import numpy as np
import pytest
from numpy.typing import NDArray

from .floats import around, assert_same_bits, every, f32, random_floats
from .scalar_bits import Floats, Partial, Scalar, canonical, exact_fma

SMALLEST_EXP = -87.3  # below it exp is 0
# In ulp of a float: NumPy's float64 functions are good to one of theirs, 2^-29 of these. Twice that.
FLOAT64_ULP = 2.0**-28


# --- The second implementation's own footing --------------------------------------------------------------------------
def test_the_c_librarys_fma_is_the_exact_one(scalar: Scalar) -> None:
    random = np.random.default_rng(1)
    a, b = (random_floats(random, 6000) for _ in range(2))
    # c near -a*b, where the sum cancels; near an ulp of a*b, where ties are; and anything
    product = np.float64(a) * np.float64(b)
    with np.errstate(over="ignore"):
        c = f32(random.choice([-1.0, 1.0, 2.0**-24, -(2.0**-25), 2.0**24], a.size) * product)
    c = np.where(random.random(a.size) < 0.3, random_floats(random, a.size), c)
    keep = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    a, b, c = a[keep], b[keep], c[keep]
    exact = f32([exact_fma(*map(float, terms)) for terms in zip(a, b, c, strict=True)])
    assert_same_bits(scalar.fma(a, b, c), exact)
    assert np.isinf(exact).any()
    assert ((exact != 0) & (np.abs(exact) < np.finfo(np.float32).tiny)).sum() > 50
    assert np.signbit(exact[exact == 0]).any()


# --- Elementwise ------------------------------------------------------------------------------------------------------
TINY = float(np.finfo(np.float32).tiny)  # the smallest normal number
LARGEST = float(np.finfo(np.float32).max)


def test_exp_has_the_published_bits(native: ModuleType, scalar: Scalar) -> None:
    # every 601st of the floats in [-88, -0], all those next to the cut and to 0, and what lies beyond
    x = np.concatenate(
        [
            every(601, -0.0, -88),
            around(SMALLEST_EXP, 2000),
            around(-0.0, 2000),
            f32([0, -88, -1e3, -1e30, -3.4e38, -np.inf, np.nan, -1e-38, -1e-45]),
            *(around(-(n + 0.5) * math.log(2), 8) for n in range(126)),  # where n of the reduction changes
        ]
    )
    x = x[~(x > 0)]
    assert_same_bits(canonical(elementwise(native.exp, x)), canonical(scalar.exp(x)))
    below, above = np.nextafter(np.float32(SMALLEST_EXP), np.float32(-np.inf)), SMALLEST_EXP
    assert_same_bits(elementwise(native.exp, f32([below, -0.0, 0.0])), f32([0, 1, 1]))
    assert elementwise(native.exp, f32([above]))[0] > TINY


def test_log_has_the_published_bits(native: ModuleType, scalar: Scalar) -> None:
    x = np.concatenate(
        [
            every(1201, 0, np.inf),
            every(601, 0.5, 2),
            *(around(edge, 2000) for edge in (0.0, TINY, 0.5**0.5, 1.0, 2**0.5)),
            f32([np.inf, -np.inf, np.nan, -1, -1e-45, -0.0, LARGEST]),
        ]
    )
    assert_same_bits(canonical(elementwise(native.log, x)), canonical(scalar.log(x)))
    edges = elementwise(native.log, f32([0.0, -0.0, 1.0, np.inf]))
    assert_same_bits(edges, f32([-np.inf, -np.inf, 0.0, np.inf]))
    assert np.isnan(elementwise(native.log, f32([-1e-45, -np.inf, np.nan]))).all()


def test_tanh_has_the_published_bits(native: ModuleType, scalar: Scalar) -> None:
    x = np.concatenate(
        [
            every(1201, 0, np.inf),
            every(601, 2.0**-14, 16),
            *(around(edge, 2000) for edge in (0.0, TINY, 0.625, 43.65, 9.01)),
            f32([np.inf, np.nan, LARGEST]),
        ]
    )
    x = np.concatenate([x, -x])
    assert_same_bits(canonical(elementwise(native.tanh, x)), canonical(scalar.tanh(x)))


@pytest.mark.parametrize("count", [0, 1, 7, 8, 15, 16, 17, 33])
def test_elementwise_bits_do_not_depend_on_the_place_in_the_array(
    native: ModuleType, scalar: Scalar, count: int
) -> None:
    x = -np.abs(random_floats(np.random.default_rng(count), count))
    assert_same_bits(elementwise(native.exp, x), scalar.exp(x))
    assert_same_bits(elementwise(native.tanh, x), scalar.tanh(x))
    assert_same_bits(elementwise(native.log, -x), scalar.log(-x))


def test_exp_is_at_most_one_ulp_from_the_true_value(native: ModuleType) -> None:
    x = every(601, -0.0, SMALLEST_EXP)
    assert worst_error(native.exp, np.exp, Decimal.exp, x) <= 1


def test_log_is_at_most_one_ulp_from_the_true_value(native: ModuleType) -> None:
    x = np.concatenate(
        [
            every(1201, 1e-45, LARGEST),
            every(601, 0.5, 2),
        ]
    )
    assert worst_error(native.log, np.log, Decimal.ln, x[x != 1]) <= 1  # log(1) = 0 has no ulp; it is exact, see above


def test_tanh_is_at_most_two_ulp_from_the_true_value(native: ModuleType) -> None:
    x = np.concatenate([every(601, 2.0**-14, 16), every(1201, 1e-45, 1)])
    assert worst_error(native.tanh, np.tanh, decimal_tanh, np.concatenate([x, -x])) <= 2


# --- Fold -------------------------------------------------------------------------------------------------------------
MAXIMA = f32([-np.inf, np.inf, np.nan, 0.0, -0.0, 1.0, -86.4, -87.3, 1e-45, -1e-45, 3e38, -3e38])
SUMS = f32([0.0, 1.0, 1.75, 512.0, 3e38, np.inf, np.nan])
WEIGHTED = f32([0.0, -0.0, -3.5, -1e-45, -3e38, -np.inf, np.nan])


def test_merging_special_partials_has_the_published_bits(native: ModuleType, scalar: Scalar) -> None:
    every_partial = [axis.ravel() for axis in np.meshgrid(MAXIMA, SUMS, WEIGHTED)]
    first, second = (index.ravel() for index in np.indices((every_partial[0].size,) * 2))
    a, b = (Partial(*(column[index] for column in every_partial)) for index in (first, second))
    assert_merged(native, scalar, a, b)


@pytest.mark.parametrize("count", [0, 1, 7, 17, 100_003])
def test_merging_random_partials_has_the_published_bits(native: ModuleType, scalar: Scalar, count: int) -> None:
    random = np.random.default_rng(3)

    def partial() -> Partial:
        return Partial(
            f32(random.uniform(-60, 60, count)),
            f32(random.uniform(1, 512, count)),
            f32(random.uniform(-200, 0, count)),
        )

    assert_merged(native, scalar, partial(), partial())


def assert_merged(native: ModuleType, scalar: Scalar, a: Partial, b: Partial) -> None:
    expected = Partial(*map(canonical, scalar.merge(a, b)))
    found = Partial(*(np.empty_like(a.max) for _ in Partial._fields))
    native.merge_weighted(*a, *b, *found)
    for name, values, wanted in zip(Partial._fields, found, expected, strict=True):
        assert_same_bits(canonical(values) if name == "weighted_sum" else values, wanted, name)
    native.merge(a.max, a.sum_exp, b.max, b.sum_exp, found.max, found.sum_exp)
    assert_same_bits(found.max, expected.max, "max of merge")
    assert_same_bits(found.sum_exp, expected.sum_exp, "sum_exp of merge")


# --- Helpers ----------------------------------------------------------------------------------------------------------
def elementwise(function: Callable[[Floats, Floats], None], x: Floats) -> Floats:
    out = np.full_like(x, 12345.0)
    function(x, out)
    return out


def worst_error(
    function: Callable[[Floats, Floats], None],
    wide: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    exact: Callable[[Decimal], Decimal],
    x: Floats,
) -> float:
    """The largest distance to the true value, in units in the last place of the true value.

    Found with float64 functions, and measured again in decimal arithmetic at the hundred worst places, so that the
    errors of float64 matter only for which places those are (and count fully against the bound at all others).
    """
    found, true = elementwise(function, x).astype(np.float64), wide(x.astype(np.float64))
    errors = np.abs(found - true) / ulp(true)
    worst = np.argsort(errors)[-100:]
    with decimal.localcontext(prec=100):
        measured = [
            float(abs(Decimal(float(found[place])) - exact(Decimal(float(x[place]))))) / float(ulp(true[place]))
            for place in worst
        ]
    return max(*measured, float(np.delete(errors, worst).max()) + FLOAT64_ULP)


def decimal_tanh(x: Decimal) -> Decimal:
    power = (2 * x).exp()
    return (power - 1) / (power + 1)


def ulp(value: NDArray[np.float64]) -> NDArray[np.float64]:
    """The distance of neighbouring floats at this value: 2^(e - 23) in [2^e, 2^(e+1)), and 2^-149 at least."""
    _, exponent = np.frexp(np.abs(value))
    spacing: NDArray[np.float64] = np.ldexp(1.0, np.maximum(exponent - 24, -149))
    return spacing
