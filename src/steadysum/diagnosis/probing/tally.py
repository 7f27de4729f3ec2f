"""Runs of one kind, counted: what each gave, which failed, and where the kept outputs are.

It grows batch by batch, over as many processes as the runs took. Not here: which bits are right (evidence.py).
"""

from __future__ import annotations

import statistics
from collections import Counter
from pathlib import Path
from typing import Final

from steadysum.diagnosis.isolation.supervisor import Batch, Ending

__all__ = ["FAILING", "Tally"]

FAILING: Final = frozenset({"exception", "out_of_memory", "signal", "exit", "hang"})
_COMPLETE: Final = Ending("complete")


class Tally:
    """What runs gave so far."""

    def __init__(self) -> None:
        self.digests: list[str | None] = []  # of each run, in order; None: it failed
        self.kept: dict[str, Path] = {}
        self.acted: Counter[str] = Counter()
        self.ending = _COMPLETE  # of the first batch that failed, was void or interrupted, or else of the last
        self.writes_inputs = False
        self.draws = False
        self._times: list[float] = []

    def add(self, batch: Batch) -> None:
        """Counts a batch; a run that failed is a run."""
        self.digests += [result.digest for result in batch.results]
        self._times += [result.seconds for result in batch.results]
        if batch.ending.kind in FAILING and batch.ending.run is not None:
            self.digests.append(None)
        for digest, path in batch.kept.items():
            self.kept.setdefault(digest, path)
        self.acted.update(batch.acted)
        self.writes_inputs |= batch.writes_inputs
        self.draws |= batch.draws
        if self.ending.kind not in FAILING or batch.ending.kind == "interrupted":
            self.ending = batch.ending._replace(run=self.runs) if batch.ending.kind in FAILING else batch.ending

    @property
    def runs(self) -> int:
        """Those that failed included."""
        return len(self.digests)

    @property
    def failed(self) -> int:
        """Runs that raised, crashed or hung."""
        return self.digests.count(None)

    @property
    def seconds(self) -> float:
        """The median of a run; 0 where none ended."""
        return statistics.median(self._times) if self._times else 0.0

    def most_frequent(self) -> str | None:
        """The digest that most runs gave, the earliest of equals; None: no run gave one."""
        counted = Counter(digest for digest in self.digests if digest is not None)
        return counted.most_common(1)[0][0] if counted else None

    def unlike(self, right: str | None) -> tuple[int, ...]:
        """The runs, from 1, that gave another digest, or failed."""
        return tuple(run for run, digest in enumerate(self.digests, 1) if digest != right)
