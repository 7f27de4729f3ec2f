"""The arithmetic of the units: a tile's product, its statistics, their merge, and the checks of policy `verified`.

Products are torch's, on one thread, so that their bits are the same in every call; the rest is fp32 in numpy.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = [
    "Checksum",
    "Partial",
    "checksum",
    "combine",
    "identity",
    "merge",
    "pack_mask",
    "product",
    "product_is_right",
    "rounded",
    "statistics",
]

Floats = NDArray[np.float32]


class Partial(NamedTuple):
    """A tile's, or several tiles', statistics of some rows."""

    max: Floats  # [rows]
    sum: Floats  # [rows]
    target_logit: Floats  # [rows]; 0 where the target is in none of the tiles' columns


def identity(rows: int) -> Partial:
    """The Partial of no columns."""
    return Partial(np.full(rows, -np.inf, np.float32), np.zeros(rows, np.float32), np.zeros(rows, np.float32))


def product(
    input: Tensor,  # [rows, H]
    weight: Tensor,  # [columns, H]
) -> Floats:
    """input @ weight.T, [rows, columns]."""
    return torch.mm(input, weight.t()).numpy()


def rounded(logits: Floats, dtype: torch.dtype) -> Floats:
    """Logits as a chip has them that keeps them in 16 bits."""
    return torch.from_numpy(logits).to(dtype).float().numpy()


def statistics(
    logits: Floats,  # [rows, columns]
    target: NDArray[np.int64],  # [rows], column of the target in this tile; any other value: it isn't here
) -> Partial:
    """A tile's statistics."""
    largest = logits.max(axis=1)
    origin = largest[:, None]
    with np.errstate(all="ignore"):
        if np.isfinite(largest).all():
            terms = logits - origin
        else:  # -inf rows are measured from 0; logits equal to the max, +inf ones too, are at distance 0
            origin = np.where(origin == -np.inf, np.float32(0), origin)
            terms = np.where(logits == origin, np.float32(0), logits - origin)
        np.exp(terms, out=terms)
        total = terms.sum(axis=1)
    found = np.zeros_like(largest)
    here = np.flatnonzero((target >= 0) & (target < logits.shape[1]))
    found[here] = logits[here, target[here]]
    return Partial(largest, total, found)


def merge(first: Partial, second: Partial) -> Partial:
    """The statistics of both sets of columns."""
    largest = np.maximum(first.max, second.max)
    with np.errstate(all="ignore"):
        factors = [np.where(part.max == largest, np.float32(1), np.exp(part.max - largest)) for part in (first, second)]
        total = first.sum * factors[0] + second.sum * factors[1]
    return Partial(largest, total, first.target_logit + second.target_logit)


def combine(
    maxima: Floats,  # [partials, rows]
    sums: Floats,  # [partials, rows]
) -> tuple[Floats, Floats]:
    """Maximum and sum, [rows] each, of all columns: M = max m, S = the sum of s exp(m - M), in the partials' order."""
    largest = maxima.max(axis=0)
    with np.errstate(all="ignore"):
        factors = np.exp(maxima - largest)
        factors[maxima == largest] = 1.0
        return largest, (sums * factors).sum(axis=0)


# Rounding errors of a row's sum of logits, of which those of different columns are independent as a rule, behave as
# independent ones: |error| <= LAMBDA sqrt(H + columns) u |x| |W|, with the Euclidean norm of the row and the Frobenius
# norm of the tile's weight, but for odds of 2 exp(-LAMBDA^2 / 2), 3e-8. Where they aren't (equal columns), or numbers
# are too large or too small for it, a sum is further off though nothing is wrong: such rows are judged by element.
# Source: Higham and Mary, "A new approach to probabilistic rounding error analysis", SIAM J. Sci. Comput. 41 (2019).
_LAMBDA: Final = 6.0
_UNIT: Final = 2.0**-24
_SMALLEST: Final = 2.0**-149
_LARGEST: Final = 3.4e38  # a sum of terms of this size in all may overflow in fp32


class Checksum(NamedTuple):
    """What is known of a tile's weight [columns, H]."""

    weight: Tensor  # [columns, H], itself
    odd: Tensor | None  # [columns], those that hold NaN or infinity; None: there are none
    sums: Tensor  # [H], fp64, over the others
    norm: float  # of these, Frobenius


def checksum(weight: Tensor) -> Checksum:
    """The checksum of a tile's weight [columns, H]."""
    odd = ~weight.isfinite().all(dim=1)
    wide = weight.double().masked_fill(odd[:, None], 0.0)
    return Checksum(weight, odd if bool(odd.any()) else None, wide.sum(0), float(wide.norm()))


def product_is_right(
    input: Tensor,  # [rows, H]
    logits: Floats,  # [rows, columns]
    known: Checksum,
    stored: torch.dtype | None = None,
) -> bool:
    """Whether a product is that of its operands: each row has the sum that the weight's checksum gives it.

    Rows whose sum is further off than rounding explains as a rule are judged element by element, in float64 and with
    the bound that no rounding exceeds; so are columns of weight, and rows of input, that hold NaN or infinity. A fault
    that moves a row's sum by no more than rounding may move it isn't seen.

    Args:
        input, logits: the operand's rows, and what is to be judged.
        known: of the tile's weight.
        stored: the 16-bit type that logits have been rounded to, if they have.

    Source: Huang and Abraham, "Algorithm-based fault tolerance for matrix operations", IEEE Trans. Comput. C-33 (1984).
    """
    wide, seen = input.double(), torch.from_numpy(logits)
    finite = seen if known.odd is None else seen.masked_fill(known.odd, 0.0)
    rounding = (input.shape[1] + logits.shape[1]) ** 0.5 * _UNIT * known.norm * wide.norm(dim=1)
    if stored is not None:
        rounding += _unit_of(stored) * finite.double().norm(dim=1)
    off = (finite.sum(dim=1, dtype=torch.float64) - wide @ known.sums).abs()
    suspect = ~(off <= _LAMBDA * rounding)  # NaN is
    if bool(suspect.any()) and not _elements_are_right(wide[suspect], known.weight, seen[suspect], stored):
        return False
    return known.odd is None or _elements_are_right(wide, known.weight[known.odd], seen[:, known.odd], stored)


def _elements_are_right(
    x: Tensor,  # [rows, H], fp64
    weight: Tensor,  # [columns, H]
    seen: Tensor,  # [rows, columns]
    stored: torch.dtype | None,
) -> bool:
    w, logits = weight.double(), seen.double()
    exact, size = x @ w.T, x.abs() @ w.abs().T
    steps = x.shape[1] + 1
    largest = _LARGEST if stored is None else float(torch.finfo(stored).max)
    bound = steps * _UNIT * size + steps * _SMALLEST
    if stored is not None:
        bound += _unit_of(stored) * (exact.abs() + bound) + torch.finfo(stored).smallest_normal * _unit_of(stored)
    near = exact.isfinite() & ((logits - exact).abs() <= bound)
    same = (logits == exact) | (logits.isnan() & exact.isnan())
    overflows = size.isfinite() & ~(size * (1 + 2 * _unit_of(stored)) < largest)
    return bool((near | same | overflows).all())


def _unit_of(stored: torch.dtype | None) -> float:
    """Of rounding to a 16-bit type; 0 for none."""
    return 0.0 if stored is None else torch.finfo(stored).eps / 2


def pack_mask(masked: NDArray[np.bool_], pad: int) -> NDArray[Any]:
    """Bits, the first row's lowest; bits beyond the last row are `pad`."""
    packed = np.packbits(masked, bitorder="little")
    if pad and masked.size % 8:
        packed[-1] |= np.uint8((0xFF << (masked.size % 8)) & 0xFF)
    return packed
