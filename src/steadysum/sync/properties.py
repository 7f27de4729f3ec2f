"""What the exchange protocol promises of every run, as a watch of an exploration.

S  every result that a call returns is the fault-free fold.
A  no call raises before a fault has acted. (A wait that times out within its retries isn't a fault.)
L  every call ends: no unit waits for ever. (That it ends within K actions is most_actions of the exploration.)
R  an error names right cores: a timeout only those that a fault acted on, or that ended before, by an error or a death;
   a stale read one of those, and at most one beside it: who wrote the record, and who read it.
N  when an error names a core that has done nothing in this call, and never will, no slot of this call has been written.

Not here: what is explored (exchange_lines.py).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import NamedTuple

from steadysum.errors import StaleRead
from steadysum.sync.actions import Await, Barrier, Note, Write
from steadysum.sync.exchange_model import RETURNED, Exchange
from steadysum.sync.exhaustive import Step, Violation
from steadysum.sync.machine import Machine, State

__all__ = ["PROPERTIES", "ExchangeWatch"]

_MOST_OF_A_READ = 2  # cores that an error about a read may name: the writer, and the reader
PROPERTIES = ("S", "A", "L", "R", "N")


class _Seen(NamedTuple):
    """What matters of a run so far."""

    culprits: frozenset[int] = frozenset()  # cores that a fault acted on
    ended: frozenset[int] = frozenset()  # cores that ended by an error or a death: others wait for them in vain
    written: frozenset[int] = frozenset()  # epochs in which a slot was written
    newest: tuple[int, ...] = ()  # by unit: the epoch of its last action
    silent: frozenset[tuple[int, int]] = frozenset()  # (core, epoch): it died before its first action in it


class ExchangeWatch:
    """Watches the five properties of an exchange."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def begin(self) -> Hashable:
        """Nothing has happened."""
        return _Seen(newest=(0,) * self._exchange.cores)

    def after(self, memory: _Seen, step: Step) -> tuple[Hashable, Iterable[Violation]]:
        """What a step of a unit has broken."""
        core, epoch = step.machine.units[step.unit].core, step.action.place.epoch
        seen = memory._replace(culprits=memory.culprits.union(*(_culprits(kind, step) for kind in step.acted)))
        if step.machine.state[step.unit] is State.DEAD:
            silent = {(core, epoch)} if seen.newest[step.unit] < epoch else set()
            seen = seen._replace(ended=seen.ended | {core}, silent=seen.silent | silent)
        else:
            newest = (*seen.newest[: step.unit], epoch, *seen.newest[step.unit + 1 :])
            seen = seen._replace(newest=newest)
            if step.done and isinstance(step.action, Write):
                seen = seen._replace(written=seen.written | {epoch})
        violations = list(self._broken(seen, step))
        if step.error is not None:
            seen = seen._replace(ended=seen.ended | {core})
        return seen, violations

    def at_end(self, memory: _Seen, machine: Machine) -> Iterable[Violation]:  # noqa: ARG002 - Watch's signature
        """L: a unit that waits for ever."""
        stuck = [str(unit) for unit, state in zip(machine.units, machine.state, strict=True) if state is State.BLOCKED]
        return [Violation("L", f"{' and '.join(stuck)} waits for ever")] if stuck else []

    def _broken(self, seen: _Seen, step: Step) -> Iterator[Violation]:
        unit, action, error = step.machine.units[step.unit], step.action, step.error
        if step.done and isinstance(action, Note) and action.detail.startswith(RETURNED):
            result, wanted = int(action.detail.split()[1]), self._exchange.wanted(action.place.epoch)
            if result != wanted:
                yield Violation("S", f"call {action.place.epoch} of {unit} returned {result}, not {wanted}")
        if error is None:
            return
        cores = frozenset(getattr(error, "cores", ()))
        told = f"call {action.place.epoch} of {unit} raised {type(error).__name__} naming {_names(cores)}"
        if not seen.culprits:
            yield Violation("A", told)
        elif not _are_right(error, cores, seen.culprits | seen.ended):
            yield Violation("R", f"{told}; the fault was on {_names(seen.culprits)}")
        epoch = action.place.epoch
        if epoch in seen.written and any((core, epoch) in seen.silent for core in cores):
            yield Violation("N", f"{told}, after a slot was written")


def _are_right(error: Exception, named: frozenset[int], at_fault: frozenset[int]) -> bool:
    """R, of one error."""
    if isinstance(error, StaleRead):
        return len(named) <= _MOST_OF_A_READ and bool(named & at_fault)
    return bool(named) and named <= at_fault


def _culprits(kind: str, step: Step) -> frozenset[int]:
    """The cores that a fault acted on."""
    action = step.action
    if kind == "timeout" and isinstance(action, Await | Barrier):
        flags = action.flags if isinstance(action, Await) else action.members
        return frozenset(flag.core for flag in flags if step.machine.flags.get(flag, 0) < action.value)
    return frozenset({step.machine.units[step.unit].core})


def _names(cores: frozenset[int]) -> str:
    return "core " + ", ".join(map(str, sorted(cores))) if cores else "no core"
