"""The logits behind a call of this package's operators, in float64, with what rounding may do to each.

Not here: the statistics that are made of them, or any check.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from steadysum.guard.checks.calls import arguments_of, call_of, unusable
from steadysum.guard.checks.protocol import Made
from steadysum.guard.checks.rounding import Exact, Units, allowed_error
from steadysum.kernels.problem import SIXTEEN_BIT, statistics_dtype
from steadysum.nn import LinearCrossEntropyLoss
from steadysum.ops.loss_arguments import IGNORED, precision

__all__ = ["LogitCall", "exact_target_logits", "largest_logits", "logit_call", "operator_of"]

_OPERATORS: Final = (
    "linear_max_sum",
    "linear_softmax",
    "linear_logprobs",
    "linear_cross_entropy",
    "fused_linear_online_max_sum",
)
# Elements that are widened to float64 at a time: 1 MiB stays in a second-level cache; a GPU would rather have few.
_AT_ONCE_CPU: Final = 1 << 17
_AT_ONCE: Final = 1 << 24
_TANH_UNITS: Final = 8.0  # units that softcap * tanh(z / softcap) is off by: two roundings, and 2 ulp of any tanh


class LogitCall(NamedTuple):
    """A call of one of the operators, its operands as they are multiplied."""

    operator: str  # one of _OPERATORS
    input: Tensor  # [N, H]
    weight: Tensor  # [V, H]
    bias: Tensor | None  # [V]
    scale: float
    softcap: float | None
    temperature: Tensor | None  # float64 [1] or [N]
    target: Tensor | None  # int64 [N], a row of weight; -1: none
    round_logits: bool  # to the dtype of input
    arguments: dict[str, Any]  # all of them, by name

    @property
    def vocab(self) -> int:
        """The number of real columns; there are no others in weight and bias."""
        return self.weight.shape[0]

    @property
    def units(self) -> Units:
        """Those of logits that are never stored but in the dtype of statistics."""
        info = torch.finfo(statistics_dtype(self.input.dtype))
        return Units(info.eps / 2, info.eps / 2, 0.0, info.smallest_normal * info.eps / 2, info.max, info.max)


def logit_call(made: Made) -> LogitCall | str:
    """The call behind an output, or why it is none of the operators of this package."""
    function = call_of(made).function
    name = operator_of(function)
    given = arguments_of(made)
    if name is None or given is None:
        return f"{getattr(function, '__name__', type(function).__name__)} is none of {', '.join(_OPERATORS)}"
    is_loss = name == "linear_cross_entropy"
    weight = given["linear_weight"] if is_loss else given["weight"]
    bias = given["linear_bias"] if is_loss else given.get("bias")
    if name == "fused_linear_online_max_sum" and given.get("target") is None:  # the report's form: [in, out]
        weight, name = weight.T, "linear_softmax"
    for what, tensor in (("input", given["input"]), ("weight", weight), ("bias", bias)):
        reason = None if tensor is None and what == "bias" else unusable(tensor)
        if reason is not None:
            return f"its {what} {reason}"
    if weight.dim() != 2:
        return "it is a loss of more dimensions, whose logits torch stores"
    input = given["input"].detach()
    rounded = precision(input) if is_loss else None  # autocast rounds the operands of a loss
    dtype = input.dtype if rounded is None or input.dtype == torch.float64 else rounded
    vocab = given.get("valid_vocab") or weight.shape[0]
    rows = input.shape[:-1].numel()
    return LogitCall(
        name,
        input.reshape(rows, weight.shape[1]).to(dtype),
        weight.detach()[:vocab],
        None if bias is None else bias.detach()[:vocab],
        float(given.get("scale", 1.0)),
        given.get("softcap"),
        _temperature(given.get("temperature"), input.device),
        _target(given),
        bool(given.get("round_logits", False)) and input.dtype in SIXTEEN_BIT,
        given,
    )


def operator_of(function: Any) -> str | None:
    """The operator's name, of this package's functions and modules alone.

    >>> from steadysum import linear_max_sum
    >>> operator_of(linear_max_sum), operator_of(torch.logsumexp)
    ('linear_max_sum', None)
    """
    if isinstance(function, LinearCrossEntropyLoss):
        return "linear_cross_entropy"
    if not str(getattr(function, "__module__", "")).startswith(("steadysum.ops.", "steadysum.compat.torch_npu")):
        return None
    name = str(getattr(function, "__name__", "")).removeprefix("npu_")
    return name if name in _OPERATORS else None


def _temperature(given: float | Tensor | None, device: torch.device) -> Tensor | None:
    if given is None:
        return None
    return torch.as_tensor(given, dtype=torch.float64, device=device).detach().reshape(-1)


def _target(given: dict[str, Any]) -> Tensor | None:
    target = given.get("target")
    if not isinstance(target, Tensor) or target.is_floating_point():
        return None
    ids: Tensor = target.detach().reshape(-1).to(torch.int64)
    start, end = given.get("vocab_start_index"), given.get("vocab_end_index")
    if start is not None and end is not None:
        outside = (ids < start) | (ids >= end)
        return torch.where(outside, -1, ids - start)
    ignored = given.get("ignore_index", IGNORED)
    return ids.masked_fill(ids == (IGNORED if ignored is None else ignored), -1)


def exact_target_logits(call: LogitCall) -> tuple[Tensor, Tensor]:  # float64 [N], [N]
    """The logit of each row's target, and by how much rounding may move it; rows without one: those of token 0."""
    assert call.target is not None
    values, errors = [], []
    every_row = torch.arange(call.input.shape[0], device=call.input.device)
    for rows in torch.split(every_row, _rows_at_once(call)):
        x, ids = call.input[rows].double(), call.target[rows].clamp(min=0)
        w = call.weight[ids].to(call.input.dtype).double()
        products = x * w
        value, size = products.sum(dim=1), products.abs().sum(dim=1)
        stored = value.abs()
        if call.bias is not None:
            b = call.bias[ids].double()
            value, size, stored = value + b, size + b.abs(), (value + b).abs() + b.abs()
        exact = Exact(value[:, None], size[:, None], stored[:, None])
        value, error = _after_product(call, exact, rows, _largest(x, w))
        values.append(value[:, 0])
        errors.append(error[:, 0])
    return torch.cat(values or [every_row.double()]), torch.cat(errors or [every_row.double()])


def largest_logits(call: LogitCall) -> Tensor:  # float64 [N]
    """Per row what no sum on the way to a logit is larger than: |x| |w| by norms, and the largest bias."""
    at_once = _rows_at_once(call)
    norms = torch.cat([part.double().norm(dim=1) for part in torch.split(call.input, at_once)])
    widest = max(float(part.double().norm(dim=1).max()) for part in torch.split(call.weight, at_once))
    most = norms * widest
    if call.bias is not None and call.bias.numel():
        most = most + float(call.bias.double().abs().nan_to_num(posinf=0.0).max())
    return most * max(1.0, abs(call.scale))


def _rows_at_once(call: LogitCall) -> int:
    at_once = _AT_ONCE_CPU if call.input.device.type == "cpu" else _AT_ONCE
    return max(1, at_once // max(call.weight.shape[1], 1))


def _after_product(
    call: LogitCall,
    exact: Exact,  # [k, v]
    rows: Tensor,  # [k]
    largest: float,
) -> tuple[Tensor, Tensor]:
    """Scale, softcap and temperature: each rounds once or twice; softcap never makes an error larger."""
    unit = call.units.sum
    value = exact.value
    error = allowed_error(exact, call.weight.shape[1], call.units, largest)
    if call.scale != 1.0:
        value = value * call.scale
        error = error * abs(call.scale) + value.abs() * (2 * unit)
    if call.softcap is not None:
        value = call.softcap * torch.tanh(value / call.softcap)
        error = error + value.abs() * (_TANH_UNITS * unit)
    if call.temperature is not None:
        temperature = call.temperature.to(value.device)
        each = temperature if temperature.numel() == 1 else temperature[rows.to(value.device)]
        value = value / each[:, None]
        error = error / each[:, None] + value.abs() * (2 * unit)
    if call.round_logits:
        error = error + value.abs() * torch.finfo(call.input.dtype).eps
    return value, error.nan_to_num(nan=0.0, posinf=0.0)


def _largest(x: Tensor, w: Tensor) -> float:
    return sum(float(each.abs().nan_to_num(posinf=0.0).max()) if each.numel() else 0.0 for each in (x, w))
