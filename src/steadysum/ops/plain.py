"""The functions of this package once more, by torch's differentiable operations on logits that are stored whole.

For gradients of gradients (derivative.py), and for heads of more than two dimensions, which torch defines by their
logits (wide_heads.py). Not here: any use in an ordinary forward or backward pass.
"""

from __future__ import annotations

import torch
from torch import Tensor

from steadysum.kernels.autocast import without_autocast
from steadysum.kernels.problem import statistics_dtype
from steadysum.ops.arguments import Arguments

__all__ = ["entropy", "logits", "logprobs", "max_sum", "softmax", "token_losses"]


def logits(arguments: Arguments) -> Tensor:  # [..., columns that are not masked]
    """The logits, in the dtype of the statistics."""
    dtype = statistics_dtype(arguments.input.dtype)
    columns = slice(arguments.valid_vocab)
    with without_autocast(arguments.input.device.type):
        z = arguments.input.to(dtype) @ arguments.weight[columns].to(dtype).T
    if arguments.bias is not None:
        z = z + arguments.bias[columns].to(dtype)
    z = finish(z, arguments.scale, arguments.softcap)
    if arguments.temperature is not None:
        temperature = arguments.temperature.detach().to(dtype)
        z = z / (temperature[..., None] if temperature.dim() else temperature)
    return z


def finish(z: Tensor, scale: float, softcap: float | None) -> Tensor:
    """The options that follow the bias."""
    if scale != 1.0:
        z = z * scale
    return z if softcap is None else softcap * torch.tanh(z / softcap)


def max_sum(z: Tensor) -> tuple[Tensor, Tensor]:
    """linear_max_sum of these logits."""
    largest = z.amax(-1)
    return largest, (z - largest[..., None]).exp().sum(-1)


def softmax(
    z: Tensor,
    vocab: int,
    dtype: torch.dtype,
) -> Tensor:  # [..., vocab]
    """linear_softmax of these logits: masked columns, which they lack, are 0."""
    return torch.nn.functional.pad(z.softmax(-1), (0, vocab - z.shape[-1])).to(dtype)


def logprobs(z: Tensor, target: Tensor) -> Tensor:
    """linear_logprobs of these logits."""
    return z.log_softmax(-1).gather(-1, target.to(torch.int64)[..., None])[..., 0]


def entropy(z: Tensor) -> Tensor:
    """The entropy of each row."""
    log_p = z.log_softmax(-1)
    p = log_p.exp()
    return -torch.where(p == 0, 0.0, p * torch.where(p == 0, 0.0, log_p)).sum(-1)


def token_losses(
    z: Tensor,  # [N, C]
    target: Tensor,  # [N] class indices in range, or [N, C] class probabilities
    class_weight: Tensor | None,  # [C]
    label_smoothing: float,
    z_loss: float,
) -> tuple[Tensor, Tensor]:
    """Of each row the cross-entropy and the z-loss."""
    log_p = z.log_softmax(-1)
    classes = z.shape[-1]
    weight = None if class_weight is None else class_weight.to(z.dtype)
    weighted = log_p if weight is None else log_p * weight
    if target.is_floating_point():
        q = target.to(z.dtype) * (1 - label_smoothing) + label_smoothing / classes
        losses = -(q * weighted).sum(-1)
    else:
        losses = -(1 - label_smoothing) * weighted.gather(-1, target[:, None])[:, 0]
        if label_smoothing:
            losses = losses - (label_smoothing / classes) * weighted.sum(-1)
    return losses, z_loss * z.logsumexp(-1).square()
