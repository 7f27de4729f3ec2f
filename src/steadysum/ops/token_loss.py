"""The mathematics of the loss: from a row's statistics to its loss, and to the gradient of its logits.

With C classes, class weights w (1 without), label smoothing a, d_ij = z_ij - max_i and s_i = sum over j of exp(d_ij):

    class index t:            loss = (1 - a) w_t (log s - d_t)  +  (a / C) sum over j of w_j (log s - d_j)
    class probabilities q:    loss = sum over j of q'_j w_j (log s - d_j),   q' = (1 - a) q + a / C
    z-loss:                   z (max + log s)^2

log s - d is never written as (max + log s) - z, which loses everything where all logits share a large offset.
Not here: reading a user's arguments (loss_arguments.py), or the sum over rows (reduction.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from steadysum.kernels.gradients import LogitGradient
from steadysum.kernels.problem import Operands, Statistics
from steadysum.kernels.registry import Kernel
from steadysum.ops.derivative import nan_where_infinite_max

__all__ = ["Losses", "TokenLoss"]


class Losses(NamedTuple):
    """Per row [n] its loss, by parts."""

    cross_entropy: Tensor
    of_z: Tensor | None  # the z-loss, if there is one

    @property
    def sum(self) -> Tensor:
        """The loss of each row."""
        return self.cross_entropy if self.of_z is None else self.cross_entropy + self.of_z


@dataclass(frozen=True, eq=False)  # eq of tensors has no truth value
class TokenLoss:
    """The loss of the rows that take part in a call."""

    call: Operands
    classes: int
    target_weight: Tensor | None  # [n], the class weight of each row's target; None: 1
    weight_total: Tensor | None  # [], fp64, the sum of all class weights; None: that of `classes` ones
    label_smoothing: float
    z_loss: float
    gradient_filter: float

    def losses(self, kernel: Kernel, found: Statistics, start: int, stop: int) -> Losses:
        """The losses of rows [start, stop), whose statistics were found. One rounding per operation, in their dtype."""
        smoothing = self.label_smoothing
        log_sum = None
        if smoothing or self.z_loss or self.call.dense is not None:
            log_sum = kernel.log(found.sum_exp)
        if self.call.dense is not None:
            assert found.dense_sum is not None
            assert log_sum is not None
            moved = found.dense_sum * (1 - smoothing)
            if smoothing:
                assert found.column_sum is not None
                moved = moved + found.column_sum * (smoothing / self.classes)
            losses = log_sum * self._probability_total(found) - moved
        else:
            losses = -kernel.logprobs(found)
            if self.target_weight is not None:
                losses = losses * self.target_weight[start:stop]
            if smoothing:
                assert found.column_sum is not None
                assert log_sum is not None
                smooth = log_sum * self._weight_total(found) - found.column_sum
                losses = losses * (1 - smoothing) + smooth * (smoothing / self.classes)
        losses = losses.masked_fill(
            found.max == torch.inf, torch.nan
        )  # as in torch; rows of -inf are NaN by themselves
        if not self.z_loss:
            return Losses(losses, None)
        assert log_sum is not None
        log_sum_exp = found.max + log_sum
        return Losses(losses, log_sum_exp * log_sum_exp * self.z_loss)

    def logit_gradient(
        self,
        kernel: Kernel,
        found: Statistics,
        start: int,
        stop: int,
        upstream: Tensor,  # [stop - start], of the cross-entropies
        upstream_of_z: Tensor,  # [stop - start], of the z-losses
    ) -> LogitGradient:
        """The gradient of the logits of rows [start, stop).

        p_ij (total weight of row i's targets) - (weighted target probability of column j), both times upstream; the
        z-loss adds 2 z (max + log s) p_ij. In a kernel's terms: p_ij = e_ij / s_i.
        """
        smoothing = self.label_smoothing
        target = dense = column = None
        if self.call.dense is not None:
            dense = -(upstream * (1 - smoothing))
            exp = upstream * self._probability_total(found)
        else:
            target = upstream * (1 - smoothing)
            if self.target_weight is not None:
                target = target * self.target_weight[start:stop]
            exp = target
            if smoothing:
                exp = exp + upstream * (smoothing / self.classes) * self._weight_total(found)
            target = -target
        if smoothing:
            column = -(upstream * (smoothing / self.classes))
        if self.z_loss:
            log_sum_exp = found.max + kernel.log(found.sum_exp)
            exp = exp + upstream_of_z * log_sum_exp * (2 * self.z_loss)
        return LogitGradient(
            exp=nan_where_infinite_max(exp / found.sum_exp, found),
            column=column,
            dense=dense,
            target=target,
            keep_above=found.sum_exp * self.gradient_filter if self.gradient_filter else None,
        )

    def correct(self, found: Statistics) -> Tensor:
        """Which rows' targets have the largest logit."""
        assert found.target_logit is not None
        return found.target_logit == found.max

    def _weight_total(self, found: Statistics) -> Tensor | float:
        return float(self.classes) if self.weight_total is None else self.weight_total.to(found.max.dtype)

    def _probability_total(self, found: Statistics) -> Tensor:
        """Per row the sum of q'_j w_j."""
        assert found.dense_total is not None
        total = found.dense_total * (1 - self.label_smoothing)
        if self.label_smoothing:
            total = total + self.label_smoothing / self.classes * self._weight_total(found)
        return total
