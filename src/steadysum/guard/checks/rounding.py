"""How far rounding alone can take an element of a linear product from its exact value; which elements are farther off.

Not here: sums of many elements (checksum.py), or what follows a product (sampled_rows.py).
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import torch
from torch import Tensor

from steadysum.guard.checks.calls import LinearProduct
from steadysum.kernels.problem import SIXTEEN_BIT

__all__ = ["Exact", "Judged", "Units", "allowed_error", "exact_rows", "judge_elements", "units_of"]

# In units of u sqrt(K) times the sum of the sizes of the terms. A sum of K terms has K rounding errors, each at most u
# times a partial sum, evenly spread: a standard deviation of u sqrt(K / 3) where every partial sum is as large as it
# can be, of a half of that, at most, where terms have both signs, and of 1 / sqrt(3) of it where they add up evenly.
# So this is 3.5 standard deviations of what can't be, and 6 of what can.
CHANCE: Final = 2.0
SMALLEST_NORMAL: Final = 2.0**-126  # of fp32 and bf16: hardware may take what is below for zero
# Reduced precisions that torch.backends has for fp32 products, by their units of rounding.
_REDUCED: Final = {"tf32": 2.0**-11, "bf16": 2.0**-9}
_COLUMNS: Final = 64  # of running sums at a time: 2 MiB of float64 at K = 4096


class Units(NamedTuple):
    """Units of rounding: half the distance from 1 to the next number."""

    sum: float  # of the accumulation
    output: float  # of the result as it is stored
    operand: float  # of operands that hardware rounds before it multiplies; 0: none
    tiny: float  # absolute: what a result may lose where it is stored as a subnormal number
    most: float  # the largest finite result
    most_sum: float  # the largest finite sum
    partial: float = 0.0  # of parts of a sum that hardware adds up in 16 bits; 0: it doesn't


class Exact(NamedTuple):
    """Rows of a product in float64."""

    value: Tensor  # [n, v]
    size: Tensor  # [n, v] the sum of the sizes of its terms: |x| . |w| + |b|
    stored: Tensor  # [n, v] the sizes of what is rounded when it is stored: |value|, and |b| if that is added to it


class Judged(NamedTuple):
    """Elements against their bounds."""

    exact: Tensor  # [n, v] float64
    fault: Tensor  # [n, v] bool
    error: Tensor  # [n, v] float64
    allowed: Tensor  # [n, v] float64


def units_of(product: LinearProduct) -> Units:
    """The units of a product by its dtypes, its device, and torch's settings of reduced precision."""
    stored = torch.finfo(product.output.dtype)
    wide = torch.finfo(torch.float64 if product.output.dtype == torch.float64 else torch.float32)
    return Units(
        sum=wide.eps / 2,
        output=stored.eps / 2,
        operand=_reduced(product),
        tiny=stored.smallest_normal * stored.eps / 2,
        most=stored.max,
        most_sum=wide.max,
        partial=_of_partials(product),
    )


def _reduced(product: LinearProduct) -> float:
    if product.output.dtype in SIXTEEN_BIT or product.output.dtype == torch.float64:
        return 0.0
    backends = torch.backends
    backend = backends.mkldnn if product.input.device.type == "cpu" else backends.cuda
    return _REDUCED.get(getattr(getattr(backend, "matmul", None), "fp32_precision", "none"), 0.0)


def _of_partials(product: LinearProduct) -> float:
    """GPUs may cut a sum into parts, and add these up in 16 bits, unless torch is told otherwise."""
    dtype = product.output.dtype
    if dtype not in SIXTEEN_BIT or product.output.device.type == "cpu":
        return 0.0
    name = "bf16" if dtype == torch.bfloat16 else "fp16"
    allowed = getattr(torch.backends.cuda.matmul, f"allow_{name}_reduced_precision_reduction", True)
    return torch.finfo(dtype).eps / 2 if allowed else 0.0


def exact_rows(
    input: Tensor,  # [n, K]
    weight: Tensor,  # [v, K]
    bias: Tensor | None,  # [v]
) -> Exact:
    """The product in float64."""
    x, w = input.double(), weight.double()
    value, size = x @ w.T, x.abs() @ w.abs().T
    if bias is None:
        return Exact(value, size, value.abs())
    b = bias.double()
    value = value + b
    return Exact(value, size + b.abs(), value.abs() + b.abs())


def allowed_error(exact: Exact, hidden: int, units: Units, largest: float) -> Tensor:  # [n, v]
    """What rounding in any order may do to each element, if errors are independent (judge_elements looks at others).

    The sum: min(K, 2 sqrt(K)) u times the sizes of its terms, and operands that are rounded first; parts that are added
    up in 16 bits: each once, and once more on the way. The result: once
    where it is stored, and once more where a bias is added to what was stored. And what is lost of subnormal numbers:
    a result's, a product's, or an operand's, which counts by the largest operand beside it.

    Source: Higham and Mary, "A new approach to probabilistic rounding error analysis", SIAM J. Sci. Comput. 41, 2019.
    """
    terms = hidden + 1
    per_size = min(terms, CHANCE * math.sqrt(terms)) * units.sum + 2 * units.operand + 2 * units.partial
    if units.sum < 2.0**-50:
        per_size *= 2  # the float64 value to compare with has errors of the same size
    lost = units.tiny + terms * SMALLEST_NORMAL * (1 + largest)
    return exact.size * per_size + exact.stored * (2 * units.output) + lost


def judge_elements(
    input: Tensor,  # [n, K]
    weight: Tensor,  # [v, K]
    bias: Tensor | None,  # [v]
    output: Tensor,  # [n, v]
    units: Units,
) -> Judged:
    """Which elements of an output can't be the product of these operands.

    An element whose operands hold NaN or infinity is none. Where the exact value is too large for the result, it has to
    be infinite; where a partial sum may be too large, it can be anything. Errors that aren't independent (a constant
    added a thousand times loses the same each time) may add up to u times the sum of all partial sums; it is formed
    where the first bound doesn't hold.
    """
    hidden = weight.shape[1]
    exact = exact_rows(input, weight, bias)
    largest = sum(float(each.abs().nan_to_num(posinf=0.0).max()) if each.numel() else 0.0 for each in (input, weight))
    allowed = allowed_error(exact, hidden, units, largest)
    seen = output.double()
    error = (seen - exact.value).abs()
    clean = input.isfinite().all(dim=1)[:, None] & weight.isfinite().all(dim=1)
    if bias is not None:
        clean = clean & bias.isfinite()
    may_overflow = exact.value.abs() + allowed >= units.most * (1 - units.output)
    right = (error <= allowed) | (may_overflow & seen.isinf() & (seen.sign() == exact.value.sign()))
    fault = clean & ~right & ~(exact.size >= units.most_sum)
    allowed = allowed.clone()
    near = fault & (error <= allowed + exact.size * ((hidden + 1) * units.sum))
    for row, columns in _by_row(near):
        for some in torch.split(columns, _COLUMNS):
            partial = (input[row].double() * weight[some].double()).cumsum(dim=1).abs().sum(dim=1)
            if bias is not None:
                partial = partial + bias[some].double().abs() * hidden
            allowed[row, some] += partial * units.sum
            fault[row, some] = error[row, some] > allowed[row, some]
    return Judged(exact.value, fault, error, allowed)


def _by_row(mask: Tensor) -> list[tuple[int, Tensor]]:
    """Each row with a mark, and the columns marked in it."""
    rows = mask.any(dim=1).nonzero().flatten().tolist()
    return [(row, mask[row].nonzero().flatten()) for row in rows]
