"""Our own kernels and the emulated device as subjects of a check, and the float64 reference to measure them against.

The probes don't know of this file: they take any callable (subject.py).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from steadysum import _extension, kernels
from steadysum.diagnosis.environment import NEEDS
from steadysum.diagnosis.subject import Subject
from steadysum.errors import KernelUnavailableError, OptionError, RangeError
from steadysum.kernels import ascend, triton
from steadysum.kernels.problem import Operands as KernelOperands
from steadysum.maxsum import MaxSum
from steadysum.ops import linear_max_sum
from steadysum.ops.online_max_sum import fused_linear_online_max_sum
from steadysum.tiling import Shard

ORACLE = "reference"  # what the others are compared with, so no subject unless it is named
INTERPRET = "TRITON_INTERPRET=1"
CPU = "cpu"
EMULATED = "emulated"


def kernel_subjects(named: Sequence[str] = ()) -> tuple[list[Subject], dict[str, str]]:
    """The kernels to check, and why each of the others isn't available, or was left out.

    Args:
        named: the kernels wanted; none: all that are available but the reference, and but those that are interpreted.

    Raises:
        UnknownKernelError: a name that no kernel has.
        KernelUnavailableError: a named kernel can't run on this machine, or none is named and STEADYSUM_ISA, which is
            a wish about `native`, can't be honoured. Neither is left out in silence.
    """
    missing = {name: reason for name in kernels.names() if (reason := kernels.get(name).missing()) is not None}
    for name in named:
        kernels.get(name)
        if name in missing:
            raise KernelUnavailableError(
                f"--kernel {name}",
                f"a kernel that can't run here ({missing[name]})",
                ", ".join(kernels.available()),
                NEEDS.get(name, "`steadysum doctor` shows what each kernel needs."),
            )
    isa = os.environ.get(_extension.ISA_VARIABLE)
    if isa and not named and _extension.module is None:
        setting = f"{_extension.ISA_VARIABLE}={isa}"
        raise KernelUnavailableError(
            setting,
            f"no native kernel that could honour it ({_extension.reason.removeprefix(f'{setting}: ')})",
            "instructions that this processor runs",
            f"Unset {_extension.ISA_VARIABLE}, or name the kernels that don't need it, for example --kernel eager.",
        )
    if named:
        return [kernel_subject(name) for name in dict.fromkeys(named)], missing
    left_out = {
        name: f"{interpreted} makes it run interpreted and slowly; name it: --kernel {name}"
        for name in kernels.available()
        if (interpreted := _interpreted(name))
    }
    wanted = [name for name in kernels.available() if name != ORACLE and name not in left_out]
    return [kernel_subject(name) for name in wanted], {**missing, **left_out}


def kernel_subject(name: str) -> Subject:
    """One kernel, called as a user calls it: through linear_max_sum; the statistics are brought to the CPU."""

    def call(input: Tensor, weight: Tensor) -> MaxSum:
        with torch.no_grad():
            return MaxSum(*(each.cpu() for each in linear_max_sum(input, weight, kernel=name)))

    def shard_of(input: Tensor, weight: Tensor, shard: Shard) -> MaxSum:
        nowhere = torch.full(input.shape[:1], -1, device=input.device)
        stop = shard.start + weight.shape[0]
        found = fused_linear_online_max_sum(
            input, weight, nowhere, shard.start, stop, vocab_size=shard.vocab, kernel=name
        )
        return MaxSum(found.logits_max.cpu(), found.sum_exp_logits.cpu())

    promises = kernels.get(name).promises
    return Subject(
        name,
        call,
        frozenset(str(promise.value) for promise in promises),
        shard=shard_of if kernels.Promise.SHARDS in promises else None,
        device=_device(name),
        interpreted=_interpreted(name),
    )


def device_subjects(
    device: str,
    kernels_named: Sequence[str] = (),
    seed: int = 0,
    *,
    policy: str | None = None,
    load: float | None = None,
    cores: int | None = None,
    fault: Sequence[str] = (),
) -> list[Subject]:
    """The emulated device, which promises what every policy is there for: the same call, the same bits.

    It keeps its memory from call to call, so that each call of a check is another one: that is what shows the fault.

    Args:
        device: "emulated".
        kernels_named: the kernels wanted; none fits beside a device.
        seed: of all that is drawn on it.
        policy, load, cores, fault: as `steadysum emulate` has them; None: its defaults.

    Raises:
        RangeError: another device, or a value outside of its range.
        OptionError: a kernel is named, too.
    """
    if device != EMULATED:
        raise RangeError("--device", repr(device), EMULATED, "Leave it out to check the kernels.")
    if kernels_named:
        named = ", ".join(kernels_named)
        raise OptionError("--kernel beside --device", named, "one of the two", "The device has a kernel of its own.")
    from steadysum.diagnosis.emulation.arguments import parse_faults, settings_of  # here: kernels don't need pydantic
    from steadysum.diagnosis.emulation.plan import EmulationPlan, device_of

    plan = EmulationPlan(
        settings=settings_of(policy), load=1.0 if load is None else load, faults=parse_faults(fault), seed=seed
    )
    if cores is not None:
        plan = replace(plan, cores=cores)
    emulated = device_of(plan, keeps_log=False)
    promises = frozenset({kernels.Promise.RUN_TO_RUN.value, kernels.Promise.THREADS.value})
    return [Subject(f"{EMULATED}, {plan.policy}", emulated.linear_max_sum, promises)]


def _device(name: str) -> str:
    """Where a kernel's operands must be; those that run anywhere are checked on the CPU."""
    if name == ascend.name:
        return ascend.DEVICE
    return "cuda" if name == triton.name and not triton.interpreted() else CPU


def _interpreted(name: str) -> str:
    return INTERPRET if name == triton.name and triton.interpreted() else ""


def reference_statistics(
    input: Tensor,  # [n, H]
    weight: Tensor,  # [v, H]
) -> MaxSum:
    """The statistics in float64, unrounded; the public function would round them to fp32."""
    call = KernelOperands(
        input, weight, bias=None, scale=1.0, softcap=None, temperature=None, valid_vocab=weight.shape[0]
    )
    (statistics,) = kernels.get(ORACLE).statistics([call])
    return MaxSum(statistics.max, statistics.sum_exp)
