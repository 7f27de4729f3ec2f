"""The vendor's package as it is called in scripts: `import steadysum.compat.torch_npu as torch_npu`.

A script written for the chip then runs on any device. docs/torch-npu.md lists what is here, and each case where the
vendor's document and its kernel disagree:

    operators.py    the fused loss operators      safe_linear.py   safe_fused_linear      safe_module.py   SafeNPUModule
    npu/            settings, synchronisation, injected faults, memory integrity
    utils/          accuracy_tools                contrib/         amp

What needs more than the operator does (utils, contrib, SafeNPUModule) is imported when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from steadysum.compat.torch_npu import npu
from steadysum.compat.torch_npu.npu import config, set_compile_mode, synchronize
from steadysum.compat.torch_npu.operators import (
    fused_cross_entropy_loss_with_max_sum,
    fused_linear_cross_entropy_loss_with_max_sum_backward,
    fused_linear_cross_entropy_loss_with_max_sum_grad,
    fused_linear_online_max_sum,
    npu_fused_cross_entropy_loss_with_max_sum,
    npu_fused_linear_cross_entropy_loss_with_max_sum_backward,
    npu_fused_linear_cross_entropy_loss_with_max_sum_grad,
    npu_fused_linear_online_max_sum,
)
from steadysum.compat.torch_npu.safe_linear import safe_fused_linear

if TYPE_CHECKING:
    from steadysum.compat.torch_npu import contrib, utils
    from steadysum.compat.torch_npu.safe_module import SafeNPUModule

__all__ = [
    "SafeNPUModule",
    "config",
    "contrib",
    "fused_cross_entropy_loss_with_max_sum",
    "fused_linear_cross_entropy_loss_with_max_sum_backward",
    "fused_linear_cross_entropy_loss_with_max_sum_grad",
    "fused_linear_online_max_sum",
    "npu",
    "npu_fused_cross_entropy_loss_with_max_sum",
    "npu_fused_linear_cross_entropy_loss_with_max_sum_backward",
    "npu_fused_linear_cross_entropy_loss_with_max_sum_grad",
    "npu_fused_linear_online_max_sum",
    "safe_fused_linear",
    "set_compile_mode",
    "synchronize",
    "utils",
]

_LATER: Final = ("contrib", "utils")  # parts that are modules


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return importlib.import_module(f"{__name__}.{name}")
    if name == "SafeNPUModule":
        return importlib.import_module(f"{__name__}.safe_module").SafeNPUModule
    raise AttributeError(f"steadysum.compat.torch_npu has no {name!r}; it offers {', '.join(__all__)}")
