"""Hazards of small programs whose answer is known: the textbook's litmus tests, one by one."""

from __future__ import annotations

from typing import Any

import pytest

from steadysum.errors import RangeError
from steadysum.sync.actions import Action, Place, Write
from steadysum.sync.hazards import RAW, WAR, WAW, Hazard, Hazards, find_hazards
from steadysum.sync.interference import Interference
from steadysum.sync.log import events
from steadysum.sync.schedule import parse_schedule
from steadysum.sync.virtual import VirtualRunner

from .hazard_programs import (
    ONE,
    TWO,
    ZERO,
    Actions,
    add,
    at,
    barrier,
    fence,
    in_drawn_orders,
    in_order,
    launch,
    read,
    signal,
    wait,
    write,
)

A, B, C, D = (at(step, f"step {step}") for step in range(4))


def only(hazards: Hazards) -> Hazard:
    (hazard,) = hazards.found
    assert hazards.left_out == 0
    return hazard


def what(hazard: Hazard) -> tuple[Any, ...]:
    """All of a hazard but times and numbers of events."""
    first, second = hazard.first, hazard.second
    return (
        hazard.kind,
        (hazard.region, hazard.start, hazard.stop),
        (first.unit, first.action, first.phase),
        (second.unit, second.action, second.phase),
    )


# ---- message passing ------------------------------------------------------------------------------------------------


def message(*sending: Action) -> Actions:
    return {ZERO: sending, ONE: [wait(B, "sent", ZERO), read(B, 4, 12)]}


def test_a_message_that_is_fenced_and_then_signalled_is_ordered() -> None:
    assert not any(in_drawn_orders(message(write(A), fence(A), signal(A, "sent", ZERO))))


@pytest.mark.parametrize(
    "sending",
    [
        (write(A), signal(A, "sent", ZERO)),
        (write(A), signal(A, "sent", ZERO), fence(A)),
        (fence(A), write(A), signal(A, "sent", ZERO)),
    ],
    ids=["no fence", "fence after the signal", "fence before the write"],
)
def test_a_message_without_a_fence_between_is_a_read_after_write_hazard_in_every_run(sending: tuple[Action]) -> None:
    for hazards in in_drawn_orders(message(*sending)):
        hazard = only(hazards)
        assert what(hazard) == (RAW, ("slots", 4, 12), (ZERO, "write", "step 0"), (ONE, "read", "step 1"))
        assert (hazard.epoch, hazard.meant, hazard.crosstalk, hazard.count) == (1, True, False, 1)
        # Wrong exactly where the word came after the read.
        assert hazard.first.memory_event is not None
        assert hazard.manifest == (hazard.first.memory_event > hazard.second.event)


def test_a_word_that_drains_after_the_read_makes_the_hazard_manifest() -> None:
    hazard = only(in_order(message(write(A), signal(A, "sent", ZERO)), "s0 s0 s1 s1 d0.0"))
    assert hazard.manifest
    # Without a clock times are numbers of choices; the events are write, signal, await, read, drain.
    assert (hazard.first.at, hazard.second.at, hazard.first.in_memory) == (0.0, 3.0, 4.0)
    assert (hazard.first.event, hazard.second.event, hazard.first.memory_event) == (0, 3, 4)


def test_a_drain_that_was_early_orders_nothing_but_does_no_harm() -> None:
    assert not only(in_order(message(write(A), signal(A, "sent", ZERO)), "s0 d0.0 s0 s1 s1")).manifest


def test_a_read_that_comes_before_the_write_that_it_needs_is_read_after_write() -> None:
    hazard = only(in_order({ZERO: [write(A)], ONE: [read(B)]}, "s1 s0"))
    assert (hazard.kind, hazard.manifest) == (RAW, True)
    assert hazard.first.at > hazard.second.at


def test_a_signal_carries_what_its_unit_has_learned_from_others() -> None:
    relay: Actions = {
        ZERO: [write(A), fence(A), signal(A, "first", ZERO)],
        ONE: [wait(B, "first", ZERO), signal(B, "second", ONE)],
        TWO: [wait(C, "second", ONE), read(C)],
    }
    assert not any(in_drawn_orders(relay))


def test_a_fence_publishes_no_other_units_words() -> None:
    relay: Actions = {
        ZERO: [write(A), signal(A, "first", ZERO)],
        ONE: [wait(B, "first", ZERO), fence(B), signal(B, "second", ONE)],
        TWO: [wait(C, "second", ONE), read(C)],
    }
    assert {what(only(hazards))[2:] for hazards in in_drawn_orders(relay)} == {
        ((ZERO, "write", "step 0"), (TWO, "read", "step 2"))
    }


def test_a_signal_that_does_not_raise_its_flag_carries_nothing() -> None:
    twice: Actions = {
        ZERO: [
            *(write(A, 0, 16), fence(A), signal(A, "sent", ZERO)),
            *(write(B, 16, 32), fence(B), signal(B, "sent", ZERO)),
        ],
        ONE: [wait(C, "sent", ZERO), read(C, 0, 32)],
    }
    assert [what(only(hazards))[1] for hazards in in_drawn_orders(twice)] == [("slots", 16, 32)] * 90


# ---- buffers that are used again ------------------------------------------------------------------------------------


def double_use(frees: bool) -> Actions:
    """A buffer that one unit fills twice, and another one reads in between."""
    filling = [write(A), fence(A), signal(A, "ready", ZERO), write(C), fence(C)]
    taking = [wait(B, "ready", ZERO), read(B)]
    if frees:
        return {ZERO: [*filling[:3], wait(C, "free", ONE), *filling[3:]], ONE: [*taking, signal(B, "free", ONE)]}
    return {ZERO: filling, ONE: taking}


def test_a_buffer_that_is_given_back_before_it_is_filled_again_is_ordered() -> None:
    assert not any(in_drawn_orders(double_use(frees=True)))


def test_a_buffer_that_is_filled_again_without_asking_is_a_write_after_read_hazard_in_every_run() -> None:
    for hazards in in_drawn_orders(double_use(frees=False)):
        hazard = only(hazards)
        assert what(hazard) == (WAR, ("slots", 0, 16), (ONE, "read", "step 1"), (ZERO, "write", "step 2"))
        assert hazard.second.memory_event is not None
        assert hazard.manifest == (hazard.second.memory_event < hazard.first.event)


@pytest.mark.parametrize(
    ("schedule", "manifest"),
    [
        ("s0 s0 s0 s1 s1 s0 s0", False),  # read, and then filled again
        ("s0 s0 s0 s0 s1 s1 s0", False),  # filled again, but the word drains after the read
        ("s0 s0 s0 s0 s0 s1 s1", True),
    ],
)
def test_a_write_after_read_hazard_is_manifest_where_the_read_got_the_later_value(
    schedule: str, manifest: bool
) -> None:
    assert only(in_order(double_use(frees=False), schedule)).manifest == manifest


# ---- two writers ----------------------------------------------------------------------------------------------------


def test_two_unordered_writes_of_one_place_are_a_write_after_write_hazard() -> None:
    both: Actions = {ZERO: [write(A, 0, 16)], ONE: [write(B, 0, 32)]}
    hazard = only(in_order(both, "s0 s1 d1.0 d0.0"))
    assert what(hazard) == (WAW, ("slots", 0, 16), (ZERO, "write", "step 0"), (ONE, "write", "step 1"))
    assert (hazard.manifest, hazard.crosstalk) == (True, False)  # the earlier one came last
    assert not only(in_order(both, "s0 s1 d0.0 d1.0")).manifest


def test_two_writes_that_are_meant_in_no_order_are_a_hazard_that_nothing_makes_manifest() -> None:
    for order in ("d0.0 d1.0", "d1.0 d0.0"):
        hazard = only(in_order({ZERO: [write(A)], ONE: [write(A)]}, f"s0 s1 {order}"))
        assert (hazard.kind, hazard.meant, hazard.manifest) == (WAW, False, False)


def test_two_writers_of_one_line_undo_each_other() -> None:
    neighbours: Actions = {ZERO: [write(A, 0, 4)], ONE: [write(A, 4, 8)]}
    hazard = only(in_order(neighbours, "s0 s1 d0.0 d1.0"))  # unit 1's line brings back what was in 0..4
    assert (hazard.kind, hazard.crosstalk, hazard.manifest, hazard.count) == (WAW, True, True, 2)
    assert {hazard.first.unit, hazard.second.unit} == {ZERO, ONE}
    # Each saw the other's word before it wrote: nothing was lost in this run.
    assert not only(in_order(neighbours, "s0 d0.0 s1 d1.0")).manifest


def test_two_writers_of_different_lines_are_no_hazard() -> None:
    assert not any(in_drawn_orders({ZERO: [write(A, 0, 16)], ONE: [write(A, 16, 32)]}))


def test_two_writers_of_one_line_that_take_turns_are_ordered() -> None:
    turns: Actions = {
        ZERO: [write(A, 0, 4), fence(A), signal(A, "done", ZERO)],
        ONE: [wait(B, "done", ZERO), write(B, 4, 8)],
    }
    assert not any(in_drawn_orders(turns))


def test_reading_beside_a_write_in_its_line_is_no_hazard() -> None:
    assert not any(in_drawn_orders({ZERO: [write(A, 0, 4)], ONE: [read(B, 4, 16)]}))


# ---- barriers -------------------------------------------------------------------------------------------------------


def around_a_barrier(timeout: float | None) -> Actions:
    members = (ZERO, ONE, TWO)
    return {
        ZERO: [write(A, 0, 16), fence(A), barrier(B, ZERO, members)],
        ONE: [write(A, 16, 32), fence(A), barrier(B, ONE, members)],
        TWO: [barrier(B, TWO, members, timeout), read(C, 0, 32)],
    }


def test_a_barrier_orders_what_is_fenced_before_it() -> None:
    assert not any(in_drawn_orders(around_a_barrier(None)))


def test_a_barrier_that_times_out_orders_only_those_that_came() -> None:
    # Unit 0 came, unit 1 is still about to write when unit 2 gives up.
    hazard = only(in_order(around_a_barrier(1.0), "s0 s0 s0 s2 t2 s2 s1 s1 s1 s0"))
    assert what(hazard) == (RAW, ("slots", 16, 32), (ONE, "write", "step 0"), (TWO, "read", "step 2"))
    assert hazard.manifest


def test_an_arrival_carries_only_what_was_done_before_it() -> None:
    members = (ZERO, ONE)
    reading_late: Actions = {
        ZERO: [barrier(A, ZERO, members), read(B)],
        ONE: [barrier(A, ONE, members), write(C)],
    }
    assert {only(hazards).kind for hazards in in_drawn_orders(reading_late)} == {WAR}


# ---- atomic adds ----------------------------------------------------------------------------------------------------


def test_atomic_adds_are_no_hazard_to_each_other() -> None:
    assert not any(in_drawn_orders({ZERO: [add(A), add(B)], ONE: [add(A), add(C)]}))


def test_an_atomic_add_needs_a_signal_but_no_fence_to_be_read() -> None:
    adding: Actions = {
        ZERO: [add(A), signal(A, "added", ZERO)],
        ONE: [wait(B, "added", ZERO), read(B)],
    }
    assert not any(in_drawn_orders(adding))


@pytest.mark.parametrize(("schedule", "manifest"), [("s0 s1", False), ("s1 s0", True)])
def test_a_read_that_may_miss_an_atomic_add_is_a_read_after_write_hazard(schedule: str, manifest: bool) -> None:
    hazard = only(in_order({ZERO: [add(A)], ONE: [read(B)]}, schedule))
    assert what(hazard) == (RAW, ("slots", 0, 16), (ZERO, "add", "step 0"), (ONE, "read", "step 1"))
    assert hazard.manifest == manifest


@pytest.mark.parametrize(("schedule", "manifest"), [("s0 s1", False), ("s1 s0", True)])
def test_a_read_that_may_see_a_later_atomic_add_is_a_write_after_read_hazard(schedule: str, manifest: bool) -> None:
    hazard = only(in_order({ZERO: [read(A)], ONE: [add(B)]}, schedule))
    assert (hazard.kind, hazard.manifest) == (WAR, manifest)


@pytest.mark.parametrize(("schedule", "manifest"), [("s0 d0.0 s0 s1 s1", False), ("s0 s0 s1 s1 d0.0", True)])
def test_zeroing_that_is_not_fenced_may_wipe_an_atomic_add(schedule: str, manifest: bool) -> None:
    zeroed: Actions = {
        ZERO: [write(A), signal(A, "zeroed", ZERO)],
        ONE: [wait(B, "zeroed", ZERO), add(B)],
    }
    hazard = only(in_order(zeroed, schedule))
    assert what(hazard) == (WAW, ("slots", 0, 16), (ZERO, "write", "step 0"), (ONE, "add", "step 1"))
    assert hazard.manifest == manifest


def test_an_atomic_add_does_not_see_its_own_units_store_buffer() -> None:
    hazard = only(in_order({ZERO: [write(A), add(B)]}, "s0 s0 d0.0"))
    assert (hazard.kind, hazard.first.unit, hazard.second.unit, hazard.manifest) == (WAW, ZERO, ZERO, True)
    assert not any(in_drawn_orders({ZERO: [write(A), fence(A), add(B)]}))


@pytest.mark.parametrize("first", ["add", "write"])
@pytest.mark.parametrize(("schedule", "manifest"), [("s0 s1 d0.0", True), ("s0 d0.0 s1", False)])
def test_a_line_that_drains_beside_an_atomic_add_may_undo_it(first: str, schedule: str, manifest: bool) -> None:
    places = (B, A) if first == "add" else (A, B)
    hazard = only(in_order({ZERO: [write(places[0], 0, 4)], ONE: [add(places[1], 8, 12)]}, schedule))
    assert (hazard.kind, hazard.crosstalk, hazard.manifest) == (WAW, True, manifest)
    assert (hazard.first.action, (hazard.start, hazard.stop)) == (first, (8, 12))


# ---- what a run's values were ---------------------------------------------------------------------------------------


def of_kind(hazards: Hazards, kind: str, second: str) -> Hazard:
    """The hazard of this kind whose second access is in this phase."""
    (hazard,) = (each for each in hazards.found if (each.kind, each.second.phase) == (kind, second))
    return hazard


@pytest.mark.parametrize(
    ("schedule", "manifest"),
    [
        ("s0 d0.0 s1 s2", False),  # zeroed, added, read
        ("s0 s1 d0.0 s2", True),  # added, wiped by the zeroing, read
        ("s0 s1 s2 d0.0", False),  # wiped too late for the read
    ],
)
def test_a_read_misses_an_atomic_add_that_was_wiped_before_it(schedule: str, manifest: bool) -> None:
    hazards = in_order({ZERO: [write(A)], ONE: [add(B)], TWO: [read(C)]}, schedule)
    assert of_kind(hazards, RAW, "step 2").manifest == manifest


def test_a_read_sees_a_later_atomic_add_under_an_earlier_one() -> None:
    actions: Actions = {ZERO: [add(A), read(B)], ONE: [add(C)]}
    assert only(in_order(actions, "s1 s0 s0")).manifest
    assert not only(in_order(actions, "s0 s0 s1")).manifest


def test_a_read_misses_an_atomic_add_that_its_own_store_buffer_hides() -> None:
    actions: Actions = {ZERO: [write(A), read(C)], ONE: [add(B)]}
    assert of_kind(in_order(actions, "s0 s1 s0 d0.0"), RAW, "step 2").manifest
    assert not of_kind(in_order(actions, "s0 d0.0 s1 s0"), RAW, "step 2").manifest


def test_a_read_misses_a_write_that_its_own_store_buffer_hides() -> None:
    actions: Actions = {ZERO: [write(A), read(C)], ONE: [write(B)]}
    assert of_kind(in_order(actions, "s0 s1 d1.0 s0 d0.0"), RAW, "step 2").manifest
    assert not of_kind(in_order(actions, "s0 d0.0 s1 d1.0 s0"), RAW, "step 2").manifest


def test_a_line_brings_its_own_units_earlier_word_with_it_and_undoes_nothing() -> None:
    actions: Actions = {ZERO: [write(A, 0, 4), write(B, 8, 12)], ONE: [write(C, 0, 4)]}
    hazards = in_order(actions, "s0 s0 d0.0 d0.0 s1 d1.0")
    crosstalk = {hazard.first.phase: hazard.manifest for hazard in hazards.found if hazard.crosstalk}
    assert crosstalk["step 1"] is False


@pytest.mark.parametrize(("schedule", "manifest"), [("s0 d0.0 s1 d1.0 s2", False), ("s1 s0 d0.0 d1.0 s2", True)])
def test_a_read_misses_a_write_that_a_neighbours_line_has_undone(schedule: str, manifest: bool) -> None:
    hazards = in_order({ZERO: [write(A, 0, 4)], ONE: [write(A, 4, 8)], TWO: [read(C, 0, 4)]}, schedule)
    assert of_kind(hazards, RAW, "step 2").manifest == manifest


# ---- faults that break an order ------------------------------------------------------------------------------------


class BrokenFence(Interference):
    """No fence works."""

    def fences(self, *_: object) -> bool:
        return False


class OpenDoor(Interference):
    """No wait waits."""

    def passes(self, *_: object) -> str | None:
        return "ok"


def test_a_broken_fence_publishes_only_what_has_drained() -> None:
    sending = message(write(A), fence(A), signal(A, "sent", ZERO))
    hazard = only(in_order(sending, "s0 s0 s0 s1 s1 d0.0", BrokenFence()))
    assert (hazard.kind, hazard.manifest) == (RAW, True)
    assert not in_order(sending, "s0 d0.0 s0 s0 s1 s1", BrokenFence())


def test_a_wait_that_lets_its_unit_pass_orders_nothing() -> None:
    sending = message(write(A), fence(A), signal(A, "sent", ZERO))
    assert only(in_order(sending, "s1 s1 s0 s0 s0", OpenDoor())).manifest


# ---- reports --------------------------------------------------------------------------------------------------------


def test_pairs_that_are_alike_are_one_report_with_a_count() -> None:
    # One write in four words, read in four reads of the same phase: the manifest pair is the one that is shown.
    four = Write(A, tuple(write(A, start, start + 16).words[0] for start in range(0, 64, 16)))
    reading: Actions = {ZERO: [four], ONE: [read(B, start, start + 16) for start in range(0, 64, 16)]}
    hazard = only(in_order(reading, "s0 d0.0 d0.0 s1 s1 s1 s1"))
    assert hazard.count == 4
    assert (hazard.manifest, hazard.start, hazard.stop) == (True, 32, 48)


def test_calls_are_reported_one_by_one() -> None:
    places = [(at(0, "out", epoch), at(1, "in", epoch)) for epoch in (1, 2)]
    both: Actions = {
        ZERO: [write(places[0][0], 0, 16), write(places[1][0], 16, 32)],
        ONE: [read(places[0][1], 0, 16), read(places[1][1], 16, 32)],
    }
    assert [hazard.epoch for hazard in in_order(both, "s0 s0 s1 s1").found] == [1, 2]


def test_reports_are_bounded_and_the_manifest_ones_stay() -> None:
    places = [at(1, f"read {number}") for number in range(4)]
    four = Write(A, tuple(write(A, start, start + 16).words[0] for start in range(0, 64, 16)))
    reading: Actions = {ZERO: [four], ONE: [read(place, 16 * i, 16 * i + 16) for i, place in enumerate(places)]}
    run = VirtualRunner().run(launch(reading))
    assert len(find_hazards(events(run)).found) == 4
    third_is_late = VirtualRunner().replay(launch(reading), parse_schedule("s0 d0.3 d0.0 d0.0 s1 s1 s1 s1"))
    hazards = find_hazards(events(third_is_late), most=1)
    assert (len(hazards.found), hazards.left_out, hazards.pairs) == (1, 3, 4)
    assert (hazards.found[0].second.phase, hazards.found[0].manifest) == ("read 2", True)


def test_a_run_without_shared_memory_has_no_hazards() -> None:
    assert find_hazards(()) == Hazards((), 0, 0)
    assert not any(in_drawn_orders({ZERO: [signal(A, "sent", ZERO)], ONE: [wait(A, "sent", ZERO)]}, seeds=1))


def test_places_decide_what_is_meant_and_not_the_order_of_events() -> None:
    early, late = Place(1, 2, 5, "tiles"), Place(1, 3, 0, "combine")
    hazard = only(in_order({ZERO: [write(late)], ONE: [read(early)]}, "s0 d0.0 s1"))
    assert (hazard.kind, hazard.manifest) == (WAR, True)


def test_part_of_a_run_is_refused() -> None:
    whole = events(VirtualRunner().run(launch(double_use(frees=False))))
    with pytest.raises(RangeError, match=r"^events: got number 3 at position 0; allowed: all events of one run, "):
        find_hazards(whole[3:])
    with pytest.raises(RangeError, match=r"^most: got 0; allowed: at least 1 report"):
        find_hazards(whole, most=0)
