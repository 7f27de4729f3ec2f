"""Our own kernels as subjects of a check, and the float64 reference that they are measured against.

The probes don't know of this file: they take any callable (subject.py).
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
from torch import Tensor

from steadysum import _extension, kernels
from steadysum.diagnosis.subject import Subject
from steadysum.errors import KernelUnavailableError
from steadysum.kernels.problem import Operands as KernelOperands
from steadysum.maxsum import MaxSum
from steadysum.ops import linear_max_sum

ORACLE = "reference"  # what the others are compared with, so no subject unless it is named


def kernel_subjects(named: Sequence[str] = ()) -> tuple[list[Subject], dict[str, str]]:
    """The kernels to check, and why each of the others isn't available.

    Args:
        named: the kernels wanted; none: all that are available but the reference.

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
                "`steadysum doctor` shows what each kernel needs.",
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
    wanted = named or [name for name in kernels.available() if name != ORACLE]
    return [kernel_subject(name) for name in dict.fromkeys(wanted)], missing


def kernel_subject(name: str) -> Subject:
    """One kernel, called as a user calls it: through linear_max_sum."""

    def call(input: Tensor, weight: Tensor) -> MaxSum:
        with torch.no_grad():
            return linear_max_sum(input, weight, kernel=name)

    return Subject(name, call, frozenset(str(promise.value) for promise in kernels.get(name).promises))


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
