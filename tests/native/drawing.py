"""Draws problems until some of every kind have been drawn.

What hypothesis draws depends on which modules are loaded, so that one round may lack a kind that is seldom drawn.
Not here: the problems, or what is wanted of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

ROUNDS: Final = 5


def check_until_all_kinds_are_drawn(
    problems: st.SearchStrategy[Any], check: Callable[[Any], None], examples: int, lacking: Callable[[], list[str]]
) -> None:
    """Check `examples` problems a round, and begin another round while kinds are lacking; fails if some still are."""
    for attempt in range(ROUNDS):

        @seed(attempt)
        @settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
        @given(problem=problems)
        def once(problem: Any) -> None:
            check(problem)

        once()
        if not lacking():
            return
    assert lacking() == []
