"""Tests of steadysum.cores.integrity: what is damaged is found, with who wrote there last; what isn't damaged isn't."""

from __future__ import annotations

import numpy as np
import pytest

from steadysum.cores.faults import Arm
from steadysum.sync.memory import GUARD, Memory, Span

from .operators import POLICIES, call, device, given


@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_is_damaged_after_a_call_without_faults(policy: str) -> None:
    on = device(policy, keeps_digests=True)
    for seed in range(3):
        call(on, given(37, 5, 90, seed))
        assert on.check_integrity() == []


def test_an_operand_that_changes_during_a_call_is_named() -> None:
    on = device("enhanced", keeps_digests=True, faults=(Arm("flip", site="w"),))
    call(on, given(37, 5, 90))
    (damage,) = on.check_integrity()
    assert (damage.what, damage.region, damage.last_writer) == ("operand", "w", None)
    assert "operand damaged at w" in str(damage)


def test_operands_are_watched_only_where_digests_are_kept() -> None:
    on = device("enhanced", faults=(Arm("flip", site="w"),))
    call(on, given(37, 5, 90))
    assert on.check_integrity() == []


def test_the_first_damaged_record_is_named_with_its_last_writer() -> None:
    on = device("enhanced", cores=3)
    call(on, given(37, 5, 90))
    layout, memory = on._plan.layout, on._memory  # type: ignore[union-attr]
    for core in (2, 1):  # of both, core 1's comes first in memory
        start = layout.slot(core, 0, core).payload[0].start
        memory.arrays["max"][start] += 1.0
    first, second = on.check_integrity()
    assert (first.what, first.region) == ("record", "max")
    assert (str(first.last_writer), str(second.last_writer)) == ("core 1 v0", "core 2 v0")
    assert first.position < second.position


def test_a_write_beyond_a_region_breaks_its_guard_and_names_who_wrote_at_its_end() -> None:
    on = device("enhanced")
    call(on, given(37, 5, 90))
    memory = on._memory
    region = memory.regions["out_max"]
    end = region.offset + region.length * region.dtype.itemsize
    memory.arena[-(-end // 8) * 8] ^= 1
    (damage,) = on.check_integrity()
    assert (damage.what, damage.region) == ("guard", "out_max")
    assert damage.position == -(-end // 8) * 8
    writer = damage.last_writer
    assert writer is not None
    assert on._plan is not None
    rows = on._plan.output_rows[on._plan.number(writer)]
    assert rows.stop == 37


def test_guards_lie_around_every_region_and_survive_whole_line_writes() -> None:
    memory = Memory([("a", np.float32, 5), ("b", np.int64, 9), ("c", np.uint8, 64)])
    for region in memory.regions.values():
        memory.store(Span(region.name, 0, region.length), np.ones(region.length, region.dtype))
    assert memory.broken_guards() == []
    words = memory.arena.view(np.uint64)
    guards = np.flatnonzero(words == GUARD)
    for position in guards:
        words[position] = 0
        ((_, byte),) = memory.broken_guards()
        assert byte == 8 * position
        words[position] = GUARD
    assert len(guards) >= 8 * (len(memory.regions) + 1)


def test_another_layout_keeps_the_bytes_that_the_last_one_left() -> None:
    memory = Memory([("a", np.float32, 16)])
    memory.arrays["a"][:] = np.arange(16)
    memory.lay_out([("b", np.int32, 16)])
    assert np.array_equal(memory.arrays["b"].view(np.float32), np.arange(16, dtype=np.float32))
    memory.lay_out([("c", np.float32, 1000)])
    assert np.array_equal(memory.arrays["c"][:16], np.arange(16, dtype=np.float32))
