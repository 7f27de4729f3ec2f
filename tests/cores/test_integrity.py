"""Tests of steadysum.cores.integrity: what is damaged is found, with who wrote there last; what isn't damaged isn't."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import pytest

from steadysum.cores.faults import Arm, Armed
from steadysum.errors import StaleRead
from steadysum.sync.actions import Word, Write
from steadysum.sync.memory import GUARD, Cells, Memory, Span
from steadysum.trace.events import Unit

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


class TooLong(Armed):
    """A write of core 1's v0 into one region, a word longer than its place: the index error of a real kernel."""

    def __init__(self, region: str) -> None:
        super().__init__(())
        self._region = region
        self.acted_at: Span | None = None

    def written(self, unit: Unit, action: Write) -> Sequence[Word]:
        """The words, one of them too long."""
        found = []
        for span, values in super().written(unit, action):
            if unit == Unit(1, "cube" if self._region == "product" else "v0") and span.region == self._region:
                self.acted_at = Span(span.region, span.start, -(-span.stop // 16) * 16 + 16)
                longer = np.zeros(self.acted_at.stop - span.start, values.dtype)
                longer[: len(values)] = values
                found.append(Word(self.acted_at, longer))
            else:
                found.append(Word(span, values))
        return found


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("region", ["product", "max", "sum"])
def test_a_write_beyond_a_slot_or_a_buffer_breaks_its_guard_and_its_writer_is_named(policy: str, region: str) -> None:
    on = device(policy, 3)
    fault = TooLong(region)
    on.armed = fault
    with suppress(StaleRead):  # what is read back is longer than the record
        call(on, given(37, 5, 90))
    assert fault.acted_at is not None
    broken = [damage for damage in on.check_integrity() if damage.what == "guard"]
    assert {(damage.region, str(damage.last_writer)) for damage in broken} == {
        (region, "core 1 cube" if region == "product" else "core 1 v0")
    }
    on.armed = None
    call(on, given(37, 5, 90))
    assert on.check_integrity() == []


def test_what_an_aborted_launch_has_not_come_to_write_is_not_called_damaged() -> None:
    on = device("enhanced", 3, faults=(Arm.parse("dropped:site=product,core=1"),), settings={"max_retries": 0})
    with pytest.raises(StaleRead):
        call(on, given(37, 5, 90))
    found = on.check_integrity()
    assert "unwritten" in {damage.what for damage in found}
    assert [str(damage) for damage in found if damage.what != "unwritten" and damage.region != "product"] == []
    outputs = [damage for damage in found if damage.region == "out_stamp"]
    assert outputs
    assert all("never written in this call" in str(damage) for damage in outputs)


@pytest.mark.parametrize("keeps_log", [True, False])
@pytest.mark.parametrize(("part", "region"), [(0, "stamp"), (1, "max"), (2, "sum"), (3, "target_logit")])
def test_a_damaged_record_is_placed_in_its_stamp_or_the_part_that_is_damaged(
    part: int, region: str, keeps_log: bool
) -> None:
    on = device("enhanced", 3, keeps_log=keeps_log)
    call(on, given(37, 5, 90))
    assert on._plan is not None
    span = on._plan.layout.slot(1, 0, 1).spans[part]
    for word in range(8) if region == "stamp" else range(2):
        array = on._memory.arrays[region].view(np.uint32 if region != "stamp" else np.uint64)
        array[span.start + word] ^= array.dtype.type(1)
        (damage,) = on.check_integrity()
        assert (damage.what, damage.region) == ("record", region)
        assert str(damage.last_writer) == ("core 1 v0" if keeps_log else "None")
        array[span.start + word] ^= array.dtype.type(1)
    assert on.check_integrity() == []


def test_guard_words_lie_after_every_slot_stamp_and_half_of_a_product() -> None:
    on = device("duplicated", 3)
    call(on, given(37, 5, 90))
    assert on._plan is not None
    layout, memory = on._plan.layout, on._memory
    after = [layout.product(core, 0, half, 4, 16) for core in range(3) for half in (0, 1)]
    for core in range(3):
        for half_block in range(layout.half_blocks):
            after += layout.slot(core, half_block, core, 1).spans
    for number in range(6):
        after += [layout.outputs(number, 0, range(1)).stamp, layout.targets(number, 0, range(8)).stamp]
    words = memory.arena.view(np.uint64)
    for region, _, stop in after:
        place = memory.regions[region]
        end = -(-(place.offset + stop * place.dtype.itemsize) // 64) * 8  # the rest of the last line is padding
        assert (words[end : end + 8] == GUARD).all(), region


def test_guard_words_among_cells_are_found_where_they_are_broken() -> None:
    memory = Memory([("a", np.float32, 3 * 32, Cells(32, 16)), ("b", np.int64, 9)])
    for cell in range(3):
        memory.store(Span("a", 32 * cell, 32 * cell + 16), np.ones(16, np.float32))
        assert memory.broken_guards() == []
    memory.arrays["a"][32 + 20] = 1.0
    assert memory.broken_guards() == [("a", 64 + 4 * 52)]
    memory.place_guards()
    assert memory.broken_guards() == []


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
