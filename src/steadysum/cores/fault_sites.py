"""What an armed fault can name on the device, and whether it does: before a run, not by never acting in it.

Not here: what each kind is and its knobs (fault_kinds.py), the form of an arm (arm.py). The programs of a test have
other names than the device's; so the device itself asks for none of this, but who arms a fault by its text does.
"""

from __future__ import annotations

import difflib
from typing import Final

from steadysum.cores.arm import Arm
from steadysum.cores.fault_kinds import KINDS
from steadysum.cores.job import PHASES
from steadysum.cores.plan import ROLES
from steadysum.errors import RangeError

__all__ = ["BARRIERS", "FLAGS", "LABELS", "REGIONS", "check_arm", "sites_of"]

BARRIERS: Final = {True: ("tiles", "exit"), False: ("init", "target", "tiles")}  # by: the policy proves what it reads
FLAGS: Final = {True: ("heartbeat", "tile ready", "buffer free"), False: ("tile ready", "buffer free")}
LABELS: Final = ("product", "statistics", "merge", "combine", "target")
OPERANDS: Final = ("x", "w")
REGIONS: Final = (
    *("product", "product_stamp", "max", "sum", "target_logit", "stamp", "predicted"),
    *("out_max", "out_sum", "out_predicted", "out_stamp", "mask", "masked_target", "target_stamp"),
)


def sites_of(kind: str, policy: int) -> tuple[str, ...]:
    """What `site` of this kind may name under this policy; (): the kind takes none.

    >>> sites_of("tail", 0)
    ('floor', 'padding')
    """
    known = KINDS[kind]
    if not known.takes_site or known.fixed_sites:
        return known.fixed_sites
    if kind in ("delay", "overrun", "reset"):
        return (*BARRIERS[policy > 0], *FLAGS[policy > 0])
    if kind == "duplicated":
        return ("tile", "predicted")
    if kind in ("flip", "scale"):
        return (*OPERANDS, *dict.fromkeys((*LABELS, *REGIONS)))
    return REGIONS


def check_arm(arm: Arm, cores: int, policy: int) -> None:
    """Checks that the device has what an arm names.

    Args:
        arm: the fault.
        cores: of the device.
        policy: its number.

    Raises:
        RangeError: a core, a role, a phase or a site that there isn't.

    >>> check_arm(Arm("dropped", core=24), 24, 0)
    Traceback (most recent call last):
    steadysum.errors.RangeError: core of fault dropped:core=24: got 24; allowed: 0 to 23. Leave it out for any core.
    """
    if arm.core is not None and arm.core >= cores:
        raise RangeError(f"core of fault {arm}", str(arm.core), f"0 to {cores - 1}", "Leave it out for any core.")
    words = tuple(dict.fromkeys(word for phase in PHASES for word in (phase, *phase.split())))
    for what, given, allowed in (
        ("role", arm.role, ROLES),
        ("phase", arm.phase, words),
        ("site", arm.region, sites_of(arm.kind, policy)),
    ):
        if given is not None and given not in allowed:
            near = difflib.get_close_matches(given, allowed, 1)
            remedy = f"Did you mean {near[0]}?" if near else f"Leave it out for {KINDS[arm.kind].without or 'any'}."
            raise RangeError(f"{what} of fault {arm}", repr(given), ", ".join(allowed), remedy)
