"""regroup: several calls of linear_max_sum as one parallel region over the union of their tiles.

Not here: concatenation. The field report's rewrite joins features and input rows, and so computes x W1 + y W2;
here every call keeps its own grid of tiles, nothing is copied, and the bits are those of the separate calls.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from steadysum import _library
from steadysum.errors import OperandTypeError
from steadysum.kernels.problem import Operands, Statistics
from steadysum.kernels.registry import select
from steadysum.maxsum import MaxSum
from steadysum.ops.arguments import Arguments, accept, check, empty_column, leading_shape, operands
from steadysum.ops.kernel_choice import accept_kernel

__all__ = ["Call", "regroup"]

SCHEMA = (
    "Tensor[] inputs, Tensor[] weights, Tensor?[] biases, float[] scales, float[] softcaps, Tensor?[] temperatures, "
    "SymInt[] valid_vocabs, str kernel"
)
NO_SOFTCAP = 0.0  # schemas have no list of optional numbers; 0 is no softcap that a caller may pass


@dataclass(frozen=True, eq=False)  # eq of tensors has no truth value
class Call:
    """One call of linear_max_sum, to be run with others; the fields are its arguments."""

    input: Tensor  # [..., H]
    weight: Tensor  # [V, H]
    _: KW_ONLY
    bias: Tensor | None = None  # [V]
    scale: float = 1.0
    softcap: float | None = None
    temperature: float | Tensor | None = None
    valid_vocab: int | None = None


def regroup(calls: Iterable[Call], *, kernel: str = "auto", verify: str = "off") -> list[MaxSum]:
    """Run several calls of linear_max_sum at once, with one start and one end of the threads' work in place of many.

    Calls that share an input or a weight, or nothing, may differ in shape, dtype and options. Each has the bits that
    linear_max_sum gives it alone. On a kernel other than `native` they run one after the other.

    Args:
        calls: the calls.
        kernel: "auto" (chosen for each call) or a kernel's name (for all).
        verify: for all calls, as in linear_max_sum.

    Returns:
        One MaxSum per call, in their order.

    Raises:
        What linear_max_sum raises for one of the calls; nothing has been computed then.

    >>> x, head = torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 1.0], [3.0, 0.0]])
    >>> regroup([Call(x, head), Call(x, head[:1])])
    [MaxSum(max=tensor([3.]), sum_exp=tensor([2.])), MaxSum(max=tensor([3.]), sum_exp=tensor([1.]))]
    """
    if isinstance(calls, Call) or not isinstance(calls, Iterable):
        remedy = "Put the calls into a list: regroup([Call(input, weight, ...), ...])."
        raise OperandTypeError("type of calls", type(calls).__name__, "an iterable of steadysum.Call", remedy)
    chosen = accept_kernel(kernel, verify)
    calls = list(calls)
    for position, call in enumerate(calls):
        if not isinstance(call, Call):
            raise OperandTypeError(
                f"type of calls[{position}]",
                seen=type(call).__name__,
                allowed="steadysum.Call",
                remedy="Wrap each call's arguments: regroup([Call(input, weight, ...), ...]).",
            )
    accepted = [
        accept(
            call.input,
            call.weight,
            call.bias,
            call.scale,
            call.softcap,
            call.temperature,
            call.valid_vocab,
            kernel,
            verify,
        )
        for call in calls
    ]
    if not accepted:
        return []
    columns = torch.ops.steadysum.regroup(
        [each.input for each in accepted],
        [each.weight for each in accepted],
        [each.bias for each in accepted],
        [each.scale for each in accepted],
        [NO_SOFTCAP if each.softcap is None else each.softcap for each in accepted],
        [each.temperature for each in accepted],
        [_vocab(each) if each.valid_vocab is None else each.valid_vocab for each in accepted],
        chosen,
    )
    return [MaxSum(*pair) for pair in zip(columns[::2], columns[1::2], strict=True)]


def _vocab(arguments: Arguments) -> int:
    return arguments.weight.shape[0] if arguments.weight.dim() else 0


def _regroup(*values: object) -> list[Tensor]:
    separate = _checked(*values)
    calls = [operands(each) for each in separate]
    by_kernel: dict[str, list[int]] = {}
    chosen = [select(call.problem(), each.kernel) for call, each in zip(calls, separate, strict=True)]
    for position, kernel in enumerate(chosen):
        by_kernel.setdefault(kernel.name, []).append(position)
    found: dict[int, Statistics] = {}
    for positions in by_kernel.values():
        statistics = chosen[positions[0]].statistics([calls[position] for position in positions])
        found.update(zip(positions, statistics, strict=True))
    return [
        column
        for position in range(len(calls))
        for column in _columns(found[position], separate[position], calls[position])
    ]


def _columns(found: Statistics, arguments: Arguments, call: Operands) -> tuple[Tensor, Tensor]:
    shape = leading_shape(arguments)
    return found.max.to(call.dtype).reshape(shape), found.sum_exp.to(call.dtype).reshape(shape)


def _fake(*values: object) -> list[Tensor]:
    return [empty_column(arguments) for arguments in _checked(*values) for _ in ("max", "sum_exp")]


def _checked(*values: object) -> list[Arguments]:
    *columns, kernel = values
    separate = []
    for input, weight, bias, scale, softcap, temperature, valid_vocab in zip(*columns, strict=True):
        arguments = Arguments(
            input,
            weight,
            bias,
            scale,
            None if softcap == NO_SOFTCAP else softcap,
            temperature,
            valid_vocab,
            str(kernel),
        )
        check(arguments)
        separate.append(arguments)
    return separate


_library.register(f"regroup({SCHEMA}) -> Tensor[]", _regroup, _fake)
