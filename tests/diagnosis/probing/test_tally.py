"""Runs are counted over batches, and those that fail are runs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from steadysum.diagnosis.isolation.journal import Result
from steadysum.diagnosis.isolation.supervisor import Batch, Ending
from steadysum.diagnosis.probing.tally import Tally


def batch(digests: str, ending: Ending = Ending("complete"), **acted: int) -> Batch:  # noqa: B008 - immutable
    """A batch whose runs gave these digests, a letter each."""
    results = tuple(Result(letter, 0.5) for letter in digests)
    return Batch((), len(digests), results, ending, {letter: Path(letter) for letter in digests}, acted)


def test_the_most_frequent_digest_is_told_over_all_batches() -> None:
    tally = Tally()
    tally.add(batch("aab"))
    tally.add(batch("bbb"))
    assert tally.most_frequent() == "b"
    assert tally.unlike("b") == (1, 2)


def test_a_run_that_raised_is_a_run_and_unlike_any_other() -> None:
    tally = Tally()
    tally.add(batch("aa", Ending("exception", 3, "ValueError")))
    tally.add(batch("aaaa"))
    assert (tally.runs, tally.failed) == (7, 1)
    assert tally.unlike("a") == (3,)


def test_the_first_failure_is_remembered_with_its_run_among_all() -> None:
    tally = Tally()
    tally.add(batch("aa"))
    tally.add(batch("a", Ending("hang", 2, "stacks")))
    tally.add(batch("aa"))
    assert tally.ending == Ending("hang", 4, "stacks")


def test_counters_of_conditions_add_up_and_first_kept_files_stay() -> None:
    tally = Tally()
    tally.add(batch("a", delays=2))
    tally.add(batch("ab", delays=3))
    assert tally.acted == Counter(delays=5)
    assert sorted(tally.kept) == ["a", "b"]


def test_no_runs_have_no_result_and_take_no_time() -> None:
    assert Tally().most_frequent() is None
    assert Tally().seconds == 0.0
