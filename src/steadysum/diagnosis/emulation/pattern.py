"""How deviating calls look, in words: the look of a deviation is evidence of its cause.

Always low: a contribution is missing. Always high: one is counted twice, or padding is. Whole groups of rows: a whole
tile's partial. Every second call: a double buffer. Evidence, no proof: hazards.py looks at what happened.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from steadysum.cores.grid import Geometry
from steadysum.diagnosis.emulation.judge import Judged

__all__ = ["Pattern"]

_FEWEST = 4  # calls of one parity that make "every second call" more than luck


@dataclass
class Pattern:
    """What deviating calls have in common, so far."""

    geometry: Geometry
    calls: list[int] = field(default_factory=lambda: [0, 0])  # made, by parity of their number
    deviating: list[int] = field(default_factory=lambda: [0, 0])
    lows: int = 0
    highs: int = 0
    nans: int = 0
    whole: int = 0  # calls whose wrong rows are whole groups, as a vector unit takes them

    def add(self, number: int, judged: Judged) -> None:
        """Counts one call that returned; `number` from 1."""
        self.calls[number % 2] += 1
        if judged.wrong is None or judged.change is None:
            return
        self.deviating[number % 2] += 1
        self.nans += bool(judged.change.isnan().any())
        self.lows += bool((judged.change < 0).any())
        self.highs += bool((judged.change > 0).any())
        self.whole += _in_whole_groups(judged.wrong, self.geometry)

    @property
    def words(self) -> tuple[str, ...]:
        """What they have in common; empty where nothing deviated."""
        total = sum(self.deviating)
        if not total:
            return ()
        found = []
        if self.nans:
            found.append(f"NaN in {self.nans} of them: memory that no call has written, or a damaged value")
        elif not self.highs:
            found.append("always low: a contribution is missing")
        elif not self.lows:
            found.append("always high: something is counted twice, or padding is counted")
        else:
            found.append(
                f"low in {self.lows} and high in {self.highs} of {total}: a missing contribution makes a row low; "
                "values of another call, or damaged ones, go both ways"
            )
        rows = self.geometry.half_rows
        if self.whole == total:
            found.append(f"in whole groups of {rows} rows, which one vector unit takes: whole partials are wrong")
        elif not self.whole:
            found.append(f"not in whole groups of {rows} rows: single values, or rows of an output, are wrong")
        for parity in (0, 1):
            if self.deviating[parity] == self.calls[parity] >= _FEWEST and not self.deviating[1 - parity]:
                found.append("in every second call, as of a double buffer")
        return tuple(found)


def _in_whole_groups(wrong: Tensor, geometry: Geometry) -> bool:
    """Whether every half block that has a wrong row has wrong rows only."""
    rows = torch.arange(wrong.numel())
    half = (rows % geometry.rows >= geometry.half_rows).long()
    group = rows // geometry.rows * 2 + half
    sizes = torch.bincount(group)
    hit = torch.bincount(group, weights=wrong.double())
    return bool(((hit == 0) | (hit == sizes)).all())
