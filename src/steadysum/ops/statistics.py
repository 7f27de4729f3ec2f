"""linear_max_sum: the statistics of every row's logits, which are never stored whole.

Not here: softmax and log-probabilities, which are made of the statistics (softmax.py, logprobs.py).
"""

from __future__ import annotations

import torch
from torch import Tensor

from steadysum import _library
from steadysum.kernels.registry import select
from steadysum.maxsum import MaxSum
from steadysum.ops.arguments import SCHEMA, Arguments, accept, check, empty_column, leading_shape, operands

__all__ = ["linear_max_sum"]


def linear_max_sum(
    input: Tensor,  # [..., H]
    weight: Tensor,  # [V, H]
    *,
    bias: Tensor | None = None,  # [V]
    scale: float = 1.0,
    softcap: float | None = None,
    temperature: float | Tensor | None = None,
    valid_vocab: int | None = None,
    kernel: str = "auto",
) -> MaxSum:
    """Per row the maximum of the logits, and the sum of exp(logit - maximum), without storing the logits.

    A logit is the product of a row of input and a row of weight; then + bias, * scale, softcap * tanh(z / softcap),
    / temperature, in this order.

    Args:
        input: [..., H] in fp32, bf16, fp16 or fp64; any leading dimensions and strides.
        weight: [V, H] in the dtype of input; any strides, never copied: pass a [H, V] head as head.T.
        bias: [V] in the dtype of weight, or fp32 with 16-bit operands.
        scale: the model's constant factor on the logits, before softcap.
        softcap: > 0, limits logits to (-softcap, softcap).
        temperature: > 0, a number, or a tensor with one value per row, [...]; divides last.
        valid_vocab: number of real columns of a padded head, 1 to V; the columns from there on are masked.
        kernel: "auto" or a kernel's name; see steadysum.kernels.

    Returns:
        MaxSum(max, sum_exp), each [...], fp32 (fp64 for fp64 operands). A row of -inf logits: (-inf, 0). A row with
        +inf: (+inf, the number of its +inf logits). A NaN stays in its row.

    Raises:
        OperandTypeError, ShapeError, DtypeError, DeviceError, LayoutError, RangeError: operands that don't fit.
        UnknownKernelError, KernelUnavailableError: the named kernel doesn't exist, or can't run this call.
        GradientError: an operand requires grad, in grad mode.

    Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", arXiv 1805.02867.

    >>> input, weight = torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 1.0], [3.0, 0.0], [-1.0, 2.0]])
    >>> linear_max_sum(input, weight)  # logits 3, 3, 3
    MaxSum(max=tensor([3.]), sum_exp=tensor([3.]))
    """
    arguments = accept(input, weight, bias, scale, softcap, temperature, valid_vocab, kernel)
    return MaxSum(*torch.ops.steadysum.linear_max_sum(*arguments))


def _linear_max_sum(*values: object) -> tuple[Tensor, Tensor]:
    arguments = Arguments(*values)  # type: ignore[arg-type]  # the dispatcher has checked them against the schema
    check(arguments)
    call = operands(arguments)
    (found,) = select(call.problem(), arguments.kernel).statistics([call])
    shape = leading_shape(arguments)
    return found.max.to(call.dtype).reshape(shape), found.sum_exp.to(call.dtype).reshape(shape)


def _fake(*values: object) -> tuple[Tensor, Tensor]:
    arguments = Arguments(*values)  # type: ignore[arg-type]
    check(arguments)
    return empty_column(arguments), empty_column(arguments)


_library.register(f"linear_max_sum({SCHEMA}) -> (Tensor max, Tensor sum_exp)", _linear_max_sum, _fake)
