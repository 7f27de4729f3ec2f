"""Calls with faults, counted: how many are right at once, how many after they were made again, and how long it took.

A call that raises is no right call. Its caller may make it again, which is a call like any other: faults strike it at
the same rate. So the counts say for 0, 1, ... repeats how many calls were right by then. A wrong result is final, for
nobody knows that it is wrong. Not here: how a call is made and judged (emulated.py, native.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from steadysum.diagnosis.emulation.judge import Outcome
from steadysum.diagnosis.profiles.promises import Share

__all__ = ["REPEATS", "Answer", "Campaign", "Group", "Unwatched", "Watcher", "run_campaign"]

REPEATS: Final = 3  # of a call that raises: as often as protect repeats one, and as the field report does (R12, R24)


class Group(StrEnum):
    """Which faults are drawn."""

    EXCHANGE = "exchange"  # of the emulated device: in what cores exchange, the field report's fault among them
    COVERED = "covered"  # of the native kernel: in what checksums and digests cover
    ALL = "all kinds"


class Answer(NamedTuple):
    """What one call came to."""

    outcome: Outcome
    time: float  # seconds
    fault: str | None = None  # the fault that acted in it, if one did
    is_void: bool = False  # a fault was armed, and its counter says that it never acted


class Watcher(Protocol):
    """Who is told how a measurement goes, and may end it."""

    def stopped(self) -> bool:
        """Whether to end before the next call."""

    def begins(self, what: str, calls: int) -> None:
        """A part begins that takes so many calls."""

    def progressed(self) -> None:
        """A call is done."""


class Unwatched:
    """Tells nobody, and never ends a measurement."""

    def stopped(self) -> bool:
        """Never."""
        return False

    def begins(self, what: str, calls: int) -> None:
        """Nobody is told."""

    def progressed(self) -> None:
        """Nobody is told."""


@dataclass
class Campaign:
    """The counts of one campaign, so far."""

    device: str  # "emulated" or "native"
    subject: str  # the profile, or how the kernel verifies
    group: Group
    rate: float  # of calls with a fault, as asked for
    planned: int  # calls
    calls: int = 0
    void: int = 0  # right calls left out beside, since their fault never acted
    answers: int = 0  # calls and repeats
    acted: int = 0  # answers with a fault that acted
    right: Counter[int] = field(default_factory=Counter)  # by the number of repeats
    differs: int = 0  # calls with other bits, by at most 1e-3
    deviates: int = 0  # calls off by more
    raised: int = 0  # calls that raised in all repeats
    raised_at_once: int = 0  # calls that raised before any repeat
    seconds: float = 0.0
    clean_seconds: float = 0.0  # that the same calls take without faults and without any policy
    faults: dict[str, Counter[str]] = field(default_factory=dict)  # answers in which each acted, by outcome

    def share_right(self, repeats: int) -> Share:
        """Calls that were right after at most so many repeats."""
        return Share(sum(count for needed, count in self.right.items() if needed <= repeats), self.calls)

    @property
    def share_near(self) -> Share:
        """Calls whose result doesn't deviate, after all repeats: what the field report counts as right."""
        return Share(sum(self.right.values()) + self.differs, self.calls)

    @property
    def cost(self) -> float | None:
        """Total time over total clean time."""
        return self.seconds / self.clean_seconds if self.clean_seconds else None


def run_campaign(
    campaign: Campaign,
    answer: Callable[[int], Answer],
    clean_seconds: Callable[[int], float],
    watcher: Watcher,
) -> Campaign:
    """Make the planned calls, or as many as the watcher lets us.

    Args:
        campaign: where counts go; with none yet.
        answer: makes the call of this number, from 0; the same number again is a repeat.
        clean_seconds: what that call takes without faults and policy.
        watcher: who is told, and may end it.

    Returns:
        The campaign.
    """
    watcher.begins(f"{campaign.subject}, {campaign.group.value}, {campaign.rate:.0%}", campaign.planned)
    number = 0
    while campaign.calls < campaign.planned and not watcher.stopped():
        _count(campaign, _answers(number, answer), clean_seconds(number), watcher)
        number += 1
    return campaign


def _answers(number: int, answer: Callable[[int], Answer]) -> list[Answer]:
    """A call, and its repeats while it raises."""
    made = [answer(number)]
    while made[-1].outcome is Outcome.RAISED and len(made) <= REPEATS:
        made.append(answer(number))
    return made


def _count(campaign: Campaign, made: list[Answer], clean_seconds: float, watcher: Watcher) -> None:
    # Whatever isn't right counts, also where no counter explains it: to leave it out would flatter.
    if made[0].is_void and made[0].outcome is Outcome.RIGHT:
        campaign.void += 1
        return
    last, repeats = made[-1], len(made) - 1
    campaign.calls += 1
    campaign.answers += len(made)
    campaign.seconds += sum(one.time for one in made)
    campaign.clean_seconds += clean_seconds
    campaign.raised_at_once += made[0].outcome is Outcome.RAISED
    campaign.right[repeats] += last.outcome is Outcome.RIGHT
    campaign.differs += last.outcome is Outcome.DIFFERS
    campaign.deviates += last.outcome is Outcome.DEVIATES
    campaign.raised += last.outcome is Outcome.RAISED
    for one in made:
        if one.fault is not None:
            campaign.acted += 1
            campaign.faults.setdefault(one.fault, Counter())[one.outcome.value] += 1
    watcher.progressed()
