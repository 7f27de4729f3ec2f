"""steadysum: a fused linear + online max-sum operator with the same bits in every run, batch and thread count.

A map of the code, floor by floor; imports run downwards only:

    nn.py        modules            compat/   other libraries' ways of calling the operator
    ops/         the public functions, their checks, their registration with torch.library
    kernels/     who computes tiles: native (C++), triton (GPUs), ascend (the vendor's operator), eager (torch
                 operations), reference (float64); which one runs
    maxsum.py    MaxSum, its merge, the canonical fold          tiling.py   how a vocabulary is cut
    _library.py  the torch.library namespace                    _extension.py   the C++ extension, or why it is missing
    errors.py    every exception class

Not here: the command line (steadysum.cli), which `import steadysum` doesn't load.
"""

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

__version__ = "0.1.0"

__all__ = [
    "Call",
    "LossStats",
    "MaxSum",
    "OnlineMaxSum",
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
    "regroup",
]
