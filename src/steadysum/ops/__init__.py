"""The public functions."""

from steadysum.ops.align import align
from steadysum.ops.cross_entropy import LossStats, linear_cross_entropy
from steadysum.ops.logprobs import linear_logprobs
from steadysum.ops.regroup import Call, regroup
from steadysum.ops.softmax import linear_softmax
from steadysum.ops.statistics import linear_max_sum

__all__ = [
    "Call",
    "LossStats",
    "align",
    "linear_cross_entropy",
    "linear_logprobs",
    "linear_max_sum",
    "linear_softmax",
    "regroup",
]
