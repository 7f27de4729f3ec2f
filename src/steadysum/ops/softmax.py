"""linear_softmax: the softmax of every row's logits; the one operator whose result is as large as the logits.

Not here: statistics alone (statistics.py).
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

from steadysum import _library
from steadysum.errors import DtypeError, OperandTypeError
from steadysum.kernels.gradients import LogitGradient, Wanted
from steadysum.kernels.problem import FLOATS, Operands, Statistics, statistics_dtype
from steadysum.kernels.registry import Kernel, select
from steadysum.ops import plain
from steadysum.ops.arguments import SCHEMA, Arguments, accept, check, in_shape, leading_shape, operands
from steadysum.ops.derivative import (
    OPERANDS,
    fake_gradients,
    in_shape_of,
    nan_where_infinite_max,
    recomputing,
    second_order,
)

__all__ = ["linear_softmax"]

BLOCK_BYTES: Final = 64 * 2**20  # rows computed at a time when the result is narrower: the bar on extra memory


def linear_softmax(
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
    dtype: torch.dtype | None = None,
) -> Tensor:  # [..., V]
    """Softmax over the vocabulary of the logits of a linear layer.

    It is computed in fp32 (fp64 for fp64 operands) and rounded once. With a dtype of that width the logits are
    normalised in the result itself; otherwise the extra memory is 64 MiB, or one row if that is more.

    Args:
        input, weight, bias, scale, softcap, temperature, valid_vocab, kernel, verify: as in linear_max_sum.
        dtype: of the result; None: fp32, or fp64 for fp64 operands.

    Returns:
        [..., V], contiguous. Masked columns are 0. As in torch.softmax, a row that holds NaN or +inf, or nothing but
        -inf, is NaN.

    Raises:
        What linear_max_sum raises, and DtypeError for a dtype that isn't floating-point.

    Gradients flow to input, weight and bias; backward computes the logits once more, some rows at a time.

    >>> weight = torch.tensor([[1.0], [1.0], [-torch.inf], [1.0]])
    >>> linear_softmax(torch.tensor([1.0]), weight, valid_vocab=3)
    tensor([0.5000, 0.5000, 0.0000, 0.0000])
    """
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise OperandTypeError("type of dtype", type(dtype).__name__, "torch.dtype or None", "E.g. torch.bfloat16.")
    arguments = accept(input, weight, bias, scale, softcap, temperature, valid_vocab, kernel, verify)
    wanted = statistics_dtype(input.dtype) if dtype is None else dtype
    result: Tensor = torch.ops.steadysum.linear_softmax(*arguments, wanted)
    return result


def _linear_softmax(*values: object) -> Tensor:
    arguments, dtype = _checked(*values)
    call = operands(arguments)
    kernel = select(call.problem(wants_logits=True), arguments.kernel)
    result = call.input.new_empty((call.input.shape[0], call.weight.shape[0]), dtype=dtype)
    if dtype == call.dtype:
        kernel.softmax(call, result)
    else:
        _by_row_blocks(kernel, call, result)
    return in_shape(result, (*leading_shape(arguments), call.weight.shape[0]))


def _by_row_blocks(kernel: Kernel, call: Operands, result: Tensor) -> None:
    rows, vocab = result.shape
    block = max(1, BLOCK_BYTES // (vocab * call.dtype.itemsize))
    wide = result.new_empty((min(block, rows), vocab), dtype=call.dtype)
    for start in range(0, rows, block):
        stop = min(start + block, rows)
        kernel.softmax(call.rows(start, stop), wide[: stop - start])
        result[start:stop] = wide[: stop - start]


def _linear_softmax_backward(*values: object) -> list[Tensor]:
    *forward, upstream, wanted = values
    arguments, _ = _checked(*forward)
    assert isinstance(upstream, Tensor)
    vocab = arguments.weight.shape[0]
    rows = math.prod(leading_shape(arguments))
    call = operands(arguments, dense=upstream.detach().reshape(rows, vocab))

    def pull_back(found: Statistics, start: int, stop: int) -> LogitGradient:  # noqa: ARG001
        # G_ij = p_ij (Q_ij - sum over k of p_ik Q_ik), where Q is the upstream gradient
        assert found.dense_exp is not None
        exp = nan_where_infinite_max(1 / found.sum_exp, found)
        return LogitGradient(exp=exp, center=found.dense_exp / found.sum_exp)

    kernel = select(call.problem(wants_gradients=True), arguments.kernel)
    which = Wanted(*wanted)  # type: ignore[misc]
    return in_shape_of(arguments, kernel.gradients(call, pull_back, which), which)


def _plain(*values: object) -> tuple[Tensor]:
    arguments, dtype = _checked(*values)
    return (plain.softmax(plain.logits(arguments), arguments.weight.shape[0], dtype),)


def _fake(*values: object) -> Tensor:
    arguments, dtype = _checked(*values)
    return arguments.input.new_empty((*leading_shape(arguments), arguments.weight.shape[0]), dtype=dtype)


def _checked(*values: object) -> tuple[Arguments, torch.dtype]:
    *common, dtype = values
    arguments = Arguments(*common)  # type: ignore[arg-type]  # the dispatcher has checked them against the schema
    check(arguments)
    assert isinstance(dtype, torch.dtype)
    if dtype not in FLOATS:
        raise DtypeError("dtype of linear_softmax", str(dtype), ", ".join(map(str, FLOATS)), "Pass None for fp32.")
    return arguments, dtype


_library.register(
    f"linear_softmax({SCHEMA}, ScalarType dtype) -> Tensor",
    _linear_softmax,
    _fake,
    recomputing("linear_softmax", "linear_softmax_backward", returned=1, differentiable=1),
    OPERANDS,
)
_library.register(
    f"linear_softmax_backward({SCHEMA}, ScalarType dtype, Tensor upstream, bool[] wanted) -> Tensor[]",
    _linear_softmax_backward,
    fake_gradients,
    second_order("linear_softmax_backward", _plain, arguments=len(Arguments._fields) + 1, known=0, upstream=1),
    (*OPERANDS, "upstream"),
)
