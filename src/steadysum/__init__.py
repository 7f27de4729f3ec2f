"""steadysum: a fused linear + online max-sum operator with the same bits in every run, batch and thread count.

A map of the code, floor by floor; imports run downwards only. What lies above the operator is imported when asked for:

    cli/         the commands       monitor/  metrics, their exporter, alert rules
    diagnosis/   how often, why and where results deviate
    compat/      other libraries' ways of calling the operator, the vendor's vocabulary
    guard/       results that are checked as they are made: protect, protect_model, SafeModule
    cores/       the emulated device         sync/, trace/   its protocols, its timelines
    environment/ versions, rules on them, locks              settings.py     the report's settings, profiles

and the operator itself:

    nn.py        modules
    ops/         the public functions, their checks, their registration with torch.library
    kernels/     who computes tiles: native (C++), triton (GPUs), ascend (the vendor's operator), eager (torch
                 operations), reference (float64); which one runs
    maxsum.py    MaxSum, its merge, the canonical fold          tiling.py   how a vocabulary is cut
    _library.py  the torch.library namespace                    _extension.py   the C++ extension, or why it is missing
    notices.py   how the floors above hear of what happens      errors.py       every exception class

Not here: the command line (steadysum.cli), which `import steadysum` doesn't load.
"""

from typing import TYPE_CHECKING, Any, Final

from steadysum import errors, kernels, nn
from steadysum.maxsum import MaxSum
from steadysum.ops import (
    Call,
    LossStats,
    OnlineMaxSum,
    align,
    fused_cross_entropy_loss_with_max_sum,
    fused_linear_cross_entropy_loss_with_max_sum_backward,
    fused_linear_online_max_sum,
    linear_cross_entropy,
    linear_logprobs,
    linear_max_sum,
    linear_softmax,
    regroup,
)

if TYPE_CHECKING:
    from steadysum.guard import SafeModule, protect, protect_model

__version__ = "0.1.0"

__all__ = [
    "Call",
    "LossStats",
    "MaxSum",
    "OnlineMaxSum",
    "SafeModule",
    "__version__",
    "align",
    "errors",
    "fused_cross_entropy_loss_with_max_sum",
    "fused_linear_cross_entropy_loss_with_max_sum_backward",
    "fused_linear_online_max_sum",
    "kernels",
    "linear_cross_entropy",
    "linear_logprobs",
    "linear_max_sum",
    "linear_softmax",
    "nn",
    "protect",
    "protect_model",
    "regroup",
]

_OF_GUARD: Final = ("SafeModule", "protect", "protect_model")


def __getattr__(name: str) -> Any:
    if name not in _OF_GUARD:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from steadysum import guard  # it reads bundles and settings: whoever only computes needn't import it

    return getattr(guard, name)
