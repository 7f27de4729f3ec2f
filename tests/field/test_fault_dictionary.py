"""The fault dictionary of the vendor's kernel: what each broken part looks like in the outputs, and on which shapes.

Policy `legacy` on a virtual clock without load. Operands are small whole numbers, so that max and predicted are exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, combinations, product
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


def logits_of(rows: int, vocab: int, seed: int) -> Tensor:
    """Exact: the operands are whole numbers."""
    input, weight, _ = operands(rows, vocab, seed)
    return input @ weight.T


def tiles_of(logits: Tensor) -> list[Tensor]:
    return list(logits.split(TILE.columns, dim=1))


def targets_of(logits: Tensor, seed: int) -> Tensor:
    """Each row's logit of the target that the operands of this seed have."""
    rows, vocab = logits.shape
    _, _, target = operands(rows, vocab, seed)
    return logits.gather(1, target[:, None])[:, 0]


def raw_predicted(seen: Seen) -> Tensor:
    """As P2 has left it: P3 takes the maximum off."""
    return seen.found.predicted_logits + seen.found.logits_max


def any_of(found: Tensor, forms: Iterable[Tensor]) -> Tensor:
    """Rows that equal one of the forms."""
    return torch.stack([found == form for form in forms]).any(0)


def are_statistics(found: OnlineMaxSum, logits: Tensor) -> Tensor:
    """Rows whose max and log-sum are those of these logits."""
    log_sums = found.logits_max + found.sum_exp_logits.log()
    return (found.logits_max == logits.max(1).values) & torch.isclose(log_sums, logits.logsumexp(1), rtol=0, atol=1e-4)


def some_of(tiles: Sequence[Tensor]) -> Iterable[Tensor]:
    """The logits of each choice of at least one tile."""
    choices = chain.from_iterable(combinations(tiles, count) for count in range(1, len(tiles) + 1))
    return (torch.cat(choice, dim=1) for choice in choices)


def half_by_half(seen: Seen, could_be: Sequence[Sequence[Tensor]]) -> list[bool]:
    """Of each wrong half of a tile's rows: whether one choice, for each tile the logits it could have read, fits it."""
    fits = torch.stack([are_statistics(seen.found, torch.cat(choice, dim=1)) for choice in product(*could_be)])
    half = TILE.rows // 2
    wrong = seen.statistics_wrong.view(-1, half).any(1)
    return fits.view(len(fits), -1, half).all(2).any(0)[wrong].tolist()


SEEDS = range(3)


def test_p0_to_p2_broken_predicted_is_wiped_or_added_to_garbage_and_max_and_sum_are_right() -> None:
    """The garbage is what the call before has left; the fault keeps the zeros from memory, past both barriers."""
    wiped = on_garbage = 0
    for seed in SEEDS:
        seen = second_call(["reordered:site=predicted,phase=P0,microseconds=20"], 64, 64, 4, seed=seed)
        assert seen.acted
        assert not seen.statistics_wrong.any()
        right = targets_of(logits_of(64, 64, 10 * seed + 1), 10 * seed + 1)
        garbage = right + targets_of(logits_of(64, 64, 10 * seed), 10 * seed)
        wrong = raw_predicted(seen)[seen.predicted_wrong]
        assert any_of(raw_predicted(seen), (right, torch.zeros(64), garbage)).all()
        wiped += int((wrong == 0).sum())
        on_garbage += int((wrong == garbage[seen.predicted_wrong]).sum())
    assert wiped
    assert on_garbage


@pytest.mark.parametrize("late", ["slow:core=0,factor=1000", "slow:core=0,role=v0,factor=1000"])
def test_p0_to_p2_broken_alone_is_hidden_by_the_barrier_after_p1(late: str) -> None:
    """A unit that is late in P0 is awaited after P1: only with that barrier broken too, anything is wrong."""
    first_broken = ["overrun:site=init,lead=9", late]
    hidden = second_call(first_broken, 64, 64, 4)
    assert hidden.acted
    assert hidden.is_right
    both_broken = second_call([*first_broken, "overrun:site=target,lead=9"], 64, 64, 4)
    assert both_broken.acted
    assert both_broken.predicted_wrong.any()
    assert not both_broken.statistics_wrong.any()


def test_p1_to_p2_broken_predicted_is_wrong_on_some_rows_and_max_and_sum_are_right() -> None:
    """A tile looks for the target of the call before: it finds that one's logit, both, or none."""
    for seed in SEEDS:
        seen = second_call(["overrun:site=target,lead=9", "slow:core=1,factor=1000"], 64, 64, 4, seed=seed)
        assert seen.acted
        assert not seen.statistics_wrong.any()
        assert 0 < int(seen.predicted_wrong.sum()) < 64
        logits = logits_of(64, 64, 10 * seed + 1)
        right, earlier = targets_of(logits, 10 * seed + 1), targets_of(logits, 10 * seed)
        assert any_of(raw_predicted(seen), (right, torch.zeros(64), earlier, right + earlier)).all()


BROKEN_P2 = ["overrun:site=tiles,lead=9", "slow:core=1,factor=50"]


def test_p2_to_p3_broken_a_late_tile_is_missing_and_nothing_is_too_large() -> None:
    for seed in SEEDS:
        seen = second_call(BROKEN_P2, 64, 64, 4, seed=seed)
        assert seen.acted
        assert seen.smaller.any()
        assert not seen.larger.any()
        kept = some_of(tiles_of(logits_of(64, 64, 10 * seed + 1)))
        assert torch.stack([are_statistics(seen.found, logits) for logits in kept]).any(0).all()


@pytest.mark.parametrize("rows", [32, 64])
def test_p2_to_p3_broken_is_not_seen_on_one_core_whose_vector_units_keep_step(rows: int) -> None:
    seen = second_call(["overrun:site=tiles,lead=9", "slow:core=0,factor=50"], rows, 64, 1)
    assert seen.acted
    assert seen.is_right


def test_p2_to_p3_broken_is_seen_on_one_core_whose_vector_units_do_not_keep_step() -> None:
    """With two row blocks: each unit's rows in P3 are then not those of its halves of tiles in P2."""
    one_unit_late = ["overrun:site=tiles,lead=9", "slow:core=0,role=v0,factor=50"]
    one_row_block = second_call(one_unit_late, 32, 64, 1)
    assert one_row_block.acted
    assert one_row_block.is_right
    seen = second_call(one_unit_late, 64, 64, 1)
    # In P3, v1 takes rows 32 to 63; of these, 32 to 47 are v0's half of the second row block.
    assert seen.smaller.nonzero().flatten().tolist() == list(range(32, 48))
    assert not seen.larger.any()


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


@pytest.mark.parametrize("factor", [50, 100_000])
def test_tile_ready_broken_whole_halves_of_tiles_come_from_the_logits_that_were_there_before(factor: int) -> None:
    """Of two buffers: tile 2 reads tile 0 or what the call before has left, and so on."""
    for seed in SEEDS:
        arms = ["overrun:site=tile ready,lead=9", f"slow:role=cube,factor={factor}"]
        seen = second_call(arms, 32, 16 * 4, 1, seed=seed)
        assert seen.acted
        now, before = (tiles_of(logits_of(32, 16 * 4, 10 * seed + which)) for which in (1, 0))
        could_be = [[before[2], now[0]], [before[3], now[1]], [before[2], now[0], now[2]], [before[3], now[1], now[3]]]
        halves = half_by_half(seen, could_be)
        assert halves
        assert all(halves)


BROKEN_BUFFER = ["overrun:site=buffer free,lead=99", "slow:role=v0,factor=50", "slow:role=v1,factor=50"]


def test_buffer_free_broken_whole_halves_of_tiles_come_from_the_tiles_after_in_their_buffer() -> None:
    for seed in SEEDS:
        seen = second_call(BROKEN_BUFFER, 32, 16 * 5, 1, seed=seed)
        assert seen.acted
        tiles = tiles_of(logits_of(32, 16 * 5, 10 * seed + 1))
        halves = half_by_half(seen, [tiles[first::2] for first in range(5)])
        assert halves
        assert all(halves)


def test_buffer_free_broken_needs_three_tiles_on_a_core_and_the_branch_that_saves_memory() -> None:
    assert second_call(BROKEN_BUFFER, 32, 16 * 3, 1).statistics_wrong.any()
    for nothing_waits in (
        second_call(BROKEN_BUFFER, 32, 16 * 2, 1),
        second_call(BROKEN_BUFFER, 32, 16 * 5, 1, logits=True),
    ):
        assert not nothing_waits.acted
        assert nothing_waits.is_right


# The first tile's words of each vector unit stay in the store buffer while the next tile is merged, but not until P3.
OWN_SLOT = [f"reordered:site={region},phase=P2,own=true,microseconds=1.5,most=2" for region in ("max", "sum")]


def test_own_slot_read_before_it_is_written_one_contribution_is_missing() -> None:
    """Only with two tiles of one row block on a core: each reads what the one before has written."""
    seen = second_call(OWN_SLOT, 32, 16 * 4, 1)
    assert seen.acted
    assert seen.smaller.any()
    assert not seen.larger.any()
    kept = some_of(tiles_of(logits_of(32, 16 * 4, 1)))
    assert torch.stack([are_statistics(seen.found, logits) for logits in kept]).any(0).all()
    one_tile_of_each_row_block = second_call(OWN_SLOT, 32 * 4, 16, 1)
    assert one_tile_of_each_row_block.acted
    assert one_tile_of_each_row_block.is_right


def after(first: int | None, arm: str) -> Seen:
    """A call with the arm, after one with these operands, or on memory that is all zeros."""
    number = 1 if first is None else 2
    device = Device(4, Settings(allreduce_policy=0), [Arm.parse(f"{arm},calls={number}")], geometry=TILE)
    if first is not None:
        device.fused_linear_online_max_sum(*operands(64, 64, first), 0, 64)
    given = operands(64, 64, 1)
    found = device.fused_linear_online_max_sum(*given, 0, 64)
    return Seen(found, fused_linear_online_max_sum(*given, 0, 64), sum(device.fault_counts().values()))


def test_a_dirty_workspace_depends_on_what_ran_before_and_is_nan_if_memory_held_nan() -> None:
    nan = after(0, "dirty:content=nan")
    assert nan.acted
    assert nan.found.sum_exp_logits.isnan().any()
    some, others = after(0, "dirty:content=earlier"), after(5, "dirty:content=earlier")
    for seen in (some, others):
        assert seen.acted
        assert seen.statistics_wrong.any()
        assert not seen.smaller.any()
    assert not torch.equal(some.found.sum_exp_logits, others.found.sum_exp_logits)


def test_a_dirty_workspace_vanishes_when_memory_is_cleared() -> None:
    """All zeros: a maximum of 0 is below each row's here, and a sum of 0 adds nothing. And P0, in the next call."""
    on_zeros = after(None, "dirty:content=earlier")
    assert (on_zeros.expected.logits_max > 0).all()
    assert on_zeros.acted
    assert on_zeros.is_right
    device = Device(4, Settings(allreduce_policy=0), [Arm.parse("dirty:content=nan,calls=1")], geometry=TILE)
    for which in (0, 1):
        given = operands(64, 64, which)
        found = device.fused_linear_online_max_sum(*given, 0, 64)
        assert Seen(found, fused_linear_online_max_sum(*given, 0, 64), 1).is_right == (which == 1)


def test_tail_padding_counts_exp_of_minus_max_only_where_tiles_do_not_divide_the_vocabulary() -> None:
    seen = second_call(["tail:site=padding"], 64, 60, 4)
    assert seen.acted
    padding = 16 - 60 % 16
    largest = seen.expected.logits_max.clamp(min=0.0)
    shifted = seen.expected.sum_exp_logits * (seen.expected.logits_max - largest).exp()
    assert torch.allclose(seen.found.sum_exp_logits, shifted + padding * (-largest).exp(), rtol=1e-5)
    assert seen.larger.any()
    assert not seen.smaller.any()
    assert second_call(["tail:site=padding"], 64, 64, 4).is_right


def test_tail_padding_that_nobody_has_written_gives_nan_only_where_tiles_do_not_divide_the_vocabulary() -> None:
    seen = second_call(["tail:site=padding,content=nan"], 64, 60, 4)
    assert seen.acted
    assert seen.found.logits_max.isnan().all()
    assert seen.found.sum_exp_logits.isnan().all()
    assert second_call(["tail:site=padding,content=nan"], 64, 64, 4).is_right


def test_a_floor_for_a_ceiling_loses_the_last_columns_only_where_there_is_a_remainder() -> None:
    seen = second_call(["tail:site=floor"], 64, 60, 4)
    assert seen.acted
    assert seen.smaller.any()
    assert not seen.larger.any()
    assert second_call(["tail:site=floor"], 64, 64, 4).is_right


@pytest.mark.parametrize("site", ["padding", "floor"])
def test_a_remainder_of_rows_alone_shows_nothing(site: str) -> None:
    """The device has no padding of rows, and its floor is of columns: that part of the row isn't modelled."""
    seen = second_call([f"tail:site={site}"], 50, 64, 4)
    assert seen.acted
    assert seen.is_right


def test_two_cores_in_one_line_overwrite_neighbouring_rows_and_aligned_rows_do_not() -> None:
    unaligned = Geometry(8, 16)  # 4 rows of a vector unit: a quarter of a line
    wrong = [second_call(["crosstalk:alignment=4"], 20, 64, 4, seed=seed, tile=unaligned) for seed in range(5)]
    assert all(seen.acted for seen in wrong)
    assert any(not seen.is_right for seen in wrong)
    for seed in range(5):
        assert second_call(["crosstalk:alignment=64"], 20, 64, 4, seed=seed, tile=unaligned).is_right


def test_two_cores_in_one_line_undo_neighbouring_rows_of_each_other_and_no_others() -> None:
    """192 rows in P3, 24 for each of 8 units: every third line of 16 rows is shared by two, with 8 rows each."""
    for seed in range(4):
        seen = second_call(["crosstalk:alignment=4"], 192, 64, 4, seed=seed)
        assert seen.acted
        wrong = seen.statistics_wrong.nonzero().flatten().tolist()
        shared = [range(start, start + 8) for line in range(16, 192, 48) for start in (line, line + 8)]
        undone = [part for part in shared if set(part) & set(wrong)]
        assert undone
        assert wrong == [row for part in undone for row in part]  # one unit's part of a line, whole
        borders = [{part.start - 1, part.stop} for part in undone]  # in the same line the other's rows are right
        assert not any(border <= set(wrong) for border in borders)


@pytest.mark.parametrize("shape", [(64, 64, 4), (33, 50, 3), (1, 1, 1)])
def test_without_faults_nothing_is_wrong(shape: tuple[int, int, int]) -> None:
    rows, vocab, cores = shape
    device = Device(cores, Settings(allreduce_policy=0), geometry=TILE)
    for call in range(3):
        given = operands(rows, vocab, call)
        found = device.fused_linear_online_max_sum(*given, 0, vocab)
        assert Seen(found, fused_linear_online_max_sum(*given, 0, vocab), 1).is_right
