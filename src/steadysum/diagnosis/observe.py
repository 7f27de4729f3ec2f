"""Runs a call again and again, and records what it returned, without hiding a fault that depends on timing.

Kept are the first output, a 128-bit digest of every run, and one full output for each other digest, at most 16.
Nothing is compared here: that comes after the runs (steadysum.diagnosis.probes).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from steadysum.diagnosis.digest import digest

# Copying every output would slow the runs down, and a slower run can hide a race.
MOST_KEPT = 16

Outputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class Recording:
    """What the runs of one call returned, in order."""

    digests: tuple[int, ...]  # one for each run
    kept: dict[int, Outputs]  # digest -> the first output with it; at most 1 + MOST_KEPT of them

    @property
    def calls(self) -> int:
        """The number of runs."""
        return len(self.digests)

    @property
    def usual(self) -> int:
        """The digest that most runs gave; the earliest of several equally frequent ones."""
        return Counter(self.digests).most_common(1)[0][0]

    @property
    def usual_outputs(self) -> Outputs:
        """The outputs behind `usual`; the first run's where they weren't kept (more than 16 different ones before)."""
        return self.kept.get(self.usual, self.kept[self.digests[0]])

    @property
    def agrees(self) -> bool:
        """Whether all runs gave the same bits."""
        return len(set(self.digests)) <= 1

    def deviating(self, expected: int) -> int:
        """The number of runs with another digest than `expected`."""
        return sum(1 for seen in self.digests if seen != expected)


def observe(
    call: Callable[[], Sequence[Tensor]],
    runs: int,
    stopped: Callable[[], bool] = lambda: False,
    progressed: Callable[[], None] = lambda: None,
) -> Recording:
    """Runs `call` up to `runs` times.

    Args:
        call: returns the outputs of one run; they are copied where they are kept.
        runs: number of runs.
        stopped: asked before each run; True ends the recording early, with what it has.
        progressed: told after each run.
    """
    digests: list[int] = []
    kept: dict[int, Outputs] = {}
    for _ in range(runs):
        if stopped():
            break
        outputs = call()
        seen = digest(outputs)
        digests.append(seen)
        if seen not in kept and len(kept) <= MOST_KEPT:
            kept[seen] = tuple(output.detach().clone() for output in outputs)
        progressed()
    return Recording(tuple(digests), kept)
