"""Sampling: which calls are checked, and when the strong checks come in."""

from __future__ import annotations

import copy
import pickle
import threading

import pytest

from steadysum.errors import RangeError
from steadysum.guard.checks.protocol import Check, Finding, Made
from steadysum.guard.sampling import Escalate, Sampler


class Named:
    """A check that passes everything."""

    def __init__(self, name: str) -> None:
        self.name = name

    def fits(self, made: Made) -> str | None:  # noqa: ARG002
        return None

    def judge(self, made: Made) -> Finding:  # noqa: ARG002
        return Finding(self.name, True)


CHEAP: tuple[Check, ...] = (Named("cheap"),)
STRONG: tuple[Check, ...] = (Named("strong"),)


def calls(sampler: Sampler, number: int) -> list[int]:
    """How many checks each of the next calls has."""
    return [len(sampler.next()) for _ in range(number)]


def test_the_first_and_then_every_nth_call_is_checked() -> None:
    assert calls(Sampler(CHEAP, 3, None), 7) == [1, 0, 0, 1, 0, 0, 1]
    assert calls(Sampler(CHEAP, 1, None), 3) == [1, 1, 1]


def test_strong_checks_come_in_after_so_many_strikes_within_the_window() -> None:
    sampler = Sampler(CHEAP, 1, Escalate(STRONG, strikes=2, window=4))
    calls(sampler, 1)
    assert not sampler.strike()
    calls(sampler, 2)
    assert sampler.strike()
    assert calls(sampler, 5) == [2, 2, 2, 2, 1]


def test_strikes_further_apart_than_the_window_do_not_add_up() -> None:
    sampler = Sampler(CHEAP, 1, Escalate(STRONG, strikes=2, window=4))
    calls(sampler, 1)
    sampler.strike()
    calls(sampler, 4)
    assert not sampler.strike()


def test_a_strike_while_escalated_begins_the_window_anew_and_is_not_told_again() -> None:
    sampler = Sampler(CHEAP, 10, Escalate(STRONG, strikes=1, window=3))
    calls(sampler, 1)
    assert sampler.strike()
    assert calls(sampler, 2) == [2, 2]
    assert not sampler.strike()
    assert calls(sampler, 4) == [2, 2, 2, 0]


def test_while_escalated_every_call_is_checked() -> None:
    sampler = Sampler(CHEAP, 100, Escalate(STRONG, strikes=1, window=5))
    calls(sampler, 1)
    sampler.strike()
    assert calls(sampler, 6) == [2, 2, 2, 2, 2, 0]


def test_threads_share_the_count() -> None:
    sampler = Sampler(CHEAP, 10, None)
    counts: list[int] = []
    workers = [threading.Thread(target=lambda: counts.extend(calls(sampler, 250))) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sum(counts) == 100


def test_copies_count_on_by_themselves() -> None:
    sampler = Sampler(CHEAP, 2, None)
    calls(sampler, 1)
    for twin in (copy.deepcopy(sampler), pickle.loads(pickle.dumps(sampler))):
        assert calls(twin, 2) == [0, 1]
    assert calls(sampler, 1) == [0]


@pytest.mark.parametrize(
    ("strikes", "window", "text"),
    [
        (0, 3, "strikes: got 0; allowed: at least 1. 1: the strong checks follow the first failure."),
        (5, 3, "window: got 3; allowed: at least strikes, 5. More calls can't fail than there are."),
    ],
)
def test_limits_that_make_no_sense_are_refused(strikes: int, window: int, text: str) -> None:
    with pytest.raises(RangeError) as caught:
        Escalate(STRONG, strikes, window)
    assert str(caught.value) == text
