"""linear_cross_entropy: the loss of a linear layer and a cross-entropy, and its gradients, without storing the logits.

Not here: the mathematics (token_loss.py), the checks (loss_arguments.py), the operators (loss_as_number.py,
loss_per_row.py), heads of more dimensions (wide_heads.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, overload

import torch
from torch import Tensor

from steadysum.errors import OptionError
from steadysum.maxsum import MaxSum
from steadysum.ops import loss_as_number as loss_as_number  # they register the operators
from steadysum.ops import loss_per_row as loss_per_row
from steadysum.ops import wide_heads
from steadysum.ops.arguments import accept, leading_shape
from steadysum.ops.loss_arguments import IGNORED, LossArguments, accept_loss, precision

if TYPE_CHECKING:
    from torch.nn import LinearCrossEntropyOptions

__all__ = ["LossStats", "linear_cross_entropy"]


class LossStats(NamedTuple):
    """What a loss was made of; without gradients."""

    max_sum: MaxSum  # each [...]; (-inf, 0) in ignored rows
    token_loss: Tensor  # [...], the losses of reduction="none"; 0 in ignored rows
    correct: Tensor  # [], int64: the number of rows, of those not ignored, whose target has the largest logit


@overload
def linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = ...,
    weight: Tensor | None = ...,
    reduction: str = ...,
    ignore_index: int | None = ...,
    label_smoothing: float = ...,
    options: LinearCrossEntropyOptions | None = ...,
    z_loss: float = ...,
    scale: float = ...,
    softcap: float | None = ...,
    valid_vocab: int | None = ...,
    return_stats: Literal[False] = ...,
    kernel: str = ...,
    verify: str = ...,
    gradient_filter: float | None = ...,
) -> Tensor: ...


@overload
def linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = ...,
    weight: Tensor | None = ...,
    reduction: str = ...,
    ignore_index: int | None = ...,
    label_smoothing: float = ...,
    options: LinearCrossEntropyOptions | None = ...,
    z_loss: float = ...,
    scale: float = ...,
    softcap: float | None = ...,
    valid_vocab: int | None = ...,
    return_stats: Literal[True],
    kernel: str = ...,
    verify: str = ...,
    gradient_filter: float | None = ...,
) -> tuple[Tensor, LossStats]: ...


def linear_cross_entropy(
    input: Tensor,  # [..., H]
    linear_weight: Tensor,  # [V, H], or [V, d1, ..., dK, H]
    target: Tensor,  # [...] class indices, or [..., V] class probabilities
    *,
    linear_bias: Tensor | None = None,  # [V], or [V, d1, ..., dK]
    weight: Tensor | None = None,  # [V]
    reduction: str = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    options: LinearCrossEntropyOptions | None = None,
    z_loss: float = 0.0,
    scale: float = 1.0,
    softcap: float | None = None,
    valid_vocab: int | None = None,
    return_stats: bool = False,
    kernel: str = "auto",
    verify: str = "off",
    gradient_filter: float | None = None,
) -> Tensor | tuple[Tensor, LossStats]:
    """Cross-entropy of the logits of a linear layer; it replaces torch.nn.functional.linear_cross_entropy by its name.

    With reduction "mean" or "sum" the gradients are formed in the forward pass, chunk of rows by chunk of rows (three
    products in all; none of it under torch.no_grad). With "none" backward computes the logits once more (four).

    Args:
        input: [..., H] in fp32, bf16, fp16 or fp64; torch takes [H] and [N, H] alone. Under autocast it and
            linear_weight are rounded as torch.nn.functional.linear does it; their gradients aren't, but with
            K-dimensional loss.
        linear_weight: [V, H] in the dtype of input. [V, d1, ..., dK, H], with input [N, H], is K-dimensional loss as in
            torch; its logits are stored whole, by torch, in fp32.
        target: class indices [...] (int64, int32, uint8), or, if it has the shape of the logits, class probabilities in
            any floating-point dtype; without gradients.
        linear_bias: [V], or [V, d1, ..., dK], in the dtype of linear_weight, or fp32 with 16-bit operands.
        weight: [V], a weight of each class, in the dtype of linear_weight; without gradients.
        reduction: "none", "mean" (divided by the sum of the targets' weights; by the number of rows for class
            probabilities) or "sum". Where all rows are ignored the mean is NaN, as in torch.
        ignore_index: class index of rows that take no part; None: -100. They are never computed, so that, unlike in
            torch, a NaN in one of them reaches nothing but its own logits.
        label_smoothing: 0 to 1, the share of each target that is spread evenly over the classes. (torch takes negative
            numbers and NaN, too, and computes something else with them.)
        options: torch's LinearCrossEntropyOptions are accepted, and mean nothing: chunks and accumulators aren't up to
            the caller, gradients always accumulate in fp32, and a graph can always be retained.
        z_loss: adds z_loss * (log-sum-exp of the logits)^2 to each row's loss, whatever its class weight; its part of a
            mean is divided by the number of rows.
        scale, softcap, valid_vocab: as in linear_max_sum. With valid_vocab the number of classes is valid_vocab.
        return_stats: also return LossStats.
        kernel, verify: as in linear_max_sum; K-dimensional loss is torch's, and isn't verified.
        gradient_filter: None, or eps: in the gradients, not in the loss, probabilities p_ij < eps count as 0, so that
            their products can be skipped; what comes from the target itself stays. Up to rounding, with g_i the
            upstream gradient of row i's loss and c_i the coefficient of its softmax (1 without class weights and
            z-loss), the error of row i's gradient is at most |g_i c_i| * sum over {j: p_ij < eps} of p_ij ||W_j||; that
            of W_j |g_i c_i| p_ij ||x_i||, summed over {i: p_ij < eps}. With label smoothing nothing is skipped.

    Returns:
        loss, or (loss, LossStats): fp32 (fp64 for fp64 operands), [] or, for "none", [...] with 0 in ignored rows. The
        sum over rows is taken in fp64 in row order, and rounded once.

    Raises:
        What linear_max_sum raises; TargetShapeError; TargetRangeError, an IndexError; LabelSmoothingError; OptionError
        for an ignore_index beside class probabilities. Each is the error that torch raises there, or a subclass.

    Gradients of gradients need kernel="eager" or "reference", which then store all logits.

    >>> x, head = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 0.0], [0.0, 1.0]])
    >>> linear_cross_entropy(x, head, torch.tensor([1]))  # two equal logits: log 2
    tensor(0.6931)
    """
    accept_loss(
        target, weight, reduction, ignore_index, label_smoothing, z_loss, gradient_filter, options, return_stats
    )
    common = accept(input, linear_weight, linear_bias, scale, softcap, None, valid_vocab, kernel, verify)
    loss = LossArguments(
        target,
        weight,
        reduction,
        IGNORED if ignore_index is None else ignore_index,
        float(label_smoothing),
        float(z_loss),
        0.0 if gradient_filter is None else float(gradient_filter),
        precision(input),
        return_stats,
    )
    if ignore_index is not None and linear_weight.dim() > 1:
        logits = (*leading_shape(common), linear_weight.shape[0], *linear_weight.shape[1:-1])
        if loss.is_dense(logits):
            raise OptionError(
                "ignore_index",
                seen=f"{ignore_index} beside class probabilities",
                allowed="None",
                remedy="Give rows to leave out probabilities of 0, or drop them.",
            )
    if linear_weight.dim() > 2:
        value, found = wide_heads.loss_and_statistics(common, loss)
    else:
        if input.dim() == 1 and target.shape == (1,) and not target.is_floating_point():
            loss = loss._replace(target=target[0])  # torch takes this too
        run = torch.ops.steadysum
        value, *found = (run.linear_token_loss if reduction == "none" else run.linear_cross_entropy)(*common, *loss)
    if not return_stats:
        return value
    if reduction == "none":
        largest, sum_exp, correct = found
        tokens = value.detach().clone()
    else:
        largest, sum_exp, tokens, correct = found
    return value, LossStats(MaxSum(largest, sum_exp), tokens, correct)
