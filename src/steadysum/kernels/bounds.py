"""How far a kernel's results may be from float64 by rounding alone: a bound for each logit, and for all made of them.

With u for one rounding, n of them one after the other change a value by at most n u / (1 - n u) of its size (Higham,
"Accuracy and Stability of Numerical Algorithms", lemma 3.1); the size of a sum is that of its terms' absolute values.
No bound leans on luck: beyond one, something else than rounding has happened. What is infinite is bounded by nothing:
operands that aren't finite count with size 0 here, since their logits are infinite or NaN in any precision.

Everything here is float64 on the CPU, for some rows and columns of a call. Not here: gradients (gradient_bounds.py), or
who compares (sampled.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from steadysum.kernels import reference
from steadysum.kernels.problem import Operands, Statistics, statistics_dtype
from steadysum.tiling import SEGMENTS, TILE, segments

__all__ = [
    "Exact",
    "ExpTerms",
    "Roundings",
    "entropy",
    "exp_terms",
    "gamma",
    "log",
    "logits",
    "logprobs",
    "sizes",
    "slices",
    "softmax",
    "statistics",
    "wide",
]

DOUBLE: Final = 2.0**-53
SLICE: Final = 2**21  # elements of an operand that are widened at a time: 16 MiB in float64
CHAIN: Final = 128  # `native` cuts every reduction so (docs/bits.md): a sum's longest chain is short
NARROW: Final = {
    "tf32": 2.0**-11,
    "bf16": 2.0**-8,
}  # by torch's settings: the unit of operands in products of fp32 ones
THREE_TF32: Final = 2.0**-21  # `triton` multiplies the gradient of 16-bit logits in parts of 11 bits (products.py)
EXP: Final = 4  # roundings that exp counts for: at most 2 units in the last place, on any device
TANH: Final = 10  # roundings of softcap, in units of softcap: those of softcap itself, the quotient, tanh, the product
FEW: Final = 5  # roundings of a logarithm, or of a difference and a quotient
FLUSHED: Final = 2.0**-125  # exp may be 0 below -87.3 (docs/bits.md)
HOPELESS: Final = 16.0  # a row whose logits may be off by so much has a sum that may be anything


class Exact(NamedTuple):
    """A quantity in float64, and how far from it a kernel's may be."""

    value: Tensor
    bound: Tensor  # inf: nothing is known


@dataclass(frozen=True)
class Roundings:
    """How a kernel rounds, for one call."""

    unit: float  # of one rounding in the dtype of the statistics, and one of ours
    tiny: float  # the smallest normal number: results below may be flushed to 0
    most: float  # sums of this size may overflow
    operand: float  # the unit of the operands' own rounding before they are multiplied, if there is one
    of_gradient: float  # that of the logits' gradient before it is multiplied
    logit: float  # the unit in which logits are stored before max and exp
    result: float  # the unit in which gradients are returned
    is_native: bool
    tile: int  # additions on the longest way from a column to its tile's sum
    merges: int  # merges on the longest way from a tile's partial to the row's

    @classmethod
    def of(cls, kernel: str, call: Operands) -> Roundings:
        """Those of a kernel of this name."""
        limits = torch.finfo(statistics_dtype(call.input.dtype))
        operand = _operand_unit(kernel, call)
        # The vendor's chips may round logits to 16 bits, form gradients in them, and return them so.
        narrow = torch.finfo(call.input.dtype).eps if kernel == "ascend" else 0.0
        columns = max(len(segment) for segment in segments(call.weight.shape[0], call.shard))
        return cls(
            unit=limits.eps / 2 + DOUBLE,
            tiny=limits.tiny,
            most=limits.max / 4,
            operand=operand,
            of_gradient=max(operand, narrow, THREE_TF32 if kernel == "triton" else 0.0),
            logit=narrow,
            result=narrow,
            is_native=kernel == "native",
            # 16 accumulators and their tree; torch and Triton may take any order in a tile; others have other tiles.
            tile={"native": TILE // 16 + 4, "eager": TILE, "triton": TILE}.get(kernel, call.weight.shape[0]),
            merges=-(-columns // TILE) - 1 + round(math.log2(SEGMENTS)),
        )

    def product(self, terms: int) -> float:
        """Of a sum of products, for its terms' sizes."""
        chain = CHAIN + terms // CHAIN + 1 if self.is_native else terms
        return gamma((chain + 2) * self.unit)

    @property
    def adding(self) -> float:
        """Of a sum over a row, for its terms' sizes: three roundings per merge, and some at its beginning and end."""
        return gamma((self.tile + 3 * self.merges + 8) * self.unit)


def gamma(roundings: float) -> float:
    """From n u to the bound of n roundings.

    >>> gamma(0.0), gamma(0.5), gamma(2.0)
    (0.0, 1.0, inf)
    """
    return roundings / (1 - roundings) if roundings < 1 else math.inf


def _operand_unit(kernel: str, call: Operands) -> float:
    """torch may be told to round the operands of products of fp32 ones, on some devices."""
    if kernel not in ("eager", "triton") or statistics_dtype(call.input.dtype) == torch.float64:
        return 0.0
    try:
        backend: Any = torch.backends.mkldnn if call.input.device.type == "cpu" else torch.backends.cuda
        of_all: Any = torch.backends
        chosen = {of_all.fp32_precision, backend.matmul.fp32_precision}
    except AttributeError:  # torch < 2.9
        chosen = {{"high": "tf32", "medium": "bf16"}.get(torch.get_float32_matmul_precision(), "ieee")}
    return max(NARROW.get(str(each), 0.0) for each in chosen)


# ---- operands ----------------------------------------------------------------------------------------------------


def wide(tensor: Tensor) -> Tensor:
    """In float64, on the CPU."""
    return tensor.detach().cpu().double()


def sizes(values: Tensor) -> Tensor:
    """Absolute values; 0 where they aren't finite."""
    absolute = values.abs()
    if absolute.numel() == 0 or bool(absolute.amax() < torch.inf):  # one pass in place of five
        return absolute
    return absolute.masked_fill_(~absolute.isfinite(), 0.0)


def slices(count: int, width: int) -> Iterator[slice]:
    """Cut `count` rows of `width` elements such that one slice can be widened."""
    step = max(1, SLICE // max(width, 1))
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


# ---- logits ------------------------------------------------------------------------------------------------------


def logits(call: Operands, roundings: Roundings) -> Exact:  # [N, V]
    """The logits of all rows of a call on the CPU, its weight widened a slice at a time."""
    rows, vocab = call.size, call.weight.shape[0]
    value = torch.full((rows, vocab), -torch.inf, dtype=torch.float64, device="cpu")
    bound = torch.zeros(rows, vocab, dtype=torch.float64, device="cpu")
    x = wide(call.input)
    for part in slices(call.valid_vocab, call.weight.shape[1]):
        columns = replace(
            call,
            input=x,
            weight=wide(call.weight[part]),
            bias=None if call.bias is None else wide(call.bias[part]),
            valid_vocab=part.stop - part.start,
        )
        value[:, part] = reference.logits_of(columns)
        bound[:, part] = _logit_bounds(columns, value[:, part], roundings)
    return Exact(value, bound)


def _logit_bounds(call: Operands, z: Tensor, roundings: Roundings) -> Tensor:
    u, tiny, scale = roundings.unit, roundings.tiny, abs(call.scale)
    x, w = sizes(call.input), sizes(call.weight)
    size = x @ w.T
    if call.bias is not None:
        size += sizes(call.bias)
    # Operands and products that are flushed to 0 are below `tiny`.
    flushed = tiny * (x.sum(dim=1)[:, None] + w.sum(dim=1) + x.shape[1] + 4)
    rounded = roundings.product(x.shape[1]) + 2 * roundings.operand + roundings.operand**2
    largest = size if scale <= 1 else size * scale
    bound = (rounded * size + flushed) * scale + 2 * u * scale * size
    if call.softcap is not None:
        bound += TANH * u * call.softcap
    if call.temperature is not None:
        t = wide(call.temperature)[:, None]
        bound = bound / t
        capped = z.abs() if call.softcap is not None else largest / t
        largest = torch.maximum(largest, capped)
    bound += (u + roundings.logit) * sizes(z) + 4 * tiny
    return bound.masked_fill_(~(largest < roundings.most), torch.inf)


# ---- statistics --------------------------------------------------------------------------------------------------


class ExpTerms(NamedTuple):
    """exp of each logit's distance from the row's max, and the bounds of both; each [N, V]."""

    distance: Tensor  # its size; 0 for a logit of -inf
    of_distance: Tensor
    exp: Tensor
    of_exp: Tensor


def exp_terms(z: Exact, largest: Tensor, of_largest: Tensor | float, steps: int, u: float) -> ExpTerms:
    """The terms of these logits; `steps` says how often each is multiplied by exp of a part of its distance."""
    signed = z.value - largest[:, None]
    exp = signed.exp()
    distance = signed.abs().masked_fill(signed == -torch.inf, 0.0)
    # The argument of exp is rounded, and once more where exp is made of exp2; distances of merges add up to this one.
    of_distance = z.bound + of_largest + 3 * u * distance
    further = torch.where(of_distance < 1, exp * torch.expm1(of_distance), (signed + of_distance).exp())
    rounded = EXP * (1 + steps) * u
    return ExpTerms(distance, of_distance, exp, further + rounded * (exp + further) + FLUSHED)


def statistics(call: Operands, z: Exact, roundings: Roundings) -> dict[str, Exact]:
    """Each statistic [N] that the call asks for, from its logits."""
    u = roundings.unit
    exact = reference.statistics_of(call, z.value)
    of_max = z.bound.amax(dim=1)
    terms = exp_terms(z, exact.max, of_max[:, None], roundings.merges, u)
    d, dd, e, de = terms
    bounds = {"sum_exp": _summed(de, e, roundings)}
    if call.target is not None:
        bounds["target_logit"] = z.bound.gather(1, call.target[:, None])[:, 0]
    if call.wants_weighted_sum:  # moved to another max, it has part in two products and an addition
        bounds["weighted_sum"] = _summed(de * (d + dd) + e * dd, e * d, roundings, rescaled=2)
    # Sums over columns that aren't masked, of distances that no exp makes small.
    valid = slice(call.valid_vocab)
    far = (z.value - exact.max[:, None])[:, valid].abs()
    of_far = z.bound[:, valid] + of_max[:, None] + 3 * u * far
    w = 1.0 if call.column_weight is None else call.column_weight[valid].double().abs()
    if call.wants_column_sum:
        bounds["column_sum"] = _summed(w * of_far, w * far, roundings)
    if call.dense is not None:
        q = call.dense[:, valid].double().abs()
        bounds["dense_total"] = _summed(u * w * q, w * q, roundings)
        bounds["dense_sum"] = _summed(w * q * of_far, w * q * far, roundings)
        bounds["dense_exp"] = _summed(q * de[:, valid], q * e[:, valid], roundings)
    values = exact._asdict()
    if call.wants_ties:  # those that may round to the max; at least one of them is it
        may_tie = (far <= of_far).sum(dim=1).double()
        values["ties"], bounds["ties"] = (may_tie + 1) / 2, (may_tie - 1) / 2
    known = exact.max.isfinite() & (of_max < HOPELESS)
    bounds = {name: torch.where(known, bound, torch.inf) for name, bound in bounds.items()}
    return {name: Exact(values[name], bound) for name, bound in {"max": of_max, **bounds}.items()}


def _summed(errors: Tensor, sizes: Tensor, roundings: Roundings, rescaled: int = 1) -> Tensor:
    """Of a row's sum of terms of these sizes and errors; `rescaled` counts the factors that a merge gives a term."""
    error = errors.sum(dim=1)
    size = sizes.sum(dim=1) + error
    return torch.where(size < roundings.most, error + rescaled * roundings.adding * size, torch.inf)


def softmax(z: Exact, roundings: Roundings) -> Exact:  # [N, V]
    """The softmax of each row."""
    u = roundings.unit
    largest, of_max = z.value.amax(dim=1), z.bound.amax(dim=1)[:, None]
    _, _, e, de = exp_terms(z, largest, of_max, 0, u)
    of_term = exp_terms(z, largest, of_max, roundings.merges, u).of_exp
    s = e.sum(dim=1, keepdim=True)
    of_sum = _summed(of_term, e, roundings)[:, None] / s  # relative
    p = torch.softmax(z.value, dim=1)
    bound = (de / s + p * of_sum) / (1 - of_sum) + 4 * u * p + roundings.tiny
    return Exact(p, torch.where((of_max < HOPELESS) & (of_sum < 0.5), bound, torch.inf))


# ---- what is made of statistics ----------------------------------------------------------------------------------


def log(sum_exp: Tensor) -> Exact:
    """The natural logarithm of a kernel's sums: at most 2 units in the last place off, near 1 in units of 1."""
    s = wide(sum_exp)
    value = s.log()
    return _finite(value, torch.where(s >= torch.finfo(sum_exp.dtype).tiny, 0.0, torch.inf), value, sum_exp.dtype)


def logprobs(found: Statistics) -> Exact:
    """The log-probabilities of targets, from a kernel's statistics."""
    assert found.target_logit is not None
    of_sum = log(found.sum_exp)
    distance = wide(found.target_logit) - wide(found.max)
    return _finite(distance - of_sum.value, of_sum.bound, distance.abs() + of_sum.value.abs(), found.max.dtype)


def entropy(found: Statistics) -> Exact:
    """The entropies, from a kernel's statistics."""
    assert found.weighted_sum is not None
    of_sum = log(found.sum_exp)
    mean = wide(found.weighted_sum) / wide(found.sum_exp)
    return _finite(of_sum.value - mean, of_sum.bound, mean.abs() + of_sum.value.abs(), found.max.dtype)


def _finite(value: Tensor, of_parts: Tensor, size: Tensor, dtype: torch.dtype) -> Exact:
    """A result of a few operations on parts of this size, where it is finite and can't overflow."""
    limits = torch.finfo(dtype)
    is_known = value.isfinite() & (size.abs() < limits.max / 4)
    return Exact(value, torch.where(is_known, of_parts + FEW * limits.eps / 2 * (1 + size.abs()), torch.inf))
