"""steadysum: a fused linear + online max-sum operator with the same bits in every run, batch and thread count.

A map of the code, floor by floor; imports run downwards only:

    nn.py        modules
    ops/         the public functions, their checks, their registration with torch.library
    kernels/     who computes tiles: native (C++), eager (torch operations), reference (float64); which one runs
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
    align,
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
    "__version__",
    "align",
    "errors",
    "kernels",
    "linear_cross_entropy",
    "linear_logprobs",
    "linear_max_sum",
    "linear_softmax",
    "nn",
    "regroup",
]
