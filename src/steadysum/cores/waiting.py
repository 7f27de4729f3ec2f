"""How a unit waits for a flag of its own core, under each policy."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from steadysum.errors import SyncTimeout
from steadysum.sync.actions import Action, Await, Flag, Note, Place
from steadysum.sync.policies import PATIENCE, Party, cores_of

__all__ = ["wait_for"]


def wait_for(
    party: Party, where: Place, flags: tuple[Flag, ...], value: int, name: str
) -> Generator[Action, Any, None]:
    """Waits until the flags have the value. Under `legacy` it goes on when its time is up, as if they had.

    Raises:
        SyncTimeout: naming the flags' core, after all retries of the other policies.
    """
    if value <= 0:
        return
    missing: tuple[Flag, ...] = ()
    # What a unit of the core does may itself wait for all cores, at the heartbeat.
    attempts = PATIENCE * party.attempts if party.parts.retry else 1
    for attempt in range(attempts):
        if attempt:
            yield Note(where, "retry", "timeout", name, flags[0].core)
        missing = yield Await(where, flags, value, party.waits.timeout if party.parts.bounded else None)
        if not missing:
            return
    if party.parts.stamp:
        raise SyncTimeout(
            f'flag "{name}" in call {party.epoch}, awaited by {party.own}',
            seen=f"no signal for tile {value} in {attempts} waits",
            allowed="one for each tile, in time",
            remedy="Raise sync_wait_timeout or max_retries if the core is only late; else a unit of it is dead.",
            cores=cores_of(missing),
        )
