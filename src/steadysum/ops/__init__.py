"""The public functions."""

from steadysum.ops.align import align
from steadysum.ops.cross_entropy import LossStats, linear_cross_entropy
from steadysum.ops.logprobs import linear_logprobs
from steadysum.ops.loss_with_max_sum import LossWithMaxSum, fused_cross_entropy_loss_with_max_sum
from steadysum.ops.loss_with_max_sum_backward import fused_linear_cross_entropy_loss_with_max_sum_backward
from steadysum.ops.online_max_sum import OnlineMaxSum, fused_linear_online_max_sum
from steadysum.ops.regroup import Call, regroup
from steadysum.ops.softmax import linear_softmax
from steadysum.ops.statistics import linear_max_sum

__all__ = [
    "Call",
    "LossStats",
    "LossWithMaxSum",
    "OnlineMaxSum",
    "align",
    "fused_cross_entropy_loss_with_max_sum",
    "fused_linear_cross_entropy_loss_with_max_sum_backward",
    "fused_linear_online_max_sum",
    "linear_cross_entropy",
    "linear_logprobs",
    "linear_max_sum",
    "linear_softmax",
    "regroup",
]
