"""How a sync is done: the policies, as programs made of the same few parts.

Policy 0, `legacy`, waits for the flags until sync_wait_timeout, and then reads what is there: the fault of the field
report. The others prove what they read. What each part is needed for is shown by taking it away: see Parts, and
exhaustive.py, which explores the protocol with and without each.

Not here: what is exchanged (cores/), who runs it (the runners).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from steadysum.errors import StaleRead, SyncTimeout
from steadysum.sync.actions import Action, Await, Barrier, Compute, Fence, Flag, Note, Place, Read, Signal, Word, Write
from steadysum.sync.records import Payload, Slot, fault_of, is_as_written, record_of, words_of
from steadysum.trace.events import Unit

__all__ = [
    "ENHANCED",
    "LEGACY",
    "PATIENCE",
    "POLICIES",
    "Parts",
    "Party",
    "Waits",
    "collect",
    "exchange",
    "finish",
    "heartbeat",
    "meet",
    "publish",
    "publish_all",
]

T = TypeVar("T")
Steps = Generator[Action, Any, T]

# Who waits for units that may themselves wait for others has so many times their patience: so that it is those whom all
# wait for that get named, not those that wait for them.
PATIENCE: Final = 2
POLICIES: Final = ("legacy", "enhanced", "verified", "duplicated")  # by the number that allreduce_policy has


class Parts(NamedTuple):
    """What a policy's sync is made of."""

    heartbeat: bool  # every unit says that it is ready, before any slot of this call is written
    fence: bool  # what was written is in memory before the flag that announces it
    stamp: bool  # records carry epoch, writer and digest, and a reader refuses those that don't fit
    read_back: bool  # a writer reads its record from memory, and writes it again if it isn't there
    exit_barrier: bool  # nobody ends the call, and so reuses slots, before everybody has read
    bounded: bool  # waits end after a time
    retry: bool  # waits, reads and writes that fail are tried again, max_retries times; else there is one of each


LEGACY: Final = Parts(
    heartbeat=False, fence=False, stamp=False, read_back=False, exit_barrier=False, bounded=True, retry=False
)
ENHANCED: Final = Parts(
    heartbeat=True, fence=True, stamp=True, read_back=True, exit_barrier=True, bounded=True, retry=True
)


class Waits(NamedTuple):
    """How long a sync waits, and how often it tries again."""

    timeout: float  # microseconds of one wait at a barrier
    heartbeat: float  # microseconds between two heartbeats of a unit that waits for the others'
    retries: int  # how often a wait, a read or a write is tried again

    @property
    def heartbeats(self) -> int:
        """How many heartbeats a unit sends before it gives up: as long as all waits at a barrier take."""
        return max(self.retries + 1, round((self.retries + 1) * self.timeout / self.heartbeat))


class Party(NamedTuple):
    """One unit at the syncs of one call."""

    own: Unit
    members: tuple[Unit, ...]  # all that take part, own among them
    epoch: int
    parts: Parts
    waits: Waits
    known: dict[str, tuple[Flag, ...]] | None = None  # flags by name, where many units share the work of making them

    @property
    def attempts(self) -> int:
        """How often the unit tries what can fail."""
        return self.waits.retries + 1 if self.parts.retry else 1

    def flags(self, name: str) -> tuple[Flag, ...]:
        """The members' flags of this name."""
        known = {} if self.known is None else self.known
        if name not in known:
            known[name] = tuple(Flag(name, unit.core, unit.role) for unit in self.members)
        return known[name]

    def flag(self, name: str) -> Flag:
        """The unit's own flag of this name."""
        return Flag(name, self.own.core, self.own.role)


def heartbeat(party: Party, place: Place) -> Steps[None]:
    """Says that the unit is ready for the call, and waits until all are: before any slot is written.

    Raises:
        SyncTimeout: naming the cores that weren't.
    """
    if not party.parts.heartbeat:
        return
    own, all_flags = party.flag("heartbeat"), party.flags("heartbeat")
    missing: tuple[Flag, ...] = ()
    for attempt in range(party.waits.heartbeats):
        if attempt:
            yield Note(place, "retry", "timeout", "heartbeat", party.own.core)
        yield Signal(place, own, party.epoch)
        missing = yield Await(place, all_flags, party.epoch, _limit(party, party.waits.heartbeat))
        if not missing:
            return
    raise _timeout(party, missing, "heartbeat", party.waits.heartbeats)


def meet(party: Party, place: Place, name: str, patience: int = 1) -> Steps[tuple[Flag, ...]]:
    """Waits for all at a barrier; gives back the flags of those that didn't come in all of its retries.

    What that means is the caller's to judge. Under `legacy` there is one wait, and nobody judges. With patience there
    are so many times as many.
    """
    if party.parts.fence:
        yield Fence(place)
    own, all_flags = party.flag(name), party.flags(name)
    missing: tuple[Flag, ...] = ()
    for attempt in range(patience * party.attempts):
        if attempt:
            yield Note(place, "retry", "timeout", name, party.own.core)
        missing = yield Barrier(place, own, all_flags, party.epoch, _limit(party, party.waits.timeout))
        if not missing:
            break
    return missing


def publish(party: Party, place: Place, slot: Slot, count: int, payload: Payload) -> Steps[None]:
    """Writes a record, and makes sure that memory holds it.

    Raises:
        StaleRead: naming the unit's own core: after all retries memory holds something else.
    """
    yield from publish_all(party, place, ((slot, payload),), count)


def publish_all(party: Party, place: Place, records: Sequence[tuple[Slot, Payload]], count: int) -> Steps[None]:
    """Writes records of one writer and one count at once, and makes sure that memory holds them.

    Raises:
        StaleRead: as publish.
    """
    if not party.parts.stamp:
        spans = (pair for slot, payload in records for pair in zip(slot.payload, payload, strict=True))
        yield Write(place, tuple(Word(span, part) for span, part in spans))
        return
    fault, slot = "", records[0][0]
    for attempt in range(party.attempts):
        if attempt:
            yield Note(place, "retry", "stale", "read back", slot.core)
        written = [words_of(each, party.epoch, count, payload) for each, payload in records]
        yield Write(place, tuple(word for words in written for word in words))
        if not party.parts.read_back:
            return
        if party.parts.fence:
            yield Fence(place)
        found = iter((yield Read(place, tuple(span for each, _ in records for span in each.spans))))
        wrong = None
        for (each, _), words in zip(records, written, strict=True):
            read = [next(found) for _ in words]
            if wrong is None and not is_as_written(words, read):
                wrong = each, read
        if wrong is None:
            return
        slot, read = wrong
        fault = fault_of(slot, *record_of(read), party.epoch, count) or "other words than were written"
    raise StaleRead(
        f"record of core {slot.core} in call {party.epoch}, written and read back by {party.own}",
        seen=fault,
        allowed="a record of this call, whole",
        remedy="Run the call again; if it comes back, that core's writes don't reach memory.",
        cores=(slot.core,),
        writer=slot.core,
    )


def collect(party: Party, place: Place, slot: Slot, count: int | None, missing: Sequence[Flag] = ()) -> Steps[Payload]:
    """Reads another unit's record, and gives back a payload that is proven to be of this call.

    Args:
        slot: where it lies.
        count: how many partials it must hold; None: any number.
        missing: the flags that the barrier before it did without.

    Raises:
        SyncTimeout: naming the cores that didn't come, the record's among them.
        StaleRead: naming the record's core, whose record isn't there or isn't whole, and the reader's, which may not
            see it.
    """
    if not party.parts.stamp:
        return tuple((yield Read(place, slot.payload)))
    fault: str | None = None
    for attempt in range(party.attempts):
        if attempt:
            yield Note(place, "retry", "stale", fault or "", slot.core)
            yield Compute(place, _nothing, party.waits.heartbeat, "wait before reading again")
        stamp, payload = record_of((yield Read(place, slot.spans)))
        fault = fault_of(slot, stamp, payload, party.epoch, count)
        if fault is None:
            return payload
    if any(flag.core == slot.core for flag in missing):
        raise _timeout(party, missing, "barrier", party.attempts)
    reader = None if slot.core == party.own.core else party.own.core
    whose = "its" if reader is None else f"core {reader}'s"
    raise StaleRead(
        f"record of core {slot.core} in call {party.epoch}, read by {party.own}",
        seen=fault or "",
        allowed="a record of this call, whole",
        remedy=f"Run the call again; if it comes back, core {slot.core}'s writes don't reach memory, or {whose} reads "
        "don't see them.",
        cores=tuple(sorted({slot.core, party.own.core})),
        writer=slot.core,
        reader=reader,
    )


def finish(party: Party, place: Place, before: Sequence[Flag] = ()) -> Steps[None]:
    """The exit barrier: nobody reuses a slot before all have read.

    Args:
        before: the flags that the barrier before it did without. If their cores are missing again, the fault is theirs:
            others that are missing may still wait for them at that barrier.

    Raises:
        SyncTimeout: naming the cores that didn't come.
    """
    if not party.parts.exit_barrier:
        return
    # Others may have waited in vain at the barrier before, for a flag that was lost: they come that much later.
    patience = PATIENCE if party.parts.retry else 1
    missing = yield from meet(party, place, "exit", patience)
    if missing:
        again = [flag for flag in missing if flag.core in cores_of(before)]
        raise _timeout(party, again or missing, "exit barrier", patience * party.attempts)


def exchange(
    party: Party,
    slots: Sequence[Slot],  # one for each member, in their order
    payload: Payload,  # this unit's partial
    fold: Callable[[Sequence[Payload]], T],
) -> Steps[T]:
    """The whole protocol: every member gives its partial, and gets the fold of all, in the order of the members."""
    position = party.members.index(party.own)
    yield from heartbeat(party, Place(party.epoch, 0, 0, "heartbeat"))
    place = Place(party.epoch, 1, 0, "exchange")
    yield from publish(party, place, slots[position], 1, payload)
    missing = yield from meet(party, place, "written")
    found = []
    for slot in slots:
        found.append((yield from collect(party, Place(party.epoch, 2, 0, "exchange"), slot, 1, missing)))
    result = yield Compute(Place(party.epoch, 2, 0, "exchange"), lambda: fold(found), 0.1, "fold")
    yield from finish(party, Place(party.epoch, 3, 0, "exit"), missing)
    return result  # type: ignore[no-any-return]


def _nothing() -> None:
    return None


def _limit(party: Party, timeout: float) -> float | None:
    return timeout if party.parts.bounded else None


def cores_of(flags: Sequence[Flag]) -> tuple[int, ...]:
    """The cores that these flags belong to, ascending."""
    return tuple(sorted({flag.core for flag in flags}))


def _timeout(party: Party, missing: Sequence[Flag], where: str, attempts: int) -> SyncTimeout:
    cores = cores_of(missing)
    return SyncTimeout(
        f"{where} of call {party.epoch}, seen by {party.own}",
        seen=f"no sign of core {', '.join(map(str, cores))} in {attempts} waits",
        allowed="every core of the device, in time",
        remedy="Raise sync_wait_timeout or max_retries if these cores are only late; else they are dead.",
        cores=cores,
    )
