"""Notices reach whoever listens, from every thread, and a listener that fails never stops the work."""

from __future__ import annotations

import threading

import pytest

from steadysum import notices
from steadysum.notices import Notice, heard, listen, post


def test_a_notice_reaches_every_listener_and_nobody_afterwards() -> None:
    first: list[Notice] = []
    second: list[Notice] = []
    with listen(first.append), listen(second.append):
        assert heard()
        post("retry", operator="a")
    post("retry", operator="b")
    assert not heard()
    assert first == second == [Notice("retry", {"operator": "a"}, 1.0)]


def test_notices_of_other_threads_are_heard() -> None:
    seen: list[Notice] = []
    with listen(seen.append):
        thread = threading.Thread(target=post, args=("healed_tile", 3.0), kwargs={"operator": "a"})
        thread.start()
        thread.join()
    assert [notice.value for notice in seen] == [3.0]


def test_a_listener_that_fails_is_warned_of_and_the_next_one_hears() -> None:
    seen: list[Notice] = []

    def fails(notice: Notice) -> None:
        raise OSError("disk full")

    with listen(fails), listen(seen.append), pytest.warns(RuntimeWarning, match="disk full"):
        post("retry", operator="a")
    assert len(seen) == 1


def test_a_notice_has_the_labels_of_its_kind() -> None:
    with listen([].append), pytest.raises(KeyError, match="operator"):
        post("retry", point="a")
    assert notices.KINDS["retry"] == ("operator",)
