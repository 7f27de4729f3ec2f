"""Two results of the same work side by side: per element and per row, in tolerances, ulp and angles, with places.

Never by norm or mean: one wrong row of 256 leaves a norm equal to four digits (DeepEP issue 700). Not here: which of
the two is right, and the arithmetic of single elements (elements.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from steadysum.errors import DtypeError, LayoutError, OperandTypeError, RangeError, ShapeError
from steadysum.guard.elements import (
    MOST_PLACES,
    WITH_ULPS,
    Pair,
    Place,
    pairs,
    parts,
    places_of,
    real_rows,
    ulps,
    worst_of,
)
from steadysum.tables import titled_table

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

__all__ = ["AccuracyComparison", "TensorComparison", "compare_accuracy"]


@dataclass(frozen=True, eq=False)
class TensorComparison:
    """One tensor of both results. Rows are along the last dimension; each element of a vector is one."""

    name: str  # its path in the results; "value" if they are one tensor
    shape: tuple[int, ...]
    elements: int
    wrong_elements: int  # the real and the imaginary part of a complex number count for themselves
    wrong_rows: int
    rows: tuple[int, ...]  # the first 16 wrong ones
    row_errors: Tensor  # float64 [rows], the largest |actual - expected| over what is allowed there
    row_ulps: Tensor  # int64 [rows], the largest
    row_cosines: Tensor  # float64 [rows], of a vector [1]; NaN where a row isn't finite
    worst: tuple[Place, ...]  # at most 16, by error over what is allowed

    @property
    def ok(self) -> bool:
        """Whether every element is within the tolerance."""
        return self.wrong_elements == 0

    @property
    def ulps(self) -> int:
        """The largest distance."""
        return int(self.row_ulps.max()) if self.row_ulps.numel() else 0

    @property
    def lowest_cosine(self) -> tuple[int, float]:
        """The row with the smallest cosine, and the cosine: NaN if no row is finite."""
        if bool(self.row_cosines.isnan().all()):
            return 0, math.nan
        row = int(self.row_cosines.nan_to_num(nan=math.inf).argmin())
        return row, float(self.row_cosines[row])


@dataclass(frozen=True, eq=False)
class AccuracyComparison:
    """What compare_accuracy has found; prints as two tables."""

    rtol: float
    atol: float
    tensors: tuple[TensorComparison, ...]

    @property
    def ok(self) -> bool:
        """Whether every element of every tensor is within the tolerance."""
        return all(tensor.ok for tensor in self.tensors)

    @property
    def wrong_share(self) -> float:
        """Wrong elements, of all."""
        return _share(sum(each.wrong_elements for each in self.tensors), sum(each.elements for each in self.tensors))

    @property
    def wrong_row_share(self) -> float:
        """Rows with a wrong element, of all."""
        rows = sum(each.row_errors.numel() for each in self.tensors)
        return _share(sum(each.wrong_rows for each in self.tensors), rows)

    @property
    def ulps(self) -> int:
        """The largest distance."""
        return max((each.ulps for each in self.tensors), default=0)

    @property
    def worst(self) -> tuple[Place, ...]:
        """The worst elements of all tensors, at most 16, the worst one first."""
        return worst_of(place for each in self.tensors for place in each.worst)

    def table(self) -> Group:
        """Both tables for a terminal, by rich."""
        from rich.console import Group
        from rich.text import Text

        shown: list[Table | Text] = []
        for title, head, lines in self._tables():
            table = titled_table(title)
            for place, name in enumerate(head):
                table.add_column(name, justify="right" if place else "left", overflow="fold")
            for line in lines:
                table.add_row(*(Text(cell) for cell in line))
            shown += [table, Text()]
        return Group(*shown[:-1])

    def __str__(self) -> str:
        return "\n\n".join(_as_text(*table) for table in self._tables())

    def _tables(self) -> Iterator[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
        verdict = "all" if self.ok else "not all"
        title = f"{verdict} within |actual - expected| <= {self.atol:g} + {self.rtol:g} |expected|"
        head = ("tensor", "shape", "wrong elements", "wrong rows", "largest ulp", "lowest cosine")
        yield title, head, [_summary(each) for each in self.tensors]
        off = [place for place in self.worst if place.error]
        if off:
            head = ("element", "actual", "expected", "error", "allowed", "ulp")
            yield "farthest off, by error over what is allowed", head, [_line(place) for place in off]


def compare_accuracy(actual: Any, expected: Any, rtol: float = 1e-3, atol: float = 1e-5) -> AccuracyComparison:
    """Compare two results of the same work element by element, such as a device's with the CPU's.

    An element is right if |actual - expected| <= atol + rtol |expected|; NaN equals NaN, and an infinity itself.
    Integers and booleans have to be equal. Distances in ulp are counted in the coarser dtype of the two. Cosines are
    per row: 1 where both rows are zero, 0 where one is. One ulp of bf16 is up to 2^-7 of a number: allow 16 bits more
    than the defaults.

    Args:
        actual: a tensor, an array, a number, or tuples, lists and dicts of them.
        expected: the same, with the same shapes; devices and dtypes may be others.
        rtol, atol: finite, at least 0.

    Returns:
        The comparison: `ok`, shares, ulps, the worst places, and all of it per tensor and row; str() and table() show
        it.

    Raises:
        OperandTypeError, ShapeError, DtypeError, LayoutError: the two can't be compared. RangeError: a bad tolerance.

    Source: field report, R7.

    >>> found = compare_accuracy(torch.tensor([[1.0, 2.0], [3.0, 5.0]]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    >>> found.ok, found.tensors[0].rows, found.worst[0].at
    (False, (1,), (1, 1))
    """
    _accept_tolerance("rtol", rtol)
    _accept_tolerance("atol", atol)
    compared = _accept(pairs(actual, expected))
    with torch.no_grad():
        tensors = tuple(_compare(*pair, rtol, atol) for pair in compared)
    return AccuracyComparison(rtol, atol, tensors)


def _accept_tolerance(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise RangeError(name, repr(value), "a finite number of at least 0", "The defaults are 1e-3 and 1e-5.")


def _accept(found: list[Pair] | str) -> list[Pair]:
    if isinstance(found, str):
        allowed = "at least one, and the same on both sides"
        raise OperandTypeError("tensors to compare", found, allowed, "Pass what two runs of the same work gave back.")
    for name, actual, expected in found:
        for tensor in (actual, expected):
            if tensor.is_meta or tensor.layout != torch.strided or tensor.is_quantized:
                seen = "a tensor without values" if tensor.is_meta else str(tensor.layout)
                raise LayoutError(f"layout of {name}", seen, "dense tensors with values", "Use .to_dense().")
            if tensor.is_floating_point() and tensor.dtype not in WITH_ULPS:
                allowed = "fp64, fp32, fp16 or bf16"
                raise DtypeError(f"dtype of {name}", str(tensor.dtype), allowed, "Widen both: .float().")
        if actual.shape != expected.shape:
            seen = f"{list(actual.shape)} and {list(expected.shape)}"
            raise ShapeError(f"shapes of {name}", seen, "equal shapes", "Compare results of the same inputs.")
    return found


def _compare(name: str, actual: Tensor, expected: Tensor, rtol: float, atol: float) -> TensorComparison:
    rows: list[int] = []
    errors, distances = [torch.zeros(0, dtype=torch.float64)], [torch.zeros(0, dtype=torch.int64)]
    cosines = [torch.zeros(0, dtype=torch.float64)]
    places = worst_of(())
    wrong_elements = wrong_rows = 0
    for part in parts(actual, expected, rtol, atol):
        bad = part.wrong.any(dim=1).nonzero().flatten()
        wrong_rows += len(bad)
        wrong_elements += int(part.wrong.sum())
        rows += (part.start + bad[: MOST_PLACES - len(rows)]).tolist()
        if part.over.shape[1]:
            errors.append(part.over.amax(dim=1))
            distances.append(ulps(part.actual, part.expected).amax(dim=1))
        if actual.dim() > 1:
            cosines.append(_cosines(part.actual, part.expected))
        places = worst_of((*places, *places_of(name, actual.shape, part)))
    if actual.dim() < 2:
        cosines = [_cosines(real_rows(actual.reshape(1, -1)), real_rows(expected.reshape(1, -1)))]
    return TensorComparison(
        name=name,
        shape=tuple(actual.shape),
        elements=actual.numel() * (2 if actual.is_complex() else 1),
        wrong_elements=wrong_elements,
        wrong_rows=wrong_rows,
        rows=tuple(rows),
        row_errors=torch.cat(errors),
        row_ulps=torch.cat(distances),
        row_cosines=torch.cat(cosines),
        worst=places,
    )


def _cosines(actual: Tensor, expected: Tensor) -> Tensor:  # float64 [n]
    one, other = _scaled(actual.double()), _scaled(expected.double())
    lengths = one.norm(dim=1), other.norm(dim=1)
    cosine = ((one * other).sum(dim=1) / (lengths[0] * lengths[1])).clamp(-1.0, 1.0)
    is_zero = (lengths[0] == 0) | (lengths[1] == 0)
    return torch.where(is_zero, (lengths[0] == lengths[1]).double(), cosine)


def _scaled(rows: Tensor) -> Tensor:
    """Each row divided by its largest element: squares neither overflow nor vanish."""
    if rows.shape[1] == 0:
        return rows
    largest = rows.abs().amax(dim=1, keepdim=True)
    return rows / torch.where(largest == 0, 1.0, largest)


# ---- as it is shown ----------------------------------------------------------------------------------------------


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _summary(tensor: TensorComparison) -> tuple[str, ...]:
    row, cosine = tensor.lowest_cosine
    rows = tensor.row_errors.numel()
    return (
        tensor.name,
        "x".join(map(str, tensor.shape)) or "scalar",
        f"{tensor.wrong_elements} of {tensor.elements} ({_share(tensor.wrong_elements, tensor.elements):.2%})",
        f"{tensor.wrong_rows} of {rows} ({_share(tensor.wrong_rows, rows):.2%})",
        str(tensor.ulps),
        f"{cosine:.9f} (row {row})" if len(tensor.shape) > 1 else f"{cosine:.9f}",
    )


def _line(place: Place) -> tuple[str, ...]:
    where = f"{place.tensor}{list(place.at)}"
    numbers = (f"{place.actual:.9g}", f"{place.expected:.9g}", f"{place.error:.3g}", f"{place.allowed:.3g}")
    return (where, *numbers, "-" if place.ulps is None else str(place.ulps))


def _as_text(title: str, head: tuple[str, ...], lines: list[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
    rows = []
    for line in (head, *lines):
        first, *others = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        numbers = (cell.strip().rjust(len(cell)) for cell in others)
        rows.append("  ".join((first, *numbers)).rstrip())
    return "\n".join((title, *rows))
