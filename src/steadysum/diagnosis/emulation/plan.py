"""What an emulation runs: the device, its load and faults, the operands, and how many calls.

A plan is the whole of it: from the same plan come the same calls, with the same bits, in any process. Not here: how the
calls are made (campaign.py), and the words of a command line (arguments.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from steadysum.cores.device import CORES, Device, Runner
from steadysum.cores.fault_sites import check_arm
from steadysum.cores.faults import Arm
from steadysum.cores.grid import VENDOR, Geometry
from steadysum.cores.load import Load
from steadysum.diagnosis.arguments import DTYPE_NAMES, DTYPES, Shape
from steadysum.diagnosis.checking import FIELD_SHAPE
from steadysum.diagnosis.memory import check_memory
from steadysum.diagnosis.operands import random_operands
from steadysum.diagnosis.subject import Operands
from steadysum.errors import OptionError, RangeError
from steadysum.settings import Settings
from steadysum.sync.policies import POLICIES
from steadysum.sync.virtual import SCHEDULERS, VirtualRunner

__all__ = [
    "CALLS",
    "CLOCK",
    "MOST_INPUTS",
    "SETTINGS",
    "EmulationPlan",
    "device_of",
    "operand_sets",
    "plan_of",
    "twin_of",
    "values_of",
]

CALLS: Final = 100  # as many as the field report's loop makes
MOST_INPUTS: Final = 64  # operand sets are kept in memory, and their seeds are counted by it
_LOGITS: Final = (None, torch.bfloat16, torch.float16)
CLOCK: Final = SCHEDULERS[0]
SETTINGS: Final = ("sync_wait_timeout", "allreduce_policy", "enable_async", "max_retries", "heartbeat_interval")


@dataclass(frozen=True)
class EmulationPlan:
    """One emulation.

    With equal inputs the slot of an earlier call holds the right value, and a stale read doesn't show: so calls take
    several sets of operands in turn.

    Raises:
        RangeError, OptionError: values outside of their ranges, or that contradict each other.
    """

    shape: Shape = FIELD_SHAPE
    cores: int = CORES
    settings: Settings = field(default_factory=lambda: Settings(allreduce_policy=0))
    load: float = 1.0  # level; 0: a quiet device
    faults: tuple[Arm, ...] = ()
    calls: int = CALLS
    seed: int = 0
    scheduler: str = CLOCK  # of SCHEDULERS
    inputs: int = 2  # operand sets that calls take in turn
    dtype: torch.dtype = torch.float32  # of the operands
    logits_dtype: torch.dtype | None = None  # logits are rounded to it; None: they stay fp32
    geometry: Geometry = VENDOR  # size of a tile

    def __post_init__(self) -> None:
        _check(self)

    @property
    def policy(self) -> str:
        """The policy's name."""
        return POLICIES[self.settings.allreduce_policy]

    @property
    def has_clock(self) -> bool:
        """Whether times are microseconds of a virtual clock; else they are numbers of choices."""
        return self.scheduler == CLOCK

    @property
    def title(self) -> str:
        """The emulated device in a few words."""
        cores = f"{self.cores} core{'s' * (self.cores != 1)}"
        driver = f"load {self.load:g}" if self.has_clock else f"{self.scheduler} schedules"
        faults = "" if not self.faults else f", {len(self.faults)} fault{'s' * (len(self.faults) > 1)} armed"
        return f"{self.policy}, {cores}, {driver}{faults}"


def operand_sets(plan: EmulationPlan) -> list[Operands]:
    """The operands that calls take in turn: made from the seed.

    Raises:
        RangeError: the memory of this machine can't hold them.
    """
    return [random_operands(plan.shape, plan.dtype, plan.seed * MOST_INPUTS + number) for number in range(plan.inputs)]


def device_of(plan: EmulationPlan, runner: Runner | None = None, keeps_log: bool = True) -> Device:
    """The plan's device, with its load and faults, before its first call.

    Args:
        plan: the emulation.
        runner: who runs the programs; None: a runner of the plan's seed and scheduler.
        keeps_log: record what happens.
    """
    return Device(
        plan.cores,
        plan.settings,
        plan.faults,
        Load(plan.load) if plan.load else None,
        plan.seed,
        runner or VirtualRunner(plan.seed, plan.scheduler),
        geometry=plan.geometry,
        logits_dtype=plan.logits_dtype,
        keeps_log=keeps_log,
    )


def twin_of(plan: EmulationPlan) -> Device:
    """The same device without load and faults: its outputs are the right ones."""
    return Device(
        plan.cores,
        plan.settings,
        seed=plan.seed,
        geometry=plan.geometry,
        logits_dtype=plan.logits_dtype,
        keeps_log=False,
    )


def values_of(plan: EmulationPlan) -> dict[str, Any]:
    """The plan as plain values, for JSON."""
    return {
        "shape": list(plan.shape),
        "cores": plan.cores,
        "policy": plan.policy,
        "settings": {name: getattr(plan.settings, name) for name in SETTINGS},
        "load": plan.load,
        "faults": [str(fault) for fault in plan.faults],
        "calls": plan.calls,
        "seed": plan.seed,
        "scheduler": plan.scheduler,
        "inputs": plan.inputs,
        "dtype": DTYPE_NAMES[plan.dtype],
        "logits_dtype": None if plan.logits_dtype is None else DTYPE_NAMES[plan.logits_dtype],
        "tile": list(plan.geometry),
    }


def plan_of(values: Mapping[str, Any]) -> EmulationPlan:
    """The plan that values_of made these from.

    Raises:
        KeyError, TypeError, ValueError, SteadySumError: they aren't those of a plan.
    """
    logits = values["logits_dtype"]
    return EmulationPlan(
        shape=Shape(*values["shape"]),
        cores=values["cores"],
        settings=Settings(**values["settings"]),
        load=values["load"],
        faults=tuple(Arm.parse(text) for text in values["faults"]),
        calls=values["calls"],
        seed=values["seed"],
        scheduler=values["scheduler"],
        inputs=values["inputs"],
        dtype=DTYPES[values["dtype"]],
        logits_dtype=None if logits is None else DTYPES[logits],
        geometry=Geometry(*values["tile"]),
    )


def _check(plan: EmulationPlan) -> None:
    for option, number, least in (("--cores", plan.cores, 1), ("--calls", plan.calls, 1), ("--seed", plan.seed, 0)):
        if type(number) is not int or number < least:
            raise RangeError(option, repr(number), f"an integer >= {least}", "Leave it out for the default.")
    if plan.scheduler not in SCHEDULERS:
        raise RangeError(
            "--scheduler", repr(plan.scheduler), ", ".join(SCHEDULERS), "clock is a virtual clock with its load."
        )
    if not plan.has_clock and plan.load:
        raise OptionError(
            "--load beside --scheduler",
            f"load {plan.load:g} and {plan.scheduler}",
            "a load on the virtual clock alone",
            "Leave --load out: such a schedule has no times that a load could lengthen.",
        )
    if not 1 <= plan.inputs <= MOST_INPUTS:
        raise RangeError("--inputs", str(plan.inputs), f"1 to {MOST_INPUTS}", "2 show stale values; 1 hides them.")
    if plan.logits_dtype not in _LOGITS:
        raise RangeError(
            "--logits-dtype",
            DTYPE_NAMES.get(plan.logits_dtype, str(plan.logits_dtype)),
            "bf16, fp16",
            "Leave it out to keep logits in fp32.",
        )
    for fault in plan.faults:
        check_arm(fault, plan.cores, plan.settings.allreduce_policy)
    Load(plan.load)  # says which levels there are
    rows, hidden, vocabulary = plan.shape
    needed = plan.inputs * (rows + vocabulary) * hidden * torch.float32.itemsize
    check_memory(f"{plan.inputs} sets of operands of {rows},{hidden},{vocabulary}, which take", needed)
