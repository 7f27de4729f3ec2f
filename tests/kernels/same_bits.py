"""What the tests of `native`'s bits share: problems around its boundaries, the memory layouts, the comparison.

Not here: the properties themselves (test_same_bits.py, test_same_bits_gradients.py), or fixtures (conftest.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Final

import torch
from hypothesis import HealthCheck, settings
from torch import Tensor

from steadysum.diagnosis.compare import bits_equal

ISAS: Final = ("avx512", "avx2", "portable")
DTYPES: Final = (torch.float32, torch.bfloat16, torch.float16)
THREADS: Final = (1, 2, 3, 8)

# Each list surrounds a boundary: the reduction index is cut every 128, tiles have 512 columns, and from 8192 columns on
# there are 16 segments. Rows are packed in panels and shared out in tasks of 512.
ROWS: Final = (*range(1, 41), 511, 512, 513, 530)
HIDDENS: Final = (1, 7, 127, 128, 129, 200, 255, 256, 257)
VOCABS: Final = (1, 15, 16, 17, 300, 511, 512, 513, 1023, 1025, 1300, 8191, 8192, 8193, 8209)

# The portable code emulates the fused multiply-add, about 0.3 of them a nanosecond: drawn problems are kept this small.
MOST_WORK: Final = 4_000_000

# The kernel leaves problems below 2^20 multiply-adds to one thread: those that test threads are larger.
LARGE: Final = ((513, 257, 513), (33, 300, 9000), (40, 129, 8193), (1, 256, 8192), (4, 128, 16400), (5, 300, 1300))


@dataclass(frozen=True, eq=False)
class Case:
    """The operands of one problem."""

    input: Tensor  # [N, H]
    weight: Tensor  # [V, H]
    target: Tensor  # [N]
    options: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:  # what hypothesis prints
        N, (V, H) = self.input.shape[0], self.weight.shape
        return f"<N={N}, H={H}, V={V}, {self.input.dtype}, options: {', '.join(self.options) or 'none'}>"

    def rows(self, index: Tensor) -> Case:
        """The same problem for some of its rows."""
        options = dict(self.options)
        if isinstance(temperature := options.get("temperature"), Tensor):
            options["temperature"] = temperature[index]
        return Case(self.input[index], self.weight, self.target[index], options)


def draw_case(
    shape: tuple[int, int, int], dtype: torch.dtype = torch.float32, *, everything: bool = False, seed: int = 0
) -> Case:
    """A random problem; with every option, if `everything`."""
    N, H, V = shape
    generator = torch.Generator().manual_seed(seed)
    input = torch.randn(N, H, generator=generator).to(dtype)
    weight = torch.randn(V, H, generator=generator).div(H**0.5).to(dtype)
    valid = max(1, V - 3) if everything else V
    target = torch.randint(valid, (N,), generator=generator)
    options = {
        "bias": torch.randn(V, generator=generator),
        "scale": 3.0,
        "softcap": 5.0,
        "temperature": torch.rand(N, generator=generator) + 0.5,
        "valid_vocab": valid,
    }
    return Case(input, weight, target, options if everything else {})


def assert_same(seen: dict[str, Tensor], expected: dict[str, Tensor], what: object = "") -> None:
    """Every bit of every output is equal."""
    for name, values in expected.items():
        assert bits_equal(seen[name], values), f"{name} {what}"


def picked(found: dict[str, Tensor], index: Tensor | slice) -> dict[str, Tensor]:
    """The outputs of some rows."""
    return {name: values[index] for name, values in found.items()}


def joined(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The outputs of batches put together."""
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


# Function-scoped fixtures hold no state that an example could leave to the next.
drawn = settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])


@contextmanager
def instructions(native: ModuleType, isa: str) -> Iterator[None]:
    """Compute with this instruction set, inside the context."""
    before = native.isa()
    native.set_isa(isa)
    try:
        yield
    finally:
        native.set_isa(before)


# ---- memory layouts ------------------------------------------------------------------------------------------------


def transposed(matrix: Tensor) -> Tensor:
    return matrix.T.contiguous().T


def offset_by_one_element(matrix: Tensor) -> Tensor:
    return torch.cat([matrix.new_full((1,), torch.nan), matrix.flatten()])[1:].view_as(matrix)


def row_padded(matrix: Tensor) -> Tensor:
    padded = matrix.new_full((matrix.shape[0], matrix.shape[1] + 3), torch.nan)
    padded[:, : matrix.shape[1]] = matrix
    return padded[:, : matrix.shape[1]]


def sliced_with_step(matrix: Tensor) -> Tensor:
    sparse = matrix.new_full((2 * matrix.shape[0], 3 * matrix.shape[1]), torch.nan)
    sparse[::2, ::3] = matrix
    return sparse[::2, ::3]


LAYOUTS: Final = (transposed, offset_by_one_element, row_padded, sliced_with_step)
