"""Decisions: which armed fault acts at which opportunity, counted, drawn once, and replayed from a schedule.

A decision is numbered (arm, opportunity within the step) and written into the schedule by the runner; a replay takes
it from there, and draws nothing. What an action does in detail (which bit, how long) follows from the seed, the arm,
the epoch, and how often it has acted in that epoch, so that a replay gives the same bits. Not here: what an arm does
(faults.py).
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from steadysum.cores.arm import Arm
from steadysum.sync.actions import Place
from steadysum.sync.interference import Interference
from steadysum.trace.events import Unit

__all__ = ["Decision", "Decisions"]

Decision = tuple[int, int]  # (number of the arm, opportunity within the step)


class Decisions(Interference):
    """Arms, their counters, and what is drawn for them.

    Args:
        arms: the faults; numbered in schedules by their position here.
        seed: of all that is drawn.
    """

    def __init__(self, arms: Sequence[Arm], seed: int = 0) -> None:
        super().__init__()
        self.arms = tuple(arms)
        self.seed = seed
        self._kinds = frozenset(arm.kind for arm in self.arms)
        self._acted = [0] * len(self.arms)
        self._offered = [0] * len(self.arms)
        self._drawn = [0] * len(self.arms)  # how often each has acted by a draw of its own: what `most` limits
        self._call = 0  # number of the call; 0: a call is an epoch
        self._draws = [random.Random(f"{seed}/{number}") for number in range(len(self.arms))]
        self._in_epoch: dict[tuple[int, int], int] = {}  # by (arm, epoch): how often it has acted
        self._opportunities: dict[int, int] = {}  # by arm, in this step
        self._fitting: dict[tuple[str, Unit, str, int], tuple[tuple[int, Arm], ...]] = {}

    def counts(self) -> dict[str, int]:
        """How often each arm has acted, by its text; 0 if it never did."""
        return self._by_text(self._acted)

    def offers(self) -> dict[str, int]:
        """How often each arm could have acted, by its text."""
        return self._by_text(self._offered)

    def _by_text(self, numbers: list[int]) -> dict[str, int]:
        found: dict[str, int] = {}
        for arm, number in zip(self.arms, numbers, strict=True):
            found[str(arm)] = found.get(str(arm), 0) + number
        return found

    def begin_call(self, call: int, epoch: int) -> None:
        """A launch of the call begins; draws are its own, so that it doesn't matter which calls came before."""
        self._call = call
        self._draws = [random.Random(f"{self.seed}/{number}/{call}/{epoch}") for number in range(len(self.arms))]
        self._in_epoch.clear()
        self._fitting.clear()

    def begin_step(self, script: frozenset[Decision] | None) -> None:
        """A step begins; with a script, what acts in it is settled."""
        super().begin_step(script)
        self._opportunities = {}

    def _covers(self, arm: Arm, epoch: int) -> bool:
        """Whether an arm is armed in this call."""
        return arm.covers(self._call or epoch)

    def _arms(self, kind: str, unit: Unit, place: Place) -> tuple[tuple[int, Arm], ...]:
        """The arms of a kind that fit here, but for their site, with their numbers."""
        if kind not in self._kinds:
            return ()
        call = self._call or place.epoch
        key = (kind, unit, place.phase, call)
        found = self._fitting.get(key)
        if found is None:
            found = self._fitting[key] = tuple(
                (number, arm)
                for number, arm in enumerate(self.arms)
                if arm.kind == kind and arm.covers(call) and arm.fits(unit) and arm.fits_phase(place)
            )
        return found

    def _decide(self, number: int, follows: bool = False) -> Decision | None:
        """An opportunity: the decision if the arm acts at it. `follows`: it goes on with what it began."""
        decision = (number, self._opportunities.get(number, 0))
        self._opportunities[number] = decision[1] + 1
        self.offered.append(decision)
        self._offered[number] += 1
        if self.script is not None:
            return decision if decision in self.script else None
        arm = self.arms[number]
        if follows:
            return decision
        if arm.most is not None and self._drawn[number] >= arm.most:
            return None
        return decision if arm.probability >= 1.0 or self._draws[number].random() < arm.probability else None

    def _act(self, decision: Decision, epoch: int, follows: bool = False) -> None:
        """The arm acts: counted, and told to the runner."""
        number = decision[0]
        self.acted.append(decision)
        self._acted[number] += 1
        self._drawn[number] += not follows
        key = (number, epoch)
        self._in_epoch[key] = self._in_epoch.get(key, 0) + 1

    def _acts(self, number: int, epoch: int, follows: bool = False) -> bool:
        """Whether the arm acts at this opportunity; if so, it has."""
        decision = self._decide(number, follows)
        if decision is None:
            return False
        self._act(decision, epoch, follows)
        return True

    def _details(self, number: int, epoch: int) -> random.Random:
        """Draws the details of the arm's next action."""
        acted = self._in_epoch.get((number, epoch), 0)
        return random.Random(f"{self.seed}/{number}/{self.arms[number]}/{epoch}/{acted}")
