"""Forced, real synchronisation of threads or processes, and the timestamps that alignment.py needs.

Two ways. At a barrier every worker notes its clock just before and just after it: all of them are at the barrier at one
moment, so what anyone noted before it came before what anyone noted after it. In a ping-pong with the reference, over a
pipe, a worker answers as soon as it can: the round trip is shorter, and so is the error.

    workers = thread_meeting(3)                 # or process_meeting(3), each passed to its process
    workers[i].synchronise()                    # in worker i, before its work and after it
    alignments = alignments_at_barriers([worker.passages for worker in workers])

Not here: what is made of the timestamps (alignment.py).
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from typing import Any, Final, NamedTuple, Protocol

from steadysum.errors import RangeError, SyncTimeout
from steadysum.trace.alignment import REFERENCE, Alignment, Exchange, estimate

__all__ = [
    "ROUNDS",
    "Passage",
    "Participant",
    "alignments_at_barriers",
    "answer",
    "ask",
    "perf_clock",
    "process_meeting",
    "thread_meeting",
]

ROUNDS: Final = 20  # of a synchronisation: the luckiest of them sets the error
TIMEOUT: Final = 30.0  # seconds that a worker waits for the others

Clock = Callable[[], float]  # microseconds


def perf_clock() -> float:
    """time.perf_counter, in microseconds."""
    return time.perf_counter() * 1e6


class Passage(NamedTuple):
    """A worker's clock just before and just after a barrier."""

    before: float
    after: float


class _Barrier(Protocol):
    def wait(self, timeout: float | None = None) -> int: ...


@dataclass
class Participant:
    """One worker at the barriers of a meeting; it collects what its clock shows there."""

    worker: int
    barrier: _Barrier
    clock: Clock = perf_clock
    passages: list[Passage] = field(default_factory=list)

    def synchronise(self, rounds: int = ROUNDS, timeout: float = TIMEOUT) -> list[Passage]:
        """Passes the barrier so many times, together with all others; gives back all passages so far.

        Args:
            rounds: the same for all.
            timeout: seconds for each of them.

        Raises:
            SyncTimeout: the others didn't come.
        """
        for done in range(rounds):
            before = self.clock()
            try:
                self.barrier.wait(timeout)
            except threading.BrokenBarrierError as error:
                raise SyncTimeout(
                    f"synchronisation of worker {self.worker}, round {done + 1}",
                    seen=f"a barrier that not all came to in {timeout:g} s",
                    allowed="all workers at it",
                    remedy="Call synchronise as often in every worker, with as many rounds.",
                ) from error
            self.passages.append(Passage(before, self.clock()))
        return self.passages


def thread_meeting(workers: int, clocks: Sequence[Clock] | None = None) -> tuple[Participant, ...]:
    """Participants for threads, one for each.

    Raises:
        RangeError: fewer than two workers, or not one clock for each.
    """
    return _meeting(workers, clocks, threading.Barrier)


def process_meeting(
    workers: int, clocks: Sequence[Clock] | None = None, context: BaseContext | None = None
) -> tuple[Participant, ...]:
    """Participants for processes: each is an argument of its process, which sends its passages back.

    Raises:
        RangeError: fewer than two workers, or not one clock for each.
    """
    return _meeting(workers, clocks, (context or multiprocessing.get_context()).Barrier)


def _meeting(workers: int, clocks: Sequence[Clock] | None, barrier: Callable[[int], Any]) -> tuple[Participant, ...]:
    if workers < 2:
        raise RangeError("workers", str(workers), "2 or more", "A clock is aligned with another one.")
    own = [perf_clock] * workers if clocks is None else list(clocks)
    if len(own) != workers:
        raise RangeError("clocks", f"{len(own)} for {workers} workers", "one for each", "Leave clocks out for time's.")
    shared = barrier(workers)
    return tuple(Participant(worker, shared, clock) for worker, clock in enumerate(own))


def alignments_at_barriers(passages: Sequence[Sequence[Passage]], reference: int = 0) -> tuple[Alignment, ...]:
    """The alignment of every worker, from all passages of each; REFERENCE for the reference.

    Raises:
        RangeError: no such reference, workers that passed barriers unequally often, or fewer than two barriers.
    """
    if not 0 <= reference < len(passages):
        raise RangeError("reference", str(reference), f"a worker, 0 to {len(passages) - 1}", "Leave it out for 0.")
    counts = sorted({len(worker) for worker in passages})
    if len(counts) > 1:
        raise RangeError(
            "passages", f"{counts[0]} to {counts[-1]}", "as many of every worker", "Pass all passages of all workers."
        )
    return tuple(
        REFERENCE if worker == reference else estimate(map(_exchange, passages[reference], passages[worker]))
        for worker in range(len(passages))
    )


def _exchange(reference: Passage, worker: Passage) -> Exchange:
    """All are at the barrier at one moment: the worker's `after` is later than the reference's `before`, and so on."""
    return Exchange(sent=reference.before, received=worker.after, returned=worker.before, arrived=reference.after)


# ---- ping-pong ------------------------------------------------------------------------------------------------------


def ask(pipe: Connection[Any, Any], rounds: int = ROUNDS, clock: Clock = perf_clock) -> list[Exchange]:
    """The reference's side: asks so many times over one end of a multiprocessing.Pipe().

    Raises:
        SyncTimeout: no answer in 30 s.
    """
    exchanges = []
    for done in range(rounds):
        sent = clock()
        pipe.send(None)
        _expect(pipe, done)
        received, returned = pipe.recv()
        exchanges.append(Exchange(sent, received, returned, clock()))
    return exchanges


def answer(pipe: Connection[Any, Any], rounds: int = ROUNDS, clock: Clock = perf_clock) -> None:
    """The worker's side: answers as often as it is asked, over the pipe's other end.

    Raises:
        SyncTimeout: no question in 30 s.
    """
    for done in range(rounds):
        _expect(pipe, done)
        pipe.recv()
        received = clock()
        pipe.send((received, clock()))


def _expect(pipe: Connection[Any, Any], done: int) -> None:
    if not pipe.poll(TIMEOUT):
        raise SyncTimeout(
            f"ping-pong, round {done + 1}",
            seen=f"nothing from the other side in {TIMEOUT:g} s",
            allowed="a message",
            remedy="Call ask and answer at the same time, with as many rounds.",
        )
