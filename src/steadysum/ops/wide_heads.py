"""K-dimensional loss: heads [C, d1, ..., dK, H], by logits stored whole, as torch defines it.

Not here: heads [V, H], whose logits are never stored (cross_entropy.py).
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from steadysum.errors import DtypeError, KernelUnavailableError, OptionError, ShapeError
from steadysum.kernels.autocast import without_autocast
from steadysum.kernels.problem import FLOATS, statistics_dtype
from steadysum.kernels.registry import AUTO
from steadysum.kernels.verification import OFF, split
from steadysum.ops import plain
from steadysum.ops.arguments import Arguments, check_devices
from steadysum.ops.loss_arguments import (
    LossArguments,
    cast,
    check_class_weight,
    check_target_of_loss,
    check_targets,
)
from steadysum.ops.reduction import total

__all__ = ["loss_and_statistics"]

KERNELS: Final = (AUTO, "eager")


def loss_and_statistics(arguments: Arguments, loss: LossArguments) -> tuple[Tensor, list[Tensor]]:
    """The loss; and, if asked for, max, sum_exp, (but for reduction "none") all losses, the number of correct rows."""
    arguments = cast(arguments, loss.precision)
    _check(arguments, loss)
    classes, *positions, hidden = arguments.weight.shape
    dtype = statistics_dtype(arguments.input.dtype)
    logits_shape = (arguments.input.shape[0], classes, *positions)
    leading = (arguments.input.shape[0], *positions)
    real = classes if arguments.valid_vocab is None else arguments.valid_vocab

    # Without branches on values, and without dropping rows: torch.compile and vmap see into this function.
    ignored: Tensor | None = None
    input = arguments.input
    if loss.is_dense(logits_shape):
        target = loss.target.detach().movedim(1, -1)[..., :real].reshape(-1, real)
        answers = target.argmax(dim=1)
    else:
        target = loss.target.to(torch.int64)
        everywhere = target == loss.ignore_index
        if not torch.compiler.is_compiling() and not torch._C._functorch.is_functorch_wrapped_tensor(target):
            check_targets(target, everywhere, loss.ignore_index, real, classes)
        # A NaN in a row that is ignored wherever it is used must not reach the gradient of the weight.
        input = input.masked_fill(everywhere.flatten(1).all(dim=1)[:, None], 0.0)
        ignored = everywhere.reshape(-1)
        target = answers = target.reshape(-1).masked_fill(ignored, 0)
    with without_autocast(input.device.type):
        z = input.to(dtype) @ arguments.weight.to(dtype).reshape(-1, hidden).T
    if arguments.bias is not None:
        z = z + arguments.bias.to(dtype).reshape(-1)
    z = plain.finish(z, arguments.scale, arguments.softcap)
    z = z.reshape(logits_shape).movedim(1, -1)[..., :real].reshape(-1, real)  # [rows, C]
    if ignored is not None:
        z = z.masked_fill(ignored[:, None], 0.0)
    class_weight = None if loss.class_weight is None else loss.class_weight[:real]
    cross_entropy, of_z = plain.token_losses(z, target, class_weight, loss.label_smoothing, loss.z_loss)

    def without_ignored(values: Tensor, instead: float) -> Tensor:
        return values if ignored is None else values.masked_fill(ignored, instead)

    cross_entropy, of_z = without_ignored(cross_entropy, 0.0), without_ignored(of_z, 0.0)
    tokens = (cross_entropy + of_z).reshape(leading)
    statistics = []
    if loss.return_stats:
        with torch.no_grad():
            largest, sum_exp = plain.max_sum(z)
            correct = z.gather(1, answers[:, None])[:, 0] == largest
            statistics = [
                without_ignored(largest, -torch.inf).reshape(leading),
                without_ignored(sum_exp, 0.0).reshape(leading),
            ]
            if loss.reduction != "none":
                statistics.append(tokens.detach())
            statistics.append(without_ignored(correct.to(torch.int64), 0).sum())
    if loss.reduction == "none":
        return tokens, statistics
    summed, summed_of_z = total(cross_entropy), total(of_z)
    if loss.reduction == "mean":
        rows = torch.ones_like(tokens, dtype=torch.float64).reshape(-1)
        count = total(without_ignored(rows, 0.0))
        weighted = class_weight is not None and ignored is not None
        summed = summed / (
            total(without_ignored(class_weight.to(dtype)[target], 0.0)) if weighted else count  # type: ignore[union-attr]
        )
        summed_of_z = summed_of_z / count if loss.z_loss else summed_of_z
    return (summed + summed_of_z).to(dtype), statistics


def _check(arguments: Arguments, loss: LossArguments) -> None:
    input, weight, bias = arguments.input, arguments.weight, arguments.bias
    kernel, verify = split(arguments.kernel)
    if verify != OFF:
        raise KernelUnavailableError(
            f"verify={verify!r} can't verify this call",
            seen=f"linear_weight {list(weight.shape)}",
            allowed="linear_weight [V, H], or verify='off'",
            remedy="Heads of more dimensions are computed by torch, with all logits stored.",
        )
    if kernel not in KERNELS:
        raise KernelUnavailableError(
            f"kernel={kernel!r} can't run this call",
            seen=f"linear_weight {list(weight.shape)}",
            allowed="linear_weight [V, H], or kernel='auto'",
            remedy="Heads of more dimensions are computed by torch, with all logits stored.",
        )
    if loss.gradient_filter:
        raise OptionError(
            "gradient_filter",
            seen=f"{loss.gradient_filter} for linear_weight {list(weight.shape)}",
            allowed="None",
            remedy="Heads of more dimensions are computed by torch, with all logits stored.",
        )
    if input.dim() != 2 or input.shape[-1] != weight.shape[-1] or weight.shape[0] == 0:
        raise ShapeError(
            "shapes of input and linear_weight",
            seen=f"input {list(input.shape)}, linear_weight {list(weight.shape)}",
            allowed="input [N, H], linear_weight [V, d1, ..., dK, H] with one H, and V >= 1",
            remedy="As in torch.nn.functional.linear_cross_entropy.",
        )
    if input.dtype not in FLOATS or weight.dtype != input.dtype:
        raise DtypeError(
            "dtypes of input and linear_weight",
            seen=f"input {input.dtype}, linear_weight {weight.dtype}",
            allowed="one floating-point dtype for both",
            remedy="Convert one of them with .to(...).",
        )
    if bias is not None and (bias.shape != weight.shape[:-1] or bias.dtype not in (weight.dtype, torch.float32)):
        raise ShapeError(
            "shape and dtype of linear_bias",
            seen=f"{list(bias.shape)} in {bias.dtype}",
            allowed=f"{list(weight.shape[:-1])} in {weight.dtype}",
            remedy="One value per logit.",
        )
    check_target_of_loss(loss, (input.shape[0], *weight.shape[1:-1]), (input.shape[0], *weight.shape[:-1]))
    check_class_weight(loss, weight.shape[0], weight.dtype)
    tensors = {**arguments.tensors, "target": loss.target}
    if loss.class_weight is not None:
        tensors["class weights"] = loss.class_weight
    check_devices({name: tensor.device for name, tensor in tensors.items()})
