"""What a program of a core can ask for: the actions, and what each of them gives back.

A program is a generator that yields actions. It never touches a clock, a thread or shared memory itself: a runner takes
each action, does it by the rules of the memory model, and sends back what it found. So the same program runs on real
threads (threads.py), on a virtual clock (virtual.py) and in every interleaving (exhaustive.py).

The memory model, in one place:

- Each unit has a store buffer. `Write` puts words into it; each word drains into memory by itself, at some later
  moment: first-in first-out where two overlap, in any order elsewhere. So a record of several words can be seen torn.
- A unit's `Read` sees its own words that haven't drained yet, and memory elsewhere.
- `Fence` ends when the unit's store buffer is empty.
- `Signal` isn't buffered and drains nothing: a flag can be seen before data that was written earlier.
- A word whose ends don't lie on 64-byte lines drains as whole lines, with what the unit saw beside it when it wrote:
  two units that write into one line can undo each other's words.
- `Add` acts at memory at once, undivided.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from steadysum.sync.memory import Span

__all__ = [
    "Action",
    "Add",
    "Await",
    "Barrier",
    "Compute",
    "Fence",
    "Flag",
    "Note",
    "Place",
    "Program",
    "Read",
    "Signal",
    "Word",
    "Write",
]


class Place(NamedTuple):
    """Where in the call an action stands. (epoch, index, step) is the order that the program intends."""

    epoch: int  # number of the call, from 1
    index: int  # type: ignore[assignment]  # of the phase; hides tuple.index
    step: int  # within the phase: actions of equal (index, step) have no intended order among units
    phase: str  # "P2 tiles", for people


class Flag(NamedTuple):
    """A flag in the device's memory: one writer, a value that only grows."""

    name: str
    core: int  # of its writer
    role: str  # of its writer


class Word(NamedTuple):
    """A value on its way to memory; it drains undivided."""

    span: Span
    values: NDArray[Any]  # [span.stop - span.start], dtype of the region


class Compute(NamedTuple):
    """Own work, without any access to shared memory; gives back what `work` returns."""

    place: Place
    work: Callable[[], Any]
    cost: float  # microseconds on the virtual clock
    label: str


class Write(NamedTuple):
    """Puts words into the unit's store buffer; gives back None."""

    place: Place
    words: tuple[Word, ...]


class Read(NamedTuple):
    """Reads spans at one moment; gives back a list of arrays, copies."""

    place: Place
    spans: tuple[Span, ...]


class Add(NamedTuple):
    """Adds a word to memory, at once and undivided; gives back None."""

    place: Place
    word: Word


class Fence(NamedTuple):
    """Drains the unit's store buffer; gives back None."""

    place: Place


class Signal(NamedTuple):
    """Sets a flag; a value below the flag's own changes nothing, so that a signal can be repeated. Gives back None."""

    place: Place
    flag: Flag
    value: int


class Await(NamedTuple):
    """Waits until all flags have reached the value; gives back those that haven't: () unless it timed out."""

    place: Place
    flags: tuple[Flag, ...]
    value: int
    timeout: float | None  # microseconds; None: for ever


class Barrier(NamedTuple):
    """Sets the unit's own flag of the barrier, then waits for those of all members, as Await does."""

    place: Place
    own: Flag
    members: tuple[Flag, ...]  # own among them
    value: int
    timeout: float | None  # microseconds


class Note(NamedTuple):
    """Tells the record of the run what a policy saw or did: changes nothing, takes no time. Gives back None."""

    place: Place
    action: str  # "retry", or "check"
    outcome: str  # of steadysum.trace.events.OUTCOMES
    detail: str
    core: int  # the core that it is about


Action: TypeAlias = Compute | Write | Read | Add | Fence | Signal | Await | Barrier | Note
Program: TypeAlias = Generator[Action, Any, Any]


def word(span: Span, values: NDArray[Any] | list[float] | list[int]) -> Word:
    """A word from any values."""
    return Word(span, np.asarray(values))
