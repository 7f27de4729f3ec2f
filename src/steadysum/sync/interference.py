"""Where faults reach into a machine: at every hook a machine asks, and by default nothing happens.

A hook draws whether a fault acts, unless the step is replayed: then the script says so. What acted is told to the
runner, which writes it into the schedule. The kinds of faults are in cores/faults.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from steadysum.sync.actions import Await, Barrier, Compute, Fence, Place, Read, Signal, Word, Write
from steadysum.sync.memory import Memory, Span
from steadysum.trace.events import Unit

__all__ = ["Interference"]


class Interference:
    """Base of what interferes with a run: nothing does.

    Opportunities are numbered within a step for each fault, from 0: (fault, opportunity) names one decision.
    """

    def __init__(self) -> None:
        self.script: frozenset[tuple[int, int]] | None = None  # what acts in this step; None: it is drawn
        self.acted: list[tuple[int, int]] = []  # what acted in this step
        self.offered: list[tuple[int, int]] = []  # what could have acted in this step

    def begin_step(self, script: frozenset[tuple[int, int]] | None) -> None:
        """A step begins; with a script, what acts in it is settled."""
        self.script = script
        self.acted = []
        self.offered = []

    def begin_run(self, memory: Memory) -> None:
        """Programs begin to run over this memory."""

    def dies(self, unit: Unit, place: Place) -> bool:
        """Whether the unit stops for ever before this action."""
        return False

    def delay(self, unit: Unit, action: Any) -> float:
        """Microseconds that the unit sleeps before this action."""
        return 0.0

    def slowness(self, unit: Unit) -> float:
        """Factor of all of the unit's times."""
        return 1.0

    def computed(self, unit: Unit, action: Compute, result: Any) -> Any:
        """What the unit holds after its own work."""
        return result

    def written(self, unit: Unit, action: Write) -> Sequence[Word]:
        """The words that enter the store buffer."""
        return action.words

    def stored(self, span: Span, before: NDArray[Any]) -> None:
        """Memory is about to change: what it held in this span."""

    def drain_delay(self, unit: Unit, span: Span) -> float:
        """Microseconds that a word stays longer in the store buffer."""
        return 0.0

    def forwards(self, unit: Unit, action: Read) -> bool:
        """Whether the unit's read sees its own words that haven't drained."""
        return True

    def read(self, unit: Unit, action: Read, values: list[NDArray[Any]]) -> list[NDArray[Any]]:
        """What the unit gets."""
        return values

    def additions(self, unit: Unit, place: Place, word: Word) -> int:
        """How often an atomic add takes effect."""
        return 1

    def fences(self, unit: Unit, action: Fence, spans: Sequence[Span]) -> bool:
        """Whether the fence works; with the spans of the words in the store buffer, of which there are some."""
        return True

    def signalled(self, unit: Unit, action: Signal | Barrier, memory: Memory) -> Sequence[Any]:
        """The flags that are wiped right after this signal."""
        return ()

    def passes(self, unit: Unit, action: Await | Barrier) -> str | None:
        """How an await ends at once, before its flags are there: "ok", "timeout", or None: it waits."""
        return None
