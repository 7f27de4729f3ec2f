"""Modules: the loss as torch.nn has it.

Not here: the loss itself (ops/cross_entropy.py).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from steadysum.errors import LabelSmoothingError, OperandTypeError, ShapeError
from steadysum.ops import LossStats, linear_cross_entropy

if TYPE_CHECKING:
    from torch.nn import LinearCrossEntropyOptions

__all__ = ["LinearCrossEntropyLoss"]


class LinearCrossEntropyLoss(torch.nn.Module):
    """A linear layer and its cross-entropy; it replaces torch.nn.LinearCrossEntropyLoss by its name.

    Its parameters and buffers have the names, shapes and initial values of torch's module, so that state dicts of one
    load into the other. A head that the model has already belongs to the function, linear_cross_entropy.

    Args:
        in_features: H.
        num_classes: V.
        out_features: (d1, ..., dK) of a K-dimensional loss, whose logits are stored whole.
        bias: whether the linear layer has one.
        device, dtype: of its parameters.
        reduction, weight, ignore_index, label_smoothing, options: as in linear_cross_entropy.
        z_loss, scale, softcap, valid_vocab, return_stats, kernel, verify, gradient_filter: as in linear_cross_entropy.

    Raises:
        ShapeError, LabelSmoothingError, OperandTypeError; when called, what linear_cross_entropy raises.

    >>> loss = LinearCrossEntropyLoss(8, 100)
    >>> loss(torch.zeros(4, 8), torch.arange(4))  # 100 equal logits: log 100
    tensor(4.6052, grad_fn=<...>)
    """

    weight: Tensor | None

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        out_features: tuple[int, ...] = (),
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        reduction: str = "mean",
        weight: Tensor | None = None,  # [V]
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
    ) -> None:
        if weight is not None and weight.shape != (num_classes,):
            raise ShapeError(
                "shape of weight (class weights)", str(list(weight.shape)), f"[{num_classes}]", "One per class."
            )
        if isinstance(label_smoothing, bool) or not isinstance(label_smoothing, (int, float)):
            raise OperandTypeError(
                "type of label_smoothing", type(label_smoothing).__name__, "a Python number", "Use float(...)."
            )
        if not 0 <= label_smoothing <= 1:
            raise LabelSmoothingError("label_smoothing", str(label_smoothing), "0.0 to 1.0", "Pass 0.0 for none.")
        super().__init__()
        self.register_buffer("weight", weight)
        self.num_classes = num_classes
        self.out_features = out_features
        self.reduction = reduction
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing
        self.options = options
        self.z_loss = z_loss
        self.scale = scale
        self.softcap = softcap
        self.valid_vocab = valid_vocab
        self.return_stats = return_stats
        self.kernel = kernel
        self.verify = verify
        self.gradient_filter = gradient_filter
        logits = math.prod(out_features, start=num_classes)
        self.linear = torch.nn.Linear(in_features, logits, bias=bias, device=device, dtype=dtype)

    def forward(
        self,
        input: Tensor,  # [..., H]
        target: Tensor,
    ) -> Tensor | tuple[Tensor, LossStats]:
        """The loss; with return_stats (loss, LossStats)."""
        linear_weight: Tensor = self.linear.weight
        linear_bias: Tensor | None = self.linear.bias
        if self.out_features:
            shape = (self.num_classes, *self.out_features)
            linear_weight = linear_weight.reshape(*shape, self.linear.in_features)
            linear_bias = None if linear_bias is None else linear_bias.reshape(shape)
        return linear_cross_entropy(  # type: ignore[call-overload, misc, no-any-return]
            input,
            linear_weight,
            target,
            linear_bias=linear_bias,
            weight=self.weight,
            reduction=self.reduction,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            options=self.options,
            z_loss=self.z_loss,
            scale=self.scale,
            softcap=self.softcap,
            valid_vocab=self.valid_vocab,
            return_stats=self.return_stats,
            kernel=self.kernel,
            verify=self.verify,
            gradient_filter=self.gradient_filter,
        )

    def extra_repr(self) -> str:
        """What is printed between the parentheses: the sizes and the options."""
        shown = {
            "in_features": self.linear.in_features,
            "num_classes": self.num_classes,
            "out_features": self.out_features,
            "bias": self.linear.bias is not None,
            "reduction": self.reduction,
            "ignore_index": self.ignore_index,
            "label_smoothing": self.label_smoothing,
            "z_loss": self.z_loss,
            "scale": self.scale,
            "softcap": self.softcap,
            "valid_vocab": self.valid_vocab,
            "kernel": self.kernel,
            "verify": self.verify,
            "gradient_filter": self.gradient_filter,
        }
        return ", ".join(f"{name}={value}" for name, value in shown.items())
