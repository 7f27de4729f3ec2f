"""The arguments of linear_cross_entropy: every check of them that arguments.py doesn't have, in the same three steps.

Where torch.nn.functional.linear_cross_entropy raises, so does this, before any work, a subclass of the same error.
Not here: the mathematics (token_loss.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from steadysum.errors import (
    DtypeError,
    LabelSmoothingError,
    OperandTypeError,
    RangeError,
    ShapeError,
    TargetShapeError,
)
from steadysum.kernels.problem import FLOATS, statistics_dtype
from steadysum.ops.arguments import (
    SCHEMA,
    Arguments,
    check,
    check_devices,
    check_storage,
    leading_shape,
    operands,
    refuse_targets,
)
from steadysum.ops.reduction import total
from steadysum.ops.token_loss import TokenLoss

__all__ = [
    "IGNORED",
    "LOSS_SCHEMA",
    "REDUCTIONS",
    "LossArguments",
    "accept_loss",
    "cast",
    "check_class_weight",
    "check_target_of_loss",
    "check_targets",
    "kept_targets",
    "loss_dtype",
    "precision",
    "token_loss",
    "unpack",
]

REDUCTIONS: Final = ("none", "mean", "sum")
IGNORED: Final = -100  # torch's default
INDEX_DTYPES: Final = (torch.int64, torch.int32, torch.uint8)  # torch takes int64 and uint8

LOSS_SCHEMA: Final = (
    f"{SCHEMA}, Tensor target, Tensor? class_weight, str reduction, int ignore_index, float label_smoothing, "
    "float z_loss, float gradient_filter, ScalarType? precision, bool return_stats"
)


class LossArguments(NamedTuple):
    """The arguments of the loss's operators that follow those of every operator, in the order of LOSS_SCHEMA."""

    target: Tensor  # [...] class indices, or [..., V] class probabilities
    class_weight: Tensor | None  # [V]
    reduction: str
    ignore_index: int
    label_smoothing: float
    z_loss: float
    gradient_filter: float
    precision: torch.dtype | None  # 16-bit dtype of the product, under autocast
    return_stats: bool

    def is_dense(self, shape: Sequence[int]) -> bool:
        """Whether the target holds class probabilities, for logits of this shape: torch tells by the shape."""
        return self.target.shape == torch.Size(shape)


# ---- accept: Python types, and what needs no tensors ---------------------------------------------------------------


def accept_loss(
    target: Tensor,
    class_weight: Tensor | None,
    reduction: str,
    ignore_index: int | None,
    label_smoothing: float,
    z_loss: float,
    gradient_filter: float | None,
    options: object,
    return_stats: bool,
) -> None:
    """Check the Python types of the loss's own arguments, and the ranges of its numbers."""
    tensors: tuple[tuple[str, Any], ...] = (("target", target), ("weight", class_weight))
    for name, value in tensors:
        if isinstance(value, Tensor):
            check_storage(name, value)
        elif value is not None or name == "target":
            raise OperandTypeError(f"type of {name}", type(value).__name__, "torch.Tensor", "Use torch.as_tensor(...).")
    if reduction not in REDUCTIONS:
        raise RangeError("reduction", repr(reduction), ", ".join(map(repr, REDUCTIONS)), "The default is 'mean'.")
    if ignore_index is not None and (
        isinstance(ignore_index, bool) or not isinstance(ignore_index, (int, torch.SymInt))
    ):
        raise OperandTypeError("type of ignore_index", type(ignore_index).__name__, "int or None", "None is -100.")
    if isinstance(ignore_index, int) and not -(2**63) <= ignore_index < 2**63:
        raise RangeError("ignore_index", str(ignore_index), "an integer of 64 bits", "None is -100.")
    numbers: tuple[tuple[str, Any], ...] = (
        ("label_smoothing", label_smoothing),
        ("z_loss", z_loss),
        ("gradient_filter", gradient_filter),
    )
    for name, number in numbers:
        if number is None and name == "gradient_filter":
            continue
        if isinstance(number, bool) or not isinstance(number, (int, float, torch.SymFloat, torch.SymInt)):
            raise OperandTypeError(f"type of {name}", type(number).__name__, "a Python number", "Use float(...).")
    if not 0 <= label_smoothing <= 1:
        raise LabelSmoothingError("label_smoothing", str(label_smoothing), "0.0 to 1.0", "Pass 0.0 for none.")
    if not 0 <= z_loss < torch.inf:
        raise RangeError("z_loss", str(z_loss), "a finite number >= 0", "Pass 0.0 for no z-loss; 1e-4 is customary.")
    if gradient_filter is not None and not 0 <= gradient_filter < 1:
        raise RangeError(
            "gradient_filter", str(gradient_filter), "0 <= gradient_filter < 1", "Pass None for exact gradients."
        )
    if options is not None and not isinstance(options, _options_class()):
        raise OperandTypeError(
            "type of options",
            seen=type(options).__name__,
            allowed="torch.nn.LinearCrossEntropyOptions or None",
            remedy="It says how torch cuts its chunks, and has no effect here: pass None.",
        )
    if not isinstance(return_stats, bool):
        raise OperandTypeError("type of return_stats", type(return_stats).__name__, "bool", "Pass True or False.")


def _options_class() -> type:
    options: type = getattr(torch.nn, "LinearCrossEntropyOptions", type(None))  # torch 2.13 brought it
    return options


def precision(input: Tensor) -> torch.dtype | None:
    """The dtype to which autocast, if it is on, rounds the operands of a linear layer."""
    device = input.device.type
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return None
    return torch.get_autocast_dtype(device)


def cast(arguments: Arguments, dtype: torch.dtype | None) -> Arguments:
    """The operands as autocast hands them to a linear layer. An fp32 bias stays: it is added to fp32 logits here."""
    if dtype is None:
        return arguments
    bias = arguments.bias
    return arguments._replace(
        input=_cast(arguments.input, dtype),
        weight=_cast(arguments.weight, dtype),
        bias=bias if bias is None or bias.dtype == torch.float32 else _cast(bias, dtype),
    )


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() and tensor.dtype != torch.float64 else tensor


# ---- check: ranks, sizes, dtypes, devices --------------------------------------------------------------------------


def check_loss(arguments: Arguments, loss: LossArguments) -> None:
    """Raise before any work unless the arguments fit each other; reads no values. The operands are cast already."""
    check(arguments)
    vocab = arguments.weight.shape[0]
    shape = leading_shape(arguments)
    check_target_of_loss(loss, shape, (*shape, vocab))
    check_class_weight(loss, vocab, arguments.weight.dtype)
    named = {"input": arguments.input, "target": loss.target, "weight": loss.class_weight}
    check_devices({name: tensor.device for name, tensor in named.items() if tensor is not None})


def check_target_of_loss(loss: LossArguments, leading: Sequence[int], logits: Sequence[int]) -> None:
    """Raise unless the target fits rows of this shape, or logits of this shape; reads no values."""
    target = loss.target
    check_storage("target", target)
    if loss.is_dense(logits):
        if target.dtype not in FLOATS:
            raise DtypeError(
                "dtype of target",
                seen=f"{target.dtype} in the shape of the logits",
                allowed="a floating-point dtype for class probabilities",
                remedy=f"Class indices have the shape {list(leading)}.",
            )
        return
    if target.shape != torch.Size(leading):
        raise TargetShapeError(
            "shape of target",
            seen=str(list(target.shape)),
            allowed=f"{list(leading)} for class indices, {list(logits)} for class probabilities",
            remedy="Pass one target per row.",
        )
    if target.dtype not in INDEX_DTYPES:
        raise DtypeError(
            "dtype of target",
            seen=str(target.dtype),
            allowed=", ".join(map(str, INDEX_DTYPES)) + " for class indices",
            remedy=f"Class probabilities have the shape of the logits, {list(logits)}.",
        )


def check_class_weight(loss: LossArguments, vocab: int, dtype: torch.dtype) -> None:
    """Raise unless the class weights fit; reads no values."""
    weight = loss.class_weight
    if weight is None:
        return
    check_storage("weight", weight)
    if weight.shape != (vocab,):
        raise ShapeError(
            "shape of weight (class weights)",
            seen=str(list(weight.shape)),
            allowed=f"[{vocab}], one per class",
            remedy="The weight of the linear layer is linear_weight.",
        )
    if loss.target.dim() and loss.target.is_floating_point():
        return  # torch promotes class weights beside class probabilities
    if loss.precision is not None and weight.dtype in FLOATS and weight.dtype != torch.float64:
        return  # under autocast torch brings logits and class weights to fp32
    if weight.dtype != dtype:
        raise DtypeError(
            "dtype of weight (class weights)",
            seen=str(weight.dtype),
            allowed=f"{dtype}, as linear_weight",
            remedy="Convert it with .to(...).",
        )


# ---- operands: values, rows ----------------------------------------------------------------------------------------


def token_loss(arguments: Arguments, loss: LossArguments) -> TokenLoss:
    """The loss of the rows that aren't ignored, with its operands, from checked and cast arguments.

    Raises:
        TargetRangeError: a target is out of range (on the CPU, with its position).
    """
    vocab = arguments.weight.shape[0]
    classes = vocab if arguments.valid_vocab is None else int(arguments.valid_vocab)
    dtype = statistics_dtype(arguments.input.dtype)
    dense = loss.target.detach() if loss.is_dense((*leading_shape(arguments), vocab)) else None
    target: Tensor | None = None
    kept: Tensor | None = None
    if dense is not None:
        dense = dense.reshape(math.prod(leading_shape(arguments)), vocab)
        if loss.return_stats:  # the likeliest class is what a correct answer names
            target = dense[:, :classes].argmax(dim=1)
    else:
        target, kept = kept_targets(loss.target.detach(), loss.ignore_index, classes, vocab)
    weight = None if loss.class_weight is None else loss.class_weight.detach().to(dtype).contiguous()
    smooth = loss.label_smoothing > 0
    per_column = smooth or dense is not None
    return TokenLoss(
        call=operands(
            arguments,
            target=target,
            column_weight=weight if per_column else None,
            wants_column_sum=smooth,
            dense=dense,
            kept=kept,
        ),
        classes=classes,
        target_weight=None if weight is None or target is None or dense is not None else weight[target],
        weight_total=total(weight[:classes]) if weight is not None and smooth else None,
        label_smoothing=float(loss.label_smoothing),
        z_loss=float(loss.z_loss),
        gradient_filter=float(loss.gradient_filter),
    )


def kept_targets(
    target: Tensor,  # [...]
    ignore_index: int,
    valid_vocab: int,
    vocab: int,
) -> tuple[Tensor, Tensor | None]:  # [n], [n]
    """The targets that aren't ignored, and their rows; None for the rows if they are all."""
    target = target.to(torch.int64)
    if target.device.type == "cpu" and target.numel() > 0:  # the most common case, in one pass
        least, most = (int(bound) for bound in torch.aminmax(target))
        if least >= 0 and most < valid_vocab and not least <= ignore_index <= most:
            return target.reshape(-1).contiguous(), None
    ignored = target == ignore_index
    check_targets(target, ignored, ignore_index, valid_vocab, vocab)
    flat = target.reshape(-1).contiguous()
    if not bool(ignored.any()):
        return flat, None
    kept = (~ignored).reshape(-1).nonzero()[:, 0]
    return flat[kept], kept


def check_targets(target: Tensor, ignored: Tensor, ignore_index: int, valid_vocab: int, vocab: int) -> None:
    """Raise unless all targets that aren't ignored are classes."""
    refuse_targets(
        target,
        ignored | ((target >= 0) & (target < valid_vocab)),
        valid_vocab,
        vocab,
        remedy="Give rows to leave out the ignore_index.",
        besides=f", or ignore_index={ignore_index}",
    )


def unpack(values: Sequence[Any]) -> tuple[Arguments, LossArguments]:
    """The arguments of one of the loss's operators, operands cast and all checked."""
    count = len(Arguments._fields)
    arguments, loss = Arguments(*values[:count]), LossArguments(*values[count : count + len(LossArguments._fields)])
    arguments = cast(arguments, loss.precision)
    check_loss(arguments, loss)
    return arguments, loss


def loss_dtype(arguments: Arguments) -> torch.dtype:
    """The dtype of losses."""
    return statistics_dtype(arguments.input.dtype)
