"""Numerical traps that shipped in the field's best libraries: the kernel passes their checks, and the checks see them.

Each trap has one check, a comparison with float64. It passes on the shipped kernels, and fails on a build of `native`'s
sources in which that one trap (native/traps.hpp) is armed: so the check can see what it is there for.

The bound of a comparison is that of the roundings on the way, with u = 2^-24 for one of them. A logit of H products
and a bias has at most H + 2 (Higham, "Accuracy and Stability of Numerical Algorithms", lemma 3.1 and section 3.1); the
published order of sums in a tile at most 36, a step of the fold at most 5, and exp is within 2 u of exp of its
argument, whose own rounding counts as its size, at most 88. Traps miss these bounds by orders of magnitude.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Final, NamedTuple

import pytest
import torch
from torch import Tensor

from steadysum import _extension, linear_logprobs, linear_max_sum

ISAS: Final = _extension.module.runnable_isas() if _extension.module is not None else ["none"]
U: Final = 2.0**-24
MISSED: Final = "beyond the bound of rounding"


class Exact(NamedTuple):
    """A call's results in float64, and how far its logits may be from theirs in fp32, per row."""

    logits: Tensor  # [N, V]
    max: Tensor  # [N]
    sum_exp: Tensor  # [N]
    logit_bound: Tensor  # [N]


def exact(input: Tensor, weight: Tensor, bias: Tensor | None = None, valid_vocab: int | None = None) -> Exact:
    x, w = input.double(), weight.double()
    logits, sizes = x @ w.T, x.abs() @ w.abs().T
    if bias is not None:
        logits, sizes = logits + bias, sizes + bias.masked_fill(bias == -torch.inf, 0.0).abs()
    logits, sizes = logits[:, :valid_vocab], sizes[:, :valid_vocab]
    largest = logits.amax(dim=1)
    distance = logits - largest.masked_fill(largest == -torch.inf, 0.0)[:, None]
    roundings = input.shape[1] + 2
    return Exact(logits, largest, distance.exp().sum(dim=1), roundings * U / (1 - roundings * U) * sizes.amax(dim=1))


def sum_bound(call: Exact, vocab: int) -> Tensor:
    """Of the relative error of sum_exp, whose terms see the error of two logits each."""
    steps = vocab // 512 + 17  # at most so many tiles: every segment may end in a short one
    return torch.expm1(2 * call.logit_bound + 88 * U * (steps + 1)) + (38 + 7 * steps) * U


def assert_within(found: Tensor, exact: Tensor, bound: Tensor, what: str) -> None:
    error = (found.double() - exact).abs().masked_fill(found.double() == exact, 0.0)  # equal infinities
    assert bool((error <= bound).all()), f"{what} {MISSED}: {found.tolist()}, exact {exact.tolist()}"


def check_max_sum(
    kernel: str, input: Tensor, weight: Tensor, bias: Tensor | None = None, valid_vocab: int | None = None
) -> None:
    found = linear_max_sum(input, weight, bias=bias, valid_vocab=valid_vocab, kernel=kernel)
    call = exact(input, weight, bias, valid_vocab)
    assert_within(found.max, call.max, call.logit_bound, "max")
    assert_within(found.sum_exp, call.sum_exp, sum_bound(call, weight.shape[0]) * call.sum_exp, "sum_exp")


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# Few rows are multiplied in another way than many (native/few_rows.hpp).
FEW_AND_MANY: Final = (3, 40)


def check_ragged_tail(kernel: str) -> None:
    """verl#2656, #2899: the padded tail of the vocabulary was counted as exp(0)."""
    for rows in FEW_AND_MANY:
        for offset in (-20.0, 0.0, 3.0):
            bias = torch.full((700,), offset)
            check_max_sum(kernel, draw(rows, 32) / 8, draw(700, 32, seed=1), bias)
            check_max_sum(kernel, draw(rows, 32) / 8, draw(700, 32, seed=1), bias, valid_vocab=130)


def check_very_negative_rows(kernel: str) -> None:
    """verl, Megatron: with a running max that starts at 0, rows of logits below -88 underflow to log 0."""
    for rows in FEW_AND_MANY:
        check_max_sum(kernel, draw(rows, 32) / 8, draw(700, 32, seed=1), torch.full((700,), -120.0))


def check_bias_over_blocks(kernel: str) -> None:
    """apple/ml-cross-entropy#52: the bias was subtracted once per block of H."""
    for rows in FEW_AND_MANY:
        check_max_sum(kernel, draw(rows, 300), draw(700, 300, seed=1), draw(700, seed=2))


def check_masked_tiles(kernel: str) -> None:
    """apple/ml-cross-entropy: a tile of -inf logits gave NaN."""
    for rows in FEW_AND_MANY:
        input, weight, bias = draw(rows, 32), draw(1100, 32, seed=1), torch.zeros(1100)
        bias[:512] = -torch.inf
        check_max_sum(kernel, input, weight, bias)
        check_max_sum(kernel, input, weight, valid_vocab=512)  # the second and third tile
        check_max_sum(kernel, input, weight, torch.full((1100,), -torch.inf))


def check_strides(kernel: str) -> None:
    """TransformerEngine#2746: transposed and other non-contiguous operands gave a wrong loss."""
    for rows in FEW_AND_MANY:
        input, weight = draw(rows, 48), draw(300, 48, seed=1)
        check_max_sum(kernel, input, draw(48, 300, seed=1).T)
        check_max_sum(kernel, draw(48, rows).T, weight)
        check_max_sum(kernel, draw(rows, 96)[:, ::2], weight)
        check_max_sum(kernel, input, draw(600, 48, seed=1)[::2])
        check_max_sum(kernel, draw(1, 48).expand(rows, 48), weight)
        check_max_sum(kernel, input, draw(300, 1, seed=1).expand(300, 48))


def far_matrices(dtype: torch.dtype) -> Callable[[int, int, int, int, int], Tensor]:
    """A function (rows, columns, row_stride, column_stride, first) to a drawn matrix in memory of 2^32 elements.

    The memory is reserved, and only the pages of the matrices' elements are ever touched.
    """
    elements = 2**32 + 4096
    reserve = getattr(mmap, "MAP_NORESERVE", 0x4000)  # named by Python from 3.11 on
    memory = mmap.mmap(-1, dtype.itemsize * elements, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | reserve)
    storage = torch.frombuffer(memory, dtype=dtype, count=elements)

    def far(rows: int, columns: int, row_stride: int, column_stride: int, first: int) -> Tensor:
        matrix = storage.as_strided((rows, columns), (row_stride, column_stride), first)
        return matrix.copy_(draw(rows, columns, seed=first))

    return far


def check_far_elements(kernel: str) -> None:
    """apple/ml-cross-entropy, commit #39: offsets in 32 bits overflow.

    Of the 8 GiB only the pages of the elements are ever touched.
    """
    far = far_matrices(torch.bfloat16)
    for rows in FEW_AND_MANY:
        weight = draw(70, 16, seed=1).bfloat16()
        # The second row's offset of 2^32 wraps to 0, one of 2^31 to -2^31: the storage reaches that far to both sides.
        check_max_sum(kernel, far(2, 16, 2**32, 1, 0), weight)
        check_max_sum(kernel, draw(rows, 16).bfloat16(), far(2, 16, 2**32, 1, 16))
        check_max_sum(kernel, draw(rows, 16).bfloat16(), far(2, 16, 2**31, 1, 2**31 + 32))
        check_max_sum(kernel, draw(rows, 2).bfloat16(), far(70, 2, 1, 2**32, 64))


def check_alternating_calls(kernel: str) -> None:
    """A partial that isn't written leaves the previous call's in its slot, which is right if the calls are equal."""
    for rows in FEW_AND_MANY:
        for call in (1, 2, 1, 2):
            check_max_sum(
                kernel, draw(rows, 32, seed=call), draw(1100, 32, seed=10 * call), torch.full((1100,), 3.0 * call)
            )


def check_common_offset(kernel: str) -> None:
    """Review of pytorch PR 195829: lse - z_t loses everything where all logits share an offset of 2^24."""
    weight = 2.0**24 - torch.arange(40.0)[:, None]  # [V, 1], exact in fp32
    target = torch.arange(6)
    found = linear_logprobs(torch.ones(6, 1), weight, target, kernel=kernel)
    call = exact(torch.ones(6, 1), weight)._replace(logit_bound=torch.zeros(6))  # products with 1 are exact
    log_sum, distance = call.sum_exp.log(), call.logits.gather(1, target[:, None])[:, 0] - call.max
    bound = sum_bound(call, 40) + 2 * U * log_sum + U * (log_sum + distance.abs())
    assert_within(found, distance - log_sum, bound, "logprobs")


CHECKS: Final[dict[str, Callable[[str], None]]] = {
    "tail_counts_as_zero": check_ragged_tail,
    "max_starts_at_zero": check_very_negative_rows,
    "bias_once_per_block": check_bias_over_blocks,
    "masked_tile_is_nan": check_masked_tiles,
    "strides_ignored": check_strides,
    "offsets_in_32_bits": check_far_elements,
    "stale_partial": check_alternating_calls,
    "loss_as_difference": check_common_offset,
}


@contextlib.contextmanager
def instructions(native: ModuleType, isa: str) -> Iterator[None]:
    before = native.isa()
    native.set_isa(isa)
    try:
        yield
    finally:
        native.set_isa(before)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("trap", CHECKS)
def test_the_kernel_does_not_fall_into(trap: str, isa: str, needs_native: ModuleType) -> None:
    with instructions(needs_native, isa):
        CHECKS[trap]("native")


@pytest.mark.parametrize("trap", CHECKS)
def test_triton_does_not_fall_into(trap: str, runs_triton: None) -> None:
    CHECKS[trap]("triton")


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("trap", CHECKS)
def test_the_check_notices(trap: str, isa: str, traps: ModuleType) -> None:
    with instructions(traps, isa):
        CHECKS[trap]("native")  # nothing else is wrong with this build
        traps.arm(traps.TRAPS.index(trap))
        with pytest.raises(AssertionError, match=MISSED):
            CHECKS[trap]("native")


def test_no_trap_can_be_armed_in_the_shipped_kernel(needs_native: ModuleType) -> None:
    assert not hasattr(needs_native, "arm")
    assert not hasattr(needs_native, "TRAPS")
