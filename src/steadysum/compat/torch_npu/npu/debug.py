"""Faults injected into the communication between cores, on the emulated device that is active (field report, R11).

Not here: the faults (steadysum.cores.faults), and a device's own, with which it was made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from steadysum.compat import emulated
from steadysum.compat.saying import say_once
from steadysum.errors import OperandTypeError

if TYPE_CHECKING:
    from steadysum.cores.device import Device
    from steadysum.cores.faults import Arm, Armed

__all__ = ["FAULTS", "enable_comm_injection"]

# What the report suspects of the exchange, each seldom enough for most calls to stay right: at its shape (1024 x 256 x
# 512, 16 tiles) there are some 100 opportunities for them in a call.
FAULTS: Final = (
    "delay:probability=0.002,site=tiles",  # a core is late at the barrier before the partials are combined
    "stale:probability=0.002,phase=P3,site=max",  # a reader sees an earlier call's partial, if that was another
    "dropped:probability=0.002,phase=P2,site=sum",  # a partial never reaches the others
)

_before: WeakKeyDictionary[Device, Armed | None] = WeakKeyDictionary()  # what was armed before we armed ours


def enable_comm_injection(enable: bool, faults: Sequence[Arm | str] | None = None) -> dict[str, int]:
    """Switch the injection of faults into inter-core communication on or off, on the active emulated device.

    They come on top of the faults that the device has of its own, and act from the next call on. Whether a call's
    result is wrong is up to the device's policy.

    Args:
        enable: True or False.
        faults: steadysum.cores.faults.Arm, or their text such as "delay:site=tiles,probability=0.01"; None: FAULTS, a
            late core, a stale partial and a lost one.

    Returns:
        How often each armed fault has acted, by its text: on switching on all 0, on switching off what became of them.
        Empty if no emulated device is active, which is said once, or if none was switched on.

    Raises:
        OperandTypeError: enable isn't a bool. RangeError: a fault that there isn't.

    Source: field report, R11.

    >>> from steadysum.cores.device import Device
    >>> with emulated.active(Device(cores=2)):
    ...     enable_comm_injection(True, ["delay:site=tiles"])
    {'delay:site=tiles': 0}
    """
    if not isinstance(enable, bool):
        raise OperandTypeError("type of enable", type(enable).__name__, "bool", "Pass True or False.")
    device = emulated.current()
    if device is None:
        say_once("enable_comm_injection", emulated.NONE_ACTIVE)
        return {}
    return _arm(device, FAULTS if faults is None else faults) if enable else _disarm(device)


def _arm(device: Device, faults: Sequence[Any]) -> dict[str, int]:
    from steadysum.cores.faults import Arm, Armed

    arms = tuple(fault if isinstance(fault, Arm) else Arm.parse(fault) for fault in faults)
    own = _before.setdefault(device, device.armed)
    device.armed = Armed((*(() if own is None else own.arms), *arms), device.seed)
    return device.fault_counts()


def _disarm(device: Device) -> dict[str, int]:
    if device not in _before:
        return {}
    counts = device.fault_counts()
    device.armed = _before.pop(device)
    return counts
