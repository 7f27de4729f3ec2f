"""How much outputs differ is counted by element and by row."""

from __future__ import annotations

import torch

from steadysum.diagnosis.isolation.kept import outputs_of
from steadysum.diagnosis.probing.outline import outline


def test_elements_rows_and_errors_are_those_of_the_worst_run() -> None:
    right = torch.ones(4, 8)
    one, other = right.clone(), right.clone()
    one[1, 2] = 3.0
    other[2] = 1.5
    found = outline(outputs_of(right), [outputs_of(one), outputs_of(other)])
    assert found is not None
    assert (found.runs, found.elements, found.rows, found.rows_touched) == (2, 8, (1, 2), 1)
    assert (found.largest_error, found.relative_error) == (2.0, 2.0)


def test_equal_outputs_have_no_outline_and_a_scalar_has_one_row() -> None:
    right = outputs_of(torch.tensor(1.0))
    assert outline(right, [right]) is None
    found = outline(right, [outputs_of(torch.tensor(1.0 + 2**-23))])
    assert found is not None
    assert (found.rows, found.largest_ulp) == ((0,), 1)
