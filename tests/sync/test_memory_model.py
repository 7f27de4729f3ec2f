"""The memory model of actions.py, by litmus tests: which results are reachable, and which aren't."""

from __future__ import annotations

import itertools

import numpy as np

from steadysum.sync.actions import Fence, Program
from steadysum.sync.memory import Span

from .litmus import (
    PLACE,
    X,
    Y,
    add,
    await_flag,
    launch,
    reachable,
    reachable_naively,
    read,
    signal,
    write,
)

FENCE = Fence(PLACE)


def value_of(found: list[np.ndarray]) -> int:
    return int(found[0][0])


def stores_then_reads(own: Span, other: Span, fenced: bool):
    def program() -> Program:
        yield write((own, 1))
        if fenced:
            yield FENCE
        return value_of((yield read(other)))

    return program


def writer(*actions):
    def program() -> Program:
        yield from actions
        return 0

    return program


def reads_after_the_flag(*spans: Span):
    def program() -> Program:
        yield await_flag()
        return tuple(int(part[0]) for part in (yield read(*spans)))

    return program


def reads_in_turn(*spans: Span):
    def program() -> Program:
        found = []
        for span in spans:
            found.append(value_of((yield read(span))))
        return tuple(found)

    return program


BOTH = {(a, b) for a in (0, 1) for b in (0, 1)}


def test_two_units_can_both_miss_the_others_store() -> None:
    assert reachable(stores_then_reads(X, Y, False), stores_then_reads(Y, X, False)) == BOTH


def test_fences_let_one_unit_at_least_see_the_others_store() -> None:
    assert reachable(stores_then_reads(X, Y, True), stores_then_reads(Y, X, True)) == BOTH - {(0, 0)}


def test_one_fence_of_two_is_not_enough() -> None:
    assert (0, 0) in reachable(stores_then_reads(X, Y, True), stores_then_reads(Y, X, False))


def test_a_unit_sees_its_own_store_at_once() -> None:
    def program() -> Program:
        yield write((X, 1))
        return value_of((yield read(X)))

    assert reachable(program) == {(1,)}


def test_a_flag_can_be_seen_before_the_data_that_it_announces() -> None:
    found = reachable(writer(write((X, 1)), signal()), reads_after_the_flag(X))
    assert {reader for _, reader in found} == {(0,), (1,)}


def test_after_a_fence_a_flag_announces_what_was_written() -> None:
    found = reachable(writer(write((X, 1)), FENCE, signal()), reads_after_the_flag(X))
    assert {reader for _, reader in found} == {(1,)}


def test_a_fence_after_the_flag_comes_too_late() -> None:
    found = reachable(writer(write((X, 1)), signal(), FENCE), reads_after_the_flag(X))
    assert {reader for _, reader in found} == {(0,), (1,)}


def test_a_record_of_two_words_can_be_seen_torn_either_way() -> None:
    def reader() -> Program:
        return tuple(int(part[0]) for part in (yield read(X, Y)))

    found = reachable(writer(write((X, 1), (Y, 1))), reader)
    assert {seen for _, seen in found} == BOTH


def test_stores_to_two_places_can_be_seen_in_either_order() -> None:
    found = reachable(writer(write((X, 1)), write((Y, 1))), reads_in_turn(Y, X))
    assert (1, 0) in {seen for _, seen in found}


def test_a_fence_between_two_stores_keeps_their_order() -> None:
    found = reachable(writer(write((X, 1)), FENCE, write((Y, 1))), reads_in_turn(Y, X))
    assert {seen for _, seen in found} == BOTH - {(1, 0)}


def test_stores_to_one_place_are_seen_in_order() -> None:
    found = reachable(writer(write((X, 1)), write((X, 2))), reads_in_turn(X, X))
    assert {seen for _, seen in found} == {(a, b) for a in range(3) for b in range(3) if a <= b}


def test_two_readers_agree_on_the_order_of_two_stores_to_one_place() -> None:
    found = reachable(writer(write((X, 1))), writer(write((X, 2))), reads_in_turn(X, X), reads_in_turn(X, X))
    pairs = {(first, second) for _, _, first, second in found}
    assert ((1, 2), (1, 2)) in pairs
    assert ((2, 1), (2, 1)) in pairs
    assert ((1, 2), (2, 1)) not in pairs
    assert ((2, 1), (1, 2)) not in pairs


def test_two_units_that_write_into_one_line_can_undo_each_others_words() -> None:
    def program(position: int):
        def run() -> Program:
            yield write((Span("line", position, position + 1), 1))
            yield FENCE
            return value_of((yield read(Span("line", position, position + 1))))

        return run

    assert reachable(program(0), program(1), regions=[("line", np.int64, 8)]) == {(1, 1), (0, 1), (1, 0)}


def test_two_units_that_write_whole_lines_of_their_own_undo_nothing() -> None:
    def program(position: int):
        own = Span("line", 8 * position, 8 * position + 8)

        def run() -> Program:
            yield write((own, [1] * 8))
            yield FENCE
            return value_of((yield read(own)))

        return run

    assert reachable(program(0), program(1), regions=[("line", np.int64, 16)]) == {(1, 1)}


def adder(value: int):
    def program() -> Program:
        yield add(X, value)
        return value_of((yield read(X)))

    return program


def test_atomic_additions_are_never_lost() -> None:
    for results in reachable(adder(1), adder(2), adder(4)):
        assert max(results) == 7  # the last one to read finds them all
        assert all(seen & own for seen, own in zip(results, (1, 2, 4), strict=True))


def test_additions_by_reading_and_writing_are_lost() -> None:
    def program() -> Program:
        so_far = value_of((yield read(X)))
        yield write((X, so_far + 1))
        yield FENCE
        return value_of((yield read(X)))

    assert (1, 1) in reachable(program, program)


def test_a_wait_without_a_flag_gives_the_flags_that_are_missing() -> None:
    def program() -> Program:
        missing = yield await_flag(timeout=1.0)
        return len(missing)

    assert reachable(writer(signal()), program) == {(0, 0), (0, 1)}


def test_every_exploration_finds_what_running_every_sequence_of_choices_finds() -> None:
    readers = reads_in_turn(Y, X), reads_after_the_flag(X, Y)
    for fenced, reader in itertools.product((False, True), readers):
        programs = writer(write((X, 1)), *([FENCE] if fenced else []), write((Y, 1)), signal()), reader
        assert reachable(*programs) == reachable_naively(lambda programs=programs: launch(*programs))
    pair = stores_then_reads(X, Y, False), stores_then_reads(Y, X, True)
    assert reachable(*pair) == reachable_naively(lambda: launch(*pair))
