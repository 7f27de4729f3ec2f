"""linear_max_sum: the statistics of every row's logits, which are never stored whole.

Not here: softmax and log-probabilities, which are made of the statistics (softmax.py, logprobs.py).
"""

from __future__ import annotations

import torch
from torch import Tensor

from steadysum import _library
from steadysum.kernels.gradients import LogitGradient, Wanted
from steadysum.kernels.problem import Statistics
from steadysum.kernels.registry import select
from steadysum.maxsum import MaxSum
from steadysum.ops import plain
from steadysum.ops.arguments import SCHEMA, Arguments, accept, check, column, empty_column, operands, rows
from steadysum.ops.derivative import OPERANDS, fake_gradients, in_shape_of, recomputing, second_order

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
    verify: str = "off",
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
        verify: "off"; "checksum": kernel native compares every tile with checksums of the operands as it computes, and
            computes a bad tile again; "sampled": with any kernel, a few rows drawn at random are computed again, in
            float64 on the CPU. Never changes a bit of the results, forward or backward. See docs/verify.md.

    Returns:
        MaxSum(max, sum_exp), each [...], fp32 (fp64 for fp64 operands). A row of -inf logits: (-inf, 0). A row with
        +inf: (+inf, the number of its +inf logits). A NaN stays in its row.

    Raises:
        OperandTypeError, ShapeError, DtypeError, DeviceError, LayoutError, RangeError: operands that don't fit.
        UnknownKernelError, KernelUnavailableError: the named kernel doesn't exist, or can't run or verify this call.
        AccuracyError: results are beyond the bound of rounding errors, and were so again when computed once more; only
            with verify.
        GradientError: a temperature requires grad, in grad mode; forward-mode differentiation.

    Gradients flow to input, weight and bias, from both results; that of max is split evenly among ties, as in
    torch.amax. Backward computes the logits once more and needs no memory that grows with rows times vocabulary.

    Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", arXiv 1805.02867.

    >>> input, weight = torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 1.0], [3.0, 0.0], [-1.0, 2.0]])
    >>> linear_max_sum(input, weight)  # logits 3, 3, 3
    MaxSum(max=tensor([3.]), sum_exp=tensor([3.]))
    """
    arguments = accept(input, weight, bias, scale, softcap, temperature, valid_vocab, kernel, verify)
    return MaxSum(*torch.ops.steadysum.linear_max_sum(*arguments))


def _linear_max_sum(*values: object) -> tuple[Tensor, Tensor]:
    arguments, found = _found(*values, wants_ties=False)
    return column(arguments, found.max), column(arguments, found.sum_exp)


def _linear_max_sum_and_ties(*values: object) -> tuple[Tensor, Tensor, Tensor]:
    arguments, found = _found(*values, wants_ties=True)
    assert found.ties is not None
    return column(arguments, found.max), column(arguments, found.sum_exp), column(arguments, found.ties)


def _found(*values: object, wants_ties: bool) -> tuple[Arguments, Statistics]:
    arguments = Arguments(*values)  # type: ignore[arg-type]  # the dispatcher has checked them against the schema
    check(arguments)
    call = operands(arguments, wants_ties=wants_ties)
    (found,) = select(call.problem(), arguments.kernel).statistics([call])
    return arguments, found


def _linear_max_sum_backward(*values: object) -> list[Tensor]:
    *common, largest, sum_exp, ties, of_max, of_sum, wanted = values
    arguments = Arguments(*common)  # type: ignore[arg-type]
    call = operands(arguments, wants_ties=True)
    known = Statistics(rows(largest), rows(sum_exp), ties=rows(ties))  # type: ignore[arg-type]
    per_max = None if of_max is None else rows(of_max)  # type: ignore[arg-type]
    per_sum = None if of_sum is None else rows(of_sum)  # type: ignore[arg-type]

    def pull_back(found: Statistics, start: int, stop: int) -> LogitGradient:
        # sum_exp is the sum of exp(z - max): each z has its exponential; max, which ties share, has minus their sum.
        assert found.ties is not None
        share = None if per_max is None else per_max[start:stop]
        exp = None if per_sum is None else per_sum[start:stop]
        if exp is not None:
            moved = exp * found.sum_exp
            share = -moved if share is None else share - moved
        # No logit equals a max that is NaN: such a row's gradients are made NaN by a term of all columns.
        column = None if exp is not None else torch.zeros_like(found.max).masked_fill_(found.max.isnan(), torch.nan)
        return LogitGradient(exp=exp, column=column, tie=None if share is None else share / found.ties)

    kernel = select(call.problem(wants_gradients=True), arguments.kernel)
    which = Wanted(*wanted)  # type: ignore[misc]
    return in_shape_of(arguments, kernel.gradients(call, pull_back, which, known), which)


def _plain(*values: object) -> tuple[Tensor, Tensor]:
    return plain.max_sum(plain.logits(Arguments(*values)))  # type: ignore[arg-type]


def _fake(*values: object) -> tuple[Tensor, Tensor]:
    arguments = Arguments(*values)  # type: ignore[arg-type]
    check(arguments)
    return empty_column(arguments), empty_column(arguments)


def _fake_and_ties(*values: object) -> tuple[Tensor, Tensor, Tensor]:
    return (*_fake(*values), empty_column(Arguments(*values)))  # type: ignore[arg-type]


_library.register(
    f"linear_max_sum({SCHEMA}) -> (Tensor max, Tensor sum_exp)",
    _linear_max_sum,
    _fake,
    recomputing("linear_max_sum_and_ties", "linear_max_sum_backward", returned=2, differentiable=2, known=slice(3)),
    OPERANDS,
)
_library.register(
    f"linear_max_sum_and_ties({SCHEMA}) -> (Tensor max, Tensor sum_exp, Tensor ties)",
    _linear_max_sum_and_ties,
    _fake_and_ties,
    recomputing("linear_max_sum_and_ties", "linear_max_sum_backward", returned=3, differentiable=2, known=slice(3)),
    OPERANDS,
)
_library.register(
    f"linear_max_sum_backward({SCHEMA}, Tensor max, Tensor sum_exp, Tensor ties, Tensor? of_max, Tensor? of_sum, "
    "bool[] wanted) -> Tensor[]",
    _linear_max_sum_backward,
    fake_gradients,
    second_order("linear_max_sum_backward", _plain, arguments=len(Arguments._fields), known=3, upstream=2),
    (*OPERANDS, "max", "sum_exp", "of_max", "of_sum"),
)
