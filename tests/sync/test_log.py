"""Events say what a machine did: all of it, once, in order, with every reference leading where it should."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from steadysum.errors import StaleRead
from steadysum.sync.actions import Compute, Note, Place, Program, Word
from steadysum.sync.interference import Interference
from steadysum.sync.log import events
from steadysum.sync.memory import Memory
from steadysum.sync.policies import ENHANCED, LEGACY
from steadysum.sync.schedule import parse_schedule
from steadysum.sync.virtual import SCHEDULERS, Launch, VirtualRunner
from steadysum.trace.events import ACTIONS, OUTCOMES, Event, Unit

from .hazard_programs import (
    ONE,
    TWO,
    ZERO,
    Actions,
    add,
    at,
    barrier,
    exchange_run,
    fence,
    launch,
    read,
    signal,
    wait,
    write,
)

A, B, C = at(0, "out"), at(1, "meet"), at(2, "in")


def in_order(actions: Actions, schedule: str, interference: Interference | None = None) -> tuple[Event, ...]:
    return events(VirtualRunner().replay(launch(actions, interference), parse_schedule(schedule)))


def of(found: Sequence[Event], unit: Unit, action: str) -> Event:
    (event,) = (event for event in found if event.unit == unit and event.action == action)
    return event


# ---- of every run ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "parts", [LEGACY, ENHANCED, ENHANCED._replace(fence=False)], ids=["legacy", "enhanced", "bare"]
)
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_events_are_whole_and_their_references_lead_to_what_they_name(parts: Any, scheduler: str) -> None:
    for seed in range(20):
        found = events(exchange_run(parts, seed, scheduler))
        assert [event.number for event in found] == list(range(len(found)))
        written: dict[int, Event] = {}
        drained: set[int] = set()
        for event in found:
            assert event.action in ACTIONS
            assert event.outcome in OUTCOMES
            assert 0 <= event.begin <= event.end
            assert (event.epoch, event.phase != "") == (event.place[0], True)
            if event.action == "write":
                assert len(event.writes) == len(event.spans)
                written.update(dict.fromkeys(event.writes, event))
            elif event.action == "drain":
                (word,) = event.writes
                assert word not in drained
                drained.add(word)
                write = written[word]
                assert (event.unit, event.place, event.phase) == (write.unit, write.place, write.phase)
                (whole,), own = event.spans, write.spans[write.writes.index(word)]
                assert whole[0] == own[0]
                assert whole[1] <= own[1] < own[2] <= whole[2]
            elif event.action in ("await", "barrier"):
                seen = [found[number] for number in event.writes]
                assert all(each.action in ("signal", "barrier") and each.value >= event.value for each in seen)
                owners = {(each.unit.core, each.unit.role) for each in seen}
                awaited = {(core, role) for _, core, role in event.flags}
                assert owners == awaited if event.outcome == "ok" else owners < awaited
        assert drained == set(written)


# ---- of one action --------------------------------------------------------------------------------------------------


def test_an_await_names_the_signal_that_it_has_seen() -> None:
    found = in_order({ZERO: [signal(A, "sent", ZERO)], ONE: [wait(C, "sent", ZERO)]}, "s1 s0 s1")
    sent, seen = found
    assert (sent.action, sent.detail, sent.flags, sent.value) == ("signal", "sent", (("sent", 0, "core"),), 1)
    assert (seen.action, seen.detail, seen.flags, seen.writes) == ("await", "sent", (("sent", 0, "core"),), (0,))
    assert (seen.begin, seen.end) == (0.0, 2.0)  # from the choice that began it to the one that ended it


def test_a_barrier_is_one_event_from_its_arrival_to_its_end() -> None:
    members = (ZERO, ONE)
    found = in_order({unit: [barrier(B, unit, members)] for unit in members}, "s0 s1 s0")
    late, early = found  # unit 1 came last, and ended first
    assert [(event.unit, event.begin, event.end) for event in found] == [(ONE, 1.0, 1.0), (ZERO, 0.0, 2.0)]
    assert early.detail == "barrier"
    assert early.flags == late.flags == (("barrier", 0, "core"), ("barrier", 1, "core"))
    assert early.writes == late.writes == (early.number, late.number)


def test_a_wait_that_times_out_names_those_that_came() -> None:
    members = (ZERO, ONE, TWO)
    actions: Actions = {
        ZERO: [barrier(B, ZERO, members)],
        ONE: [barrier(B, ONE, members)],
        TWO: [barrier(B, TWO, members, timeout=1.0)],
    }
    found = in_order(actions, "s0 s2 t2 s1 s0")
    given_up = of(found, TWO, "barrier")
    assert given_up.outcome == "timeout"
    assert {found[number].unit for number in given_up.writes} == {ZERO, TWO}
    assert {found[number].unit for number in of(found, ONE, "barrier").writes} == {ZERO, ONE, TWO}


def test_a_wait_that_never_ends_is_in_the_log() -> None:
    members = (ZERO, ONE)
    actions: Actions = {ZERO: [wait(A, "sent", ONE)], ONE: [barrier(B, ONE, members)]}
    found = in_order(actions, "s0 s1")
    assert [(event.unit, event.action, event.outcome, event.begin) for event in found] == [
        (ZERO, "await", "dead", 0.0),
        (ONE, "barrier", "dead", 1.0),
    ]


def test_accesses_name_their_spans_and_a_drain_the_whole_line() -> None:
    actions: Actions = {ZERO: [write(A, 4, 8), fence(A), read(C, 0, 32), add(C, 3, 5)]}
    found = in_order(actions, "s0 s0 s0 s0")
    assert [(event.action, event.spans, event.writes) for event in found] == [
        ("write", (("slots", 4, 8),), (1,)),
        ("drain", (("slots", 0, 16),), (1,)),
        ("fence", (), ()),
        ("read", (("slots", 0, 32),), ()),
        ("add", (("slots", 3, 5),), ()),
    ]


def test_times_on_the_clock_are_those_of_the_timing() -> None:
    actions: Actions = {ZERO: [read(A), Compute(B, lambda: None, 7.0, "merge"), read(C)]}
    found = events(VirtualRunner().run(launch(actions)))
    assert [(event.begin, event.end) for event in found] == [
        (0.0, 0.2),  # a read takes 0.2 us
        (0.2, pytest.approx(7.2)),
        (pytest.approx(7.2), pytest.approx(7.4)),
    ]
    assert found[1].detail == "merge"


# ---- policies -------------------------------------------------------------------------------------------------------


def test_a_retry_is_an_event_and_the_read_before_it_was_stale() -> None:
    note = Note(C, "retry", "stale", "stamp of call 1", 0)
    found = in_order({ONE: [read(C), read(C), note, read(C)]}, "s0 s0 s0 s0")
    assert [(event.action, event.outcome, event.detail) for event in found] == [
        ("read", "ok", ""),
        ("read", "stale", ""),
        ("retry", "stale", "stamp of call 1"),
        ("read", "ok", ""),
    ]


def test_an_error_is_an_event_and_the_read_that_it_is_about_was_stale() -> None:
    def program() -> Program:
        yield read(C)
        raise StaleRead("record of core 1", "no stamp yet", "a record", "Run it again.", (1,))

    memory = Memory([("slots", np.float32, 64)])
    found = events(VirtualRunner().run(Launch(memory, lambda: {ZERO: program()})))
    assert [(event.action, event.outcome, event.place) for event in found] == [
        ("read", "stale", C[:3]),
        ("compute", "raised", C[:3]),
    ]
    assert found[1].detail == "StaleRead: record of core 1: got no stamp yet; allowed: a record. Run it again."


# ---- faults ---------------------------------------------------------------------------------------------------------


class Meddler(Interference):
    """Unit 0 is late at its second action, unit 1 dies at its second; of what unit 2 writes the first word is lost."""

    def delay(self, unit: Unit, action: Any) -> float:
        return 5.0 if unit == ZERO and action.place == C else 0.0

    def dies(self, unit: Unit, place: Place) -> bool:
        return unit == ONE and place == C

    def written(self, unit: Unit, action: Any) -> Sequence[Word]:
        return action.words[1:] if unit == TWO else action.words  # type: ignore[no-any-return]


def test_faults_are_events_in_the_place_of_the_action_that_they_hold_up() -> None:
    found = in_order({ZERO: [read(A), read(C)], ONE: [read(A), read(C)]}, "s0 s0 w0 s0 s1 s1", Meddler())
    assert [(event.unit, event.action, event.outcome, event.place, event.detail) for event in found] == [
        (ZERO, "read", "ok", A[:3], ""),
        (ZERO, "fault", "ok", C[:3], "delay of 5 us"),
        (ZERO, "read", "ok", C[:3], ""),
        (ONE, "read", "ok", A[:3], ""),
        (ONE, "fault", "dead", C[:3], "dead, before its read"),
    ]


def test_a_write_names_the_words_that_entered_the_store_buffer() -> None:
    both = write(A, 0, 16)._replace(words=(*write(A, 0, 16).words, *write(A, 16, 32).words))
    found = in_order({ZERO: [both], TWO: [both]}, "s0 s1", Meddler())
    assert of(found, ZERO, "write").spans == (("slots", 0, 16), ("slots", 16, 32))
    assert of(found, TWO, "write").spans == (("slots", 16, 32),)
    (all_lost,) = in_order({TWO: [write(A)]}, "s0", Meddler())
    assert (all_lost.spans, all_lost.writes) == ((), ())


# ---- one call of several --------------------------------------------------------------------------------------------


def test_the_events_of_one_call_are_numbered_among_themselves() -> None:
    run = exchange_run(ENHANCED, 3, "clock")
    whole = events(run)
    for epoch in (1, 2):
        part = events(run, epoch)
        expected = [event for event in whole if event.epoch == epoch]
        assert [event.number for event in part] == list(range(len(expected)))
        for event, same in zip(part, expected, strict=True):
            references = event.action in ("await", "barrier")
            assert event._replace(number=0, writes=()) == same._replace(number=0, writes=())
            seen, all_seen = (event.writes, same.writes) if references else ((), ())
            assert [part[number].unit for number in seen] == [whole[number].unit for number in all_seen]
    assert len(events(run, 1)) + len(events(run, 2)) == len(whole)


def test_a_run_without_a_log_has_no_events() -> None:
    silent = launch({ZERO: [read(A)]})._replace(log=False)
    assert events(VirtualRunner().run(silent)) == ()


def test_the_same_seed_gives_the_same_events() -> None:
    for scheduler in SCHEDULERS:
        assert events(exchange_run(LEGACY, 5, scheduler)) == events(exchange_run(LEGACY, 5, scheduler))
