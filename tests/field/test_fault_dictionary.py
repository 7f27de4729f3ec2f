"""The fault dictionary of the vendor's kernel: what each broken part looks like in the outputs, and on which shapes.

Policy `legacy` on a virtual clock without load. Operands are small whole numbers, so that max and predicted are exact.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from steadysum.cores.device import Device
from steadysum.cores.faults import Arm
from steadysum.cores.grid import Geometry
from steadysum.cores.load import Load
from steadysum.ops.online_max_sum import OnlineMaxSum, fused_linear_online_max_sum
from steadysum.settings import Settings

TILE = Geometry(32, 16)  # a vector unit's half has 16 rows: a line of fp32


class Seen(NamedTuple):
    """What a call gave, and where it is wrong."""

    found: OnlineMaxSum
    expected: OnlineMaxSum
    acted: int

    @property
    def smaller(self) -> Tensor:
        """Rows whose log-sum is too small."""
        return self._log_sums()[0] < self._log_sums()[1] - 1e-4

    @property
    def larger(self) -> Tensor:
        """Rows whose log-sum is too large."""
        return self._log_sums()[0] > self._log_sums()[1] + 1e-4

    @property
    def statistics_wrong(self) -> Tensor:
        """Rows whose max or log-sum is wrong, NaN included."""
        right = torch.isclose(*self._log_sums(), rtol=0, atol=1e-4) & (
            self.found.logits_max == self.expected.logits_max
        )
        return ~right

    @property
    def predicted_wrong(self) -> Tensor:
        """Rows whose predicted logit, before the maximum is taken off, is wrong."""
        ours, theirs = (each.predicted_logits + each.logits_max for each in (self.found, self.expected))
        return ours != theirs

    @property
    def is_right(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.statistics_wrong.any() or self.predicted_wrong.any())

    def _log_sums(self) -> tuple[Tensor, Tensor]:
        ours, theirs = (each.logits_max + each.sum_exp_logits.log() for each in (self.found, self.expected))
        return ours, theirs


def operands(rows: int, vocab: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return (
        torch.randint(-3, 4, (rows, 4), generator=draw).float(),
        torch.randint(-3, 4, (vocab, 4), generator=draw).float(),
        torch.randint(0, vocab, (rows,), generator=draw),
    )


def second_call(
    arms: list[str], rows: int, vocab: int, cores: int, *, logits: bool = False, seed: int = 0, tile: Geometry = TILE
) -> Seen:
    """The second of two calls with other operands each; the faults are armed in it."""
    faults = [Arm.parse(f"{arm}{',' if ':' in arm else ':'}calls=2") for arm in arms]
    device = Device(cores, Settings(allreduce_policy=0), faults, seed=seed, geometry=tile)
    for which in (0, 1):
        given = operands(rows, vocab, 10 * seed + which)
        found = device.fused_linear_online_max_sum(*given, 0, vocab, logits)
    counts = list(device.fault_counts().values())
    return Seen(found, fused_linear_online_max_sum(*given, 0, vocab), min(counts))


def test_p0_to_p2_broken_predicted_is_wiped_or_added_to_garbage_and_max_and_sum_are_right() -> None:
    late_zeros = ["reordered:site=predicted,phase=P0,microseconds=20"]
    seen = second_call(late_zeros, 64, 64, 4)
    assert seen.acted
    assert seen.predicted_wrong.any()
    assert not seen.statistics_wrong.any()


def test_p1_to_p2_broken_predicted_is_wrong_on_some_rows_and_max_and_sum_are_right() -> None:
    late_targets = ["reordered:site=masked_target,phase=P1,microseconds=20"]
    seen = second_call(late_targets, 64, 64, 4)
    assert seen.acted
    assert 0 < int(seen.predicted_wrong.sum()) <= 64
    assert not seen.statistics_wrong.any()


BROKEN_P2 = ["overrun:site=tiles,lead=9", "slow:core=1,factor=50"]


def test_p2_to_p3_broken_a_late_tile_is_missing_and_nothing_is_too_large() -> None:
    seen = second_call(BROKEN_P2, 64, 64, 4)
    assert seen.acted
    assert seen.smaller.any()
    assert not seen.larger.any()
    assert (seen.found.logits_max <= seen.expected.logits_max).all()


def test_p2_to_p3_broken_is_never_seen_on_one_core() -> None:
    assert second_call(["overrun:site=tiles,lead=9", "slow:core=0,factor=50"], 64, 64, 1).is_right


def test_p2_to_p3_broken_grows_with_the_vocabulary() -> None:
    """Under a load as in the field: more tiles, more calls in which some core is late."""
    wrong = []
    for vocab in (32, 256):
        device = Device(4, Settings(allreduce_policy=0), load=Load(20.0), seed=1, geometry=TILE)
        count = 0
        for call in range(60):
            given = operands(32, vocab, call % 2)
            found = device.fused_linear_online_max_sum(*given, 0, vocab)
            count += int(Seen(found, fused_linear_online_max_sum(*given, 0, vocab), 1).statistics_wrong.any())
        wrong.append(count)
    assert wrong[0] < wrong[1]


def test_tile_ready_broken_whole_halves_of_tiles_come_from_the_logits_that_were_there_before() -> None:
    seen = second_call(["overrun:site=tile ready,lead=9", "slow:role=cube,factor=1e5"], 32, 16, 1)
    assert seen.acted
    before = fused_linear_online_max_sum(*operands(32, 16, 0), 0, 16)
    halves = seen.found.logits_max.view(2, 16), before.logits_max.view(2, 16), seen.expected.logits_max.view(2, 16)
    for ours, stale, right in zip(*halves, strict=True):
        assert torch.equal(ours, stale) or torch.equal(ours, right)
    assert seen.statistics_wrong.any()


BROKEN_BUFFER = ["overrun:site=buffer free,lead=99", "slow:role=v0,factor=50", "slow:role=v1,factor=50"]


def test_buffer_free_broken_needs_three_tiles_on_a_core_and_the_branch_that_saves_memory() -> None:
    seen = second_call(BROKEN_BUFFER, 32, 16 * 5, 1)
    assert seen.acted
    assert seen.statistics_wrong.any()
    assert second_call(BROKEN_BUFFER, 32, 16 * 2, 1).is_right
    assert second_call(BROKEN_BUFFER, 32, 16 * 5, 1, logits=True).is_right


# The first tile's words of each vector unit stay in the store buffer while the next tile is merged, but not until P3.
OWN_SLOT = [f"reordered:site={region},phase=P2,own=true,microseconds=1.5,most=2" for region in ("max", "sum")]


def test_own_slot_read_before_it_is_written_one_contribution_is_missing() -> None:
    """Only with two tiles of one row block on a core: each reads what the one before has written."""
    seen = second_call(OWN_SLOT, 32, 16 * 4, 1)
    assert seen.acted
    assert seen.smaller.any()
    assert not seen.larger.any()
    one_tile_of_each_row_block = second_call(OWN_SLOT, 32 * 4, 16, 1)
    assert one_tile_of_each_row_block.acted
    assert one_tile_of_each_row_block.is_right


def test_a_dirty_workspace_depends_on_what_ran_before_and_vanishes_when_it_is_cleared() -> None:
    assert second_call(["dirty:content=nan"], 64, 64, 4).found.sum_exp_logits.isnan().any()
    after_another = second_call(["dirty:content=earlier"], 64, 64, 4)
    assert after_another.acted
    assert after_another.statistics_wrong.any()
    cleared = Device(4, Settings(allreduce_policy=0), geometry=TILE)
    given = operands(64, 64, 1)
    cleared.fused_linear_online_max_sum(*operands(64, 64, 0), 0, 64)
    assert Seen(
        cleared.fused_linear_online_max_sum(*given, 0, 64), fused_linear_online_max_sum(*given, 0, 64), 1
    ).is_right


def test_tail_padding_counts_exp_of_minus_max_only_where_tiles_do_not_divide_the_vocabulary() -> None:
    seen = second_call(["tail:site=padding"], 64, 60, 4)
    padding = 16 - 60 % 16
    largest = seen.expected.logits_max.clamp(min=0.0)
    shifted = seen.expected.sum_exp_logits * (seen.expected.logits_max - largest).exp()
    assert torch.allclose(seen.found.sum_exp_logits, shifted + padding * (-largest).exp(), rtol=1e-5)
    assert seen.larger.any()
    assert not seen.smaller.any()
    assert second_call(["tail:site=padding"], 64, 64, 4).is_right


def test_a_floor_for_a_ceiling_loses_the_last_columns_only_where_there_is_a_remainder() -> None:
    seen = second_call(["tail:site=floor"], 64, 60, 4)
    assert seen.smaller.any()
    assert not seen.larger.any()
    assert second_call(["tail:site=floor"], 64, 64, 4).is_right


def test_two_cores_in_one_line_overwrite_neighbouring_rows_and_aligned_rows_do_not() -> None:
    unaligned = Geometry(8, 16)  # 4 rows of a vector unit: a quarter of a line
    wrong = [second_call(["crosstalk:alignment=4"], 20, 64, 4, seed=seed, tile=unaligned) for seed in range(5)]
    assert all(seen.acted for seen in wrong)
    assert any(not seen.is_right for seen in wrong)
    for seed in range(5):
        assert second_call(["crosstalk:alignment=64"], 20, 64, 4, seed=seed, tile=unaligned).is_right


@pytest.mark.parametrize("shape", [(64, 64, 4), (33, 50, 3), (1, 1, 1)])
def test_without_faults_nothing_is_wrong(shape: tuple[int, int, int]) -> None:
    rows, vocab, cores = shape
    device = Device(cores, Settings(allreduce_policy=0), geometry=TILE)
    for call in range(3):
        given = operands(rows, vocab, call)
        found = device.fused_linear_online_max_sum(*given, 0, vocab)
        assert Seen(found, fused_linear_online_max_sum(*given, 0, vocab), 1).is_right
