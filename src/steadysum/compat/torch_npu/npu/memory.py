"""Memory integrity of the emulated device that is active (field report, R11).

Not here: what is looked at (steadysum.cores.integrity). A chip's own memory can't be looked at from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from steadysum.compat import emulated
from steadysum.compat.saying import say_once

if TYPE_CHECKING:
    from steadysum.cores.integrity import Damage

__all__ = ["Integrity", "check_integrity"]


@dataclass(frozen=True)
class Integrity:
    """What was looked at, and found; true if there was something to look at and nothing is damaged."""

    damages: tuple[Damage, ...] = ()  # the first one first
    unchecked: str | None = None  # why nothing was looked at

    @property
    def ok(self) -> bool:
        """Whether memory was looked at, and is whole."""
        return self.unchecked is None and not self.damages

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        if self.unchecked is not None:
            return f"not checked: {self.unchecked}"
        return "\n".join(map(str, self.damages)) or "no damage"


def check_integrity() -> Integrity:
    """What is damaged in the active emulated device's memory after its last call.

    Guard words around the regions are looked at, stamped records (under policies 1 to 3), and operands, if the device
    was made with keeps_digests=True.

    Returns:
        The damages, each with its place and who wrote there last. Without an active device nothing can be looked at:
        that is said once, and the result isn't `ok`.

    Source: field report, R11.

    >>> import torch
    >>> from steadysum.cores.device import Device
    >>> with emulated.active(Device(cores=2, keeps_digests=True)) as device:
    ...     _ = device.linear_max_sum(torch.ones(1, 2), torch.zeros(4, 2))
    ...     print(check_integrity())
    no damage
    """
    device = emulated.current()
    if device is None:
        say_once("memory.check_integrity", emulated.NONE_ACTIVE)
        return Integrity(unchecked=emulated.NONE_ACTIVE)
    if device.last is None:
        return Integrity(unchecked="the device has computed nothing yet")
    return Integrity(tuple(device.check_integrity()))
