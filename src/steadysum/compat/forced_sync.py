"""A forced, real synchronisation of all processes of a group, from which their clocks can be laid over each other.

Not here: devices (stopgaps.py), how timestamps become an alignment (trace/alignment.py), and meetings of threads or of
processes without a group (trace/synchronise.py).
"""

from __future__ import annotations

import threading
from typing import Any, Final, NamedTuple

import torch
from torch import distributed

from steadysum.trace.alignment import REFERENCE, Alignment
from steadysum.trace.synchronise import ROUNDS, Participant, Passage, alignments_at_barriers, perf_clock

__all__ = ["align_with_group", "has_group"]

REFERENCE_RANK: Final = 0


class _Meeting(NamedTuple):
    """The default group, and this process in it."""

    group: Any
    participant: Participant


_meeting: _Meeting | None = None


def has_group() -> bool:
    """Whether there are other processes to align clocks with."""
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def align_with_group() -> Alignment:
    """Pass barriers together with all processes of the default group, and align this one's clock with rank 0's.

    The clock is time.perf_counter, in microseconds. The first and the latest synchronisations of the process count: one
    before the work and one after it tell the clocks' drift, too. Every rank must call it as often.

    Raises:
        SyncTimeout: the others didn't come in the time that the group allows.
    """
    participant = _participant()
    passages = participant.synchronise(ROUNDS)
    del passages[ROUNDS:-ROUNDS]
    everyone: list[list[Passage]] = [[] for _ in range(distributed.get_world_size())]
    distributed.all_gather_object(everyone, passages)
    alignments = alignments_at_barriers(everyone, REFERENCE_RANK)
    return REFERENCE if participant.worker == REFERENCE_RANK else alignments[participant.worker]


def _participant() -> Participant:
    global _meeting
    group = distributed.group.WORLD
    if _meeting is None or _meeting.group is not group:
        _meeting = _Meeting(group, Participant(distributed.get_rank(), _GroupBarrier(), perf_clock))
    return _meeting.participant


class _GroupBarrier:
    """The group's barrier, as threading.Barrier is called. How long it waits was said when the group was made."""

    def wait(self, timeout: float | None = None) -> int:  # noqa: ARG002
        try:
            distributed.barrier()
        except RuntimeError as error:
            raise threading.BrokenBarrierError(str(error)) from error
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()  # a barrier of a device's backend is work that was given to the device
        return 0
