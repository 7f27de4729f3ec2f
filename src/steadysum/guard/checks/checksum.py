"""Checksum: whether the output of a linear product can be the product of its operands, at a few percent of its cost.

Not here: the weight's checksums (weight_checksums.py), the sums that are compared (row_sums.py), and the bound of one
element (rounding.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from torch import Tensor

from steadysum.guard.checks.calls import LinearProduct, Operands, linear_product
from steadysum.guard.checks.protocol import Finding, Made
from steadysum.guard.checks.rounding import SMALLEST_NORMAL, Units, judge_elements, units_of
from steadysum.guard.checks.row_sums import BiasSums, RowSums, bias_sums, row_sums
from steadysum.guard.checks.weight_checksums import (
    ORDINARY,
    WeightChecksums,
    fresh,
    kept_or_fresh,
    mention_changed_weight,
)
from steadysum.kernels.autocast import without_autocast

__all__ = ["MOST_PLACES", "Checksum"]

MOST_PLACES: Final = 16
_WIDE_AT_ONCE: Final = 1 << 20  # elements of rows, or of a segment, that are widened to float64: 8 MiB
# Additions in a row when n numbers are summed: torch and BLAS keep at least 8 running sums.
_LANES: Final = 8
_PARTS: Final = 16  # that a GPU cuts a sum into, if it adds them up in 16 bits


@dataclass(frozen=True)
class Checksum:
    r"""Compares sums of each row of the output, segment by segment, with those that the operands' checksums foretell.

    With W cut into segments of its V rows (512 each, 16 at most), a the weights of a segment's columns, and y = x W^T:

        sum over j of a_j y_ij  =  x_i . (sum over j of a_j W_j)

    once for a = 1, and once for a = the column's position, from -1 to 1, which moves when elements are swapped. The
    right side costs one product with 2 columns per segment; the left side one pass over the output.

    **When the two sides differ by more than rounding.** The rounding error of y_ij is that of K additions, each u times
    a partial sum at most, evenly spread (variance u^2 / 3). On its way to y_ij a partial sum is, at its k-th term, y_ij
    k / K on average, and scatters about that with the variance of k terms. Added up over k:

        var(y_ij) = u^2 / 3 (y_ij^2 K / 3 + q_ij K / 2),   q_ij = sum over k of x_ik^2 w_jk^2

    That is V-ABFT's idea: mean and variance of the operands tell what the errors are; a bound by the worst case, K u
    |x| . |w|, would be a hundred times larger. Summed over a segment, with Y2 = sum of y_ij^2, taken from the output
    itself (a fault of size d adds u d), and the sum of q_ij = |x_i|^2 |W|^2 / K (where sizes of x and W go together,
    because one feature outgrows the others, it is in y_ij itself):

        var(left) = u^2 / 3 (Y2 K / 3 + |x_i|^2 |W|^2 / 2) + v^2 / 3 Y2

    v is the unit in which results are stored (bf16: 2^-9). With a bias, Y2 + |b|^2 takes the place of Y2, and results
    are stored twice: kernels may start their sums with the bias, or add it to a stored result. The check's own fp32
    sums err by the same law: over the segment's columns on the left, over the K terms x_ik c_k on the right. Operands
    that hardware rounds to TF32 or bf16 add their share, as do parts of sums that a GPU adds up in 16 bits. A deviation
    is suspect beyond `factor` standard deviations.

    **What is suspect is judged exactly.** Rows whose sums are suspect, or not finite, are computed again in float64 on
    that segment, and each of their elements has a bound of its own (rounding.py), which also holds where errors aren't
    independent (equal columns). This tells a rare rounding from a fault, and names the places. Kept checksums of the
    weight are first computed again: it may have been written to behind torch's back, which is warned of once.

    So nothing is reported that rounding explains; and a fault of one element goes unseen if it is smaller than the
    segment's threshold, measured in docs/checks.md. Rows with NaN or infinity in their input, and columns with such a
    weight or bias, are left out; a result that overflows as the exact one does is no fault. Two wrong elements whose
    errors cancel both sums go unseen.

    Args:
        factor: standard deviations that sums may differ by before they are looked at.
        operands: for other callables than linear_product knows: (made) -> (input, weight, bias).

    Source: Huang and Abraham, "Algorithm-based fault tolerance for matrix operations", IEEE Trans. Comput. C-33, 1984;
    variance-adapted thresholds: V-ABFT.

    >>> x, w = torch.ones(2, 3), torch.ones(4, 3)
    >>> y = torch.nn.functional.linear(x, w)
    >>> y[1, 2] += 0.5
    >>> Checksum().judge(Made(torch.nn.functional.linear, (x, w), {}, y)).places
    ((1, 2),)
    """

    factor: float = 6.0
    operands: Operands | None = None

    @property
    def name(self) -> str:
        """checksum."""
        return "checksum"

    def fits(self, made: Made) -> str | None:
        """A linear product that is known, or that `operands` describes."""
        found = linear_product(made, self.operands)
        return found if isinstance(found, str) else None

    def judge(self, made: Made) -> Finding:
        """`measured` and `allowed`: of a fault the error of the worst element named; else in standard deviations."""
        product = linear_product(made, self.operands)
        if isinstance(product, str):
            return Finding(self.name, passed=False, summary=f"the checksum doesn't fit: {product}")
        if product.output.numel() == 0:
            return Finding(self.name, passed=True)
        with torch.no_grad(), without_autocast(product.output.device.type):
            units = units_of(product)
            sums, were_kept = kept_or_fresh(product.weight, product.operand_dtype)
            shares = _shares(product, sums, units)
            largest = float(shares.max())  # NaN if any is
            if largest <= self.factor:
                return Finding(self.name, passed=True, measured=largest, allowed=self.factor)
            suspect = ~(shares <= self.factor)
            if were_kept:
                sums = fresh(product.weight, product.operand_dtype)
                shares = _shares(product, sums, units)
                before, suspect = suspect, ~(shares <= self.factor)
                if bool((before & ~suspect).any()):
                    mention_changed_weight()
            faults = _faults(product, sums, suspect, units)
            largest = float(shares.nan_to_num(nan=math.inf).max())
        if not faults:
            return Finding(self.name, passed=True, measured=largest, allowed=self.factor)
        worst = max(faults, key=lambda fault: math.inf if math.isnan(fault.error) else fault.error)
        rows = tuple(sorted({fault.row for fault in faults}))
        return Finding(
            self.name,
            passed=False,
            summary=f"element ({worst.row}, {worst.column}) of the product is {worst.seen:.9g}, and would have to be "
            f"{worst.exact:.9g}: off by {worst.error:.3g}, where rounding explains {worst.allowed:.3g}; "
            f"{int(suspect.any(dim=1).sum())} of {suspect.shape[0]} rows have sums that don't fit their operands",
            rows=rows,
            places=tuple((fault.row, fault.column) for fault in faults),
            measured=worst.error,
            allowed=worst.allowed,
        )


class _Fault(NamedTuple):
    row: int
    column: int
    seen: float
    exact: float
    error: float
    allowed: float


# ---- sums and their thresholds -----------------------------------------------------------------------------------


def _shares(product: LinearProduct, sums: WeightChecksums, units: Units) -> Tensor:  # float64 [N, B]
    """Per row and segment the larger deviation of its two sums, in standard deviations; NaN: there is none."""
    of_bias = bias_sums(product, sums)
    every_row = torch.arange(product.output.shape[0], device=product.output.device)
    if product.output.dtype == torch.float64 or not (sums.is_ordinary and of_bias.is_ordinary):
        return _wide_shares(product, sums, of_bias, units, every_row)
    rows = row_sums(product, sums, of_bias, torch.float32)
    shares = _deviations(rows, sums, of_bias, units, torch.float32)
    low, high = ORDINARY
    odd = every_row[~((rows.norms >= low) & (rows.norms <= high))]
    if len(odd):
        shares[odd] = _wide_shares(product, sums, of_bias, units, odd)
    return shares


def _wide_shares(
    product: LinearProduct,
    sums: WeightChecksums,
    of_bias: BiasSums,
    units: Units,
    chosen: Tensor,  # [n] numbers of rows
) -> Tensor:  # float64 [n, B]
    """The same of some rows, by sums in float64; 0 for rows that hold NaN or infinity."""
    parts = []
    for some in torch.split(chosen, max(1, _WIDE_AT_ONCE // max(product.output.shape[1], product.input.shape[1]))):
        part = product._replace(input=product.input[some], output=product.output[some])
        shares = _deviations(row_sums(part, sums, of_bias, torch.float64), sums, of_bias, units, torch.float64)
        parts.append(shares.masked_fill(~part.input.isfinite().all(dim=1)[:, None], 0.0))
    return torch.cat(parts)


def _deviations(
    rows: RowSums, sums: WeightChecksums, of_bias: BiasSums, units: Units, dtype: torch.dtype
) -> Tensor:  # float64 [n, B]
    """The docstring of Checksum derives what is computed here: a variance of four parts, for each of the two sums."""
    hidden, count, longest = sums.sums.shape[0], len(sums.segments), len(sums.segments[0])
    seen, expected = rows.seen, rows.expected + of_bias.sums  # [n, 2 B]
    own, of_sum = torch.finfo(dtype).eps ** 2 / 12, units.sum**2 / 3  # u^2 / 3 of the check's sums, and the product's
    lanes = longest / _LANES
    stored = (2 if of_bias.is_there else 1) * units.output**2 / 3
    # Parts that a GPU adds up in 16 bits: those of y grow with y, others scatter.
    in_parts = units.partial**2 / 3
    per_y2 = of_sum * hidden / 3 + stored + own * lanes / 2 + in_parts * _PARTS / 3
    both = torch.stack((sums.squares, sums.squares))  # [2, B]
    per_x2 = both * (of_sum / 2 + in_parts * (1 + _PARTS / 2) / max(hidden, 1)) + sums.sum_squares.view(2, -1) * (
        own / 2
    )
    if units.operand:  # errors of W's elements, and of x's, which all columns share
        per_x2 = per_x2 + (both + sums.sum_squares.view(2, -1)) * (units.operand**2 / 3 / max(hidden, 1))
    variance = ((rows.squares + of_bias.squares) * per_y2)[:, None, :] + rows.norms.square()[:, None, None] * per_x2
    variance = variance.reshape(-1, 2 * count)
    variance = variance.addcmul_(seen, seen, value=own * lanes / 3).addcmul_(expected, expected, value=own * hidden / 3)
    # What is lost of subnormal numbers has no chance to cancel: it isn't in the variance, but taken off.
    lost = longest * (units.tiny + (hidden + 1) * SMALLEST_NORMAL * (1 + sums.largest + rows.norms[:, None]))
    excess = (seen - expected).abs_().sub_(lost).clamp_(min=0.0)  # NaN stays
    shares = excess / variance.sqrt()
    least, most = torch.aminmax(variance)
    if not bool((least > 0) & most.isfinite()):
        shares = shares.masked_fill_(excess == 0.0, 0.0).masked_fill_(~variance.isfinite(), torch.nan)
    return torch.maximum(shares[:, :count], shares[:, count:])  # NaN of either stays


# ---- what is suspect, exactly ------------------------------------------------------------------------------------


def _faults(product: LinearProduct, sums: WeightChecksums, suspect: Tensor, units: Units) -> list[_Fault]:
    """The first 16 wrong elements, by row and column; none if rounding explains all that is suspect."""
    faults: list[_Fault] = []
    for columns, rows in _suspects(product, sums, suspect):
        if len(faults) == MOST_PLACES and int(rows[0]) > faults[-1].row:
            continue
        x = product.input[rows].to(product.operand_dtype)
        weight = product.weight.detach()[columns].to(product.operand_dtype)
        bias = None if product.bias is None else product.bias[columns].to(product.operand_dtype)
        seen = product.output[rows, columns]
        judged = judge_elements(x, weight, bias, seen, units)
        for row, column in judged.fault.nonzero()[:MOST_PLACES].tolist():
            faults.append(
                _Fault(
                    int(rows[row]),
                    columns.start + column,
                    float(seen[row, column]),
                    float(judged.exact[row, column]),
                    float(judged.error[row, column]),
                    float(judged.allowed[row, column]),
                )
            )
        faults = sorted(faults)[:MOST_PLACES]
    return faults


def _suspects(product: LinearProduct, sums: WeightChecksums, suspect: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Columns of each segment, some at a time, and the rows that are suspect there, some at a time."""
    hidden = max(product.weight.shape[1], 1)
    for index, segment in enumerate(sums.segments):
        marked = suspect[:, index].nonzero().flatten()
        wide = max(1, min(len(segment), _WIDE_AT_ONCE // hidden))
        for start in range(segment.start, segment.stop, wide) if len(marked) else ():
            for rows in torch.split(marked, max(1, _WIDE_AT_ONCE // max(wide, hidden))):
                yield slice(start, min(start + wide, segment.stop)), rows
