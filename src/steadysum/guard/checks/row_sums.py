"""The sums that Checksum compares, of rows of one product: what its output has, and what its operands foretell.

Not here: how far they may be apart (checksum.py).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

from steadysum.guard.checks.calls import LinearProduct
from steadysum.guard.checks.weight_checksums import ORDINARY, WeightChecksums

__all__ = ["BiasSums", "RowSums", "bias_sums", "row_sums"]

# Elements that are summed in one go: 4 MiB of fp32 stay in a second-level cache, or near it, from sum to sum; a GPU
# would rather have few launches.
_AT_ONCE_CPU: Final = 1 << 19
_AT_ONCE: Final = 1 << 26


class RowSums(NamedTuple):
    """Of n rows, in float64, whatever they were formed in."""

    expected: Tensor  # [n, 2 B] by the operands, the bias left out
    seen: Tensor  # [n, 2 B] of the output
    squares: Tensor  # [n, B] the sum of the squares of a segment's outputs
    norms: Tensor  # [n] of the rows of the input


class BiasSums(NamedTuple):
    """Of the bias; zeros if there is none."""

    sums: Tensor  # float64 [2 B]
    squares: Tensor  # float64 [B]
    is_finite: Tensor | None  # [V], columns whose weight and bias are finite; None: all
    is_ordinary: bool  # whether fp32 will do
    is_there: bool


def bias_sums(product: LinearProduct, sums: WeightChecksums) -> BiasSums:
    """The sums of the product's bias, or zeros."""
    if product.bias is None:
        return BiasSums(torch.zeros_like(sums.sum_squares), torch.zeros_like(sums.squares), sums.is_finite, True, False)
    bias = product.bias.to(product.operand_dtype).double()
    is_finite = bias.isfinite() if sums.is_finite is None else bias.isfinite() & sums.is_finite
    bias = bias.masked_fill(~is_finite, 0.0)[None]
    squares = _norms(bias, sums.segments)[0].square()
    return BiasSums(
        _sums(bias, sums.segments, sums.positions)[0],
        squares,
        None if bool(is_finite.all()) else is_finite,
        float(squares.max()) <= ORDINARY[1] ** 4,
        True,
    )


def row_sums(product: LinearProduct, sums: WeightChecksums, of_bias: BiasSums, dtype: torch.dtype) -> RowSums:
    """The sums of every row, formed in fp32 or float64, some rows at a time."""
    checksums = sums.narrow if dtype == torch.float32 else sums.sums
    positions = sums.positions.to(dtype)
    at_once = _AT_ONCE_CPU if product.output.device.type == "cpu" else _AT_ONCE
    of_input, of_output = [], []
    for rows in torch.split(product.input, max(1, at_once // max(product.input.shape[1], 1))):
        x = rows.to(product.operand_dtype).to(dtype)
        of_input.append((x @ checksums, torch.linalg.vector_norm(x, dim=1)))
    for rows in torch.split(product.output, max(1, at_once // max(product.output.shape[1], 1))):
        y = rows.to(dtype)
        if of_bias.is_finite is not None:
            y = y.masked_fill(~of_bias.is_finite, 0.0)
        of_output.append((_sums(y, sums.segments, positions), _norms(y, sums.segments)))
    expected, norms = (torch.cat(each).double() for each in zip(*of_input, strict=True))
    seen, roots = (torch.cat(each).double() for each in zip(*of_output, strict=True))
    return RowSums(expected, seen, roots.square(), norms)


def _sums(
    values: Tensor,  # [n, V]
    cut: tuple[range, ...],
    positions: Tensor,  # [V]
) -> Tensor:  # [n, 2 B]
    """Per segment the sum of its columns, and the sum weighted by their positions."""
    plain = [part.sum(dim=-1) for part in _grouped(values, cut)]
    placed = [torch.mv(values[:, part.start : part.stop], positions[part.start : part.stop]) for part in cut]
    return torch.cat((*plain, torch.stack(placed, dim=1)), dim=1)


def _norms(
    values: Tensor,  # [n, V]
    cut: tuple[range, ...],
) -> Tensor:  # [n, B]
    return torch.cat([torch.linalg.vector_norm(part, dim=-1) for part in _grouped(values, cut)], dim=1)


def _grouped(
    values: Tensor,  # [n, V]
    cut: tuple[range, ...],
) -> list[Tensor]:
    """The columns by segments: those of the first one's width in one tensor, and then a shorter last one's."""
    width = len(cut[0])
    whole = values.shape[1] // width
    parts = [torch.unflatten(values[:, : whole * width], 1, (whole, width))]
    if whole < len(cut):
        parts.append(values[:, None, whole * width :])
    return parts
