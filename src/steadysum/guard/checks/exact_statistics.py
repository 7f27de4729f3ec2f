"""Some rows of what this package's operators give, in float64, with the bounds of rounding errors.

The bounds are those of verify="sampled" (kernels/bounds.py). Not here: which rows, and what is made of it
(sampled_rows.py).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

from steadysum.guard.checks.logits import LogitCall
from steadysum.guard.checks.protocol import Made
from steadysum.kernels import bounds
from steadysum.kernels.bounds import Exact, Roundings
from steadysum.kernels.problem import Operands, statistics_dtype
from steadysum.maxsum import MaxSum
from steadysum.ops.cross_entropy import LossStats
from steadysum.ops.online_max_sum import OnlineMaxSum

__all__ = ["Compared", "exact_results"]

FEW: Final = 8  # roundings of a logarithm, a quotient and some differences


class Compared(NamedTuple):
    """One part of a result, of some rows."""

    what: str
    seen: Tensor  # float64 [k] or [k, V]
    exact: Exact  # of the same shape


def exact_results(made: Made, call: LogitCall, rows: list[int]) -> list[Compared] | str:
    """Each part of the output that has rows, beside its exact value; or why there is none.

    Args:
        made, call: the call and its logits.
        rows: some of the call's; none, if the question is only whether there are such parts.
    """
    output = made.output
    if isinstance(output, tuple) and len(output) == 2 and isinstance(output[1], LossStats):
        return _of_max_sum(output[1].max_sum, call, rows)
    if isinstance(output, MaxSum):
        return _of_max_sum(output, call, rows)
    if isinstance(output, OnlineMaxSum):
        return _of_online(output, call, rows)
    if call.operator == "linear_logprobs":
        given = output if isinstance(output, tuple) else (output,)
        return _of_logprobs(given, call, rows)
    if call.operator == "linear_softmax" and isinstance(output, Tensor):
        return _of_softmax(output, call, rows)
    if call.operator == "linear_cross_entropy" and isinstance(output, Tensor):
        if call.arguments.get("reduction") == "none" and call.target is not None and _is_plain(call):
            return _of_losses(output, call, rows)
        return "its loss is added up, or has other parts than the target's"
    return "its output has no rows that are known"


def _of_max_sum(output: MaxSum, call: LogitCall, rows: list[int]) -> list[Compared]:
    if not rows:
        return []
    work = _Work.of(call, rows)
    exact = work.statistics()
    ignored = _ignored(call, rows)
    found = [("max", output.max, exact["max"]), ("sum_exp", output.sum_exp, exact["sum_exp"])]
    return [Compared(name, _some(seen, rows), _free(each, ignored)) for name, seen, each in found]


def _of_online(output: OnlineMaxSum, call: LogitCall, rows: list[int]) -> list[Compared]:
    if not rows:
        return []
    work = _Work.of(call, rows)
    exact = work.statistics()
    target, largest = exact["target_logit"], exact["max"]
    distance = target.value - largest.value
    predicted = Exact(distance, target.bound + largest.bound + FEW * work.unit * (1 + distance.abs()))
    return [
        Compared("logits_max", _some(output.logits_max, rows), largest),
        Compared("sum_exp_logits", _some(output.sum_exp_logits, rows), exact["sum_exp"]),
        Compared(
            "predicted_logits", _some(output.predicted_logits, rows), _free(predicted, _without_target(call, rows))
        ),
    ]


def _of_logprobs(output: tuple[Tensor, ...], call: LogitCall, rows: list[int]) -> list[Compared]:
    if not rows:
        return []
    work = _Work.of(call, rows)
    ignored = _without_target(call, rows)
    found = [Compared("the log-probability", _some(output[0], rows), _free(work.logprobs(), ignored))]
    if len(output) > 1:
        found.append(Compared("the entropy", _some(output[1], rows), _free(work.entropy(), ignored)))
    return found


def _of_losses(output: Tensor, call: LogitCall, rows: list[int]) -> list[Compared]:
    if not rows:
        return []
    logprobs = _Work.of(call, rows).logprobs()
    exact = _free(Exact(-logprobs.value, logprobs.bound), _ignored(call, rows))
    return [Compared("the loss", _some(output, rows), exact)]


def _of_softmax(output: Tensor, call: LogitCall, rows: list[int]) -> list[Compared]:
    if not rows:
        return []
    work = _Work.of(call, rows)
    exact = bounds.softmax(work.logits, work.roundings)
    stored = torch.finfo(output.dtype)
    rounded = exact.bound + stored.eps / 2 * (exact.value + exact.bound) + stored.tiny * stored.eps
    seen = output.detach().reshape(-1, output.shape[-1])[rows].cpu().double()
    return [Compared("the softmax", seen[:, : call.vocab], Exact(exact.value, rounded))]


class _Work(NamedTuple):
    """The chosen rows of a call on the CPU."""

    operands: Operands
    logits: Exact  # [k, V]
    roundings: Roundings

    @classmethod
    def of(cls, call: LogitCall, rows: list[int]) -> _Work:
        """Multiplies the rows."""
        temperature = call.temperature
        if temperature is not None:
            temperature = (temperature if temperature.numel() == 1 else temperature[rows]).cpu()
        operands = Operands(
            input=call.input[rows].cpu(),
            weight=call.weight.to(call.input.dtype).cpu(),
            bias=None if call.bias is None else call.bias.cpu(),
            scale=call.scale,
            softcap=call.softcap,
            temperature=temperature,
            valid_vocab=call.vocab,
            target=None if call.target is None else call.target[rows].clamp(min=0).cpu(),
            wants_weighted_sum=call.operator == "linear_logprobs",
        )
        roundings = Roundings.of(_kernel_of(call), operands)
        return cls(operands, bounds.logits(operands, roundings), roundings)

    @property
    def unit(self) -> float:
        """Of one rounding of a statistic."""
        return torch.finfo(statistics_dtype(self.operands.input.dtype)).eps / 2

    def statistics(self) -> dict[str, Exact]:
        """As verify="sampled" has them."""
        return bounds.statistics(self.operands, self.logits, self.roundings)

    def logprobs(self) -> Exact:
        """Of the targets, whatever max they are measured from."""
        exact = self.statistics()
        target, largest, total = exact["target_logit"], exact["max"], exact["sum_exp"]
        log_sum = total.value.log()
        distance = target.value - largest.value
        size = 1 + distance.abs() + log_sum.abs() + largest.bound
        bound = target.bound + 2 * largest.bound + _relative(total) + FEW * self.unit * size
        return Exact(distance - log_sum, bound)

    def entropy(self) -> Exact:
        """Of the rows: log(sum) - weighted sum / sum."""
        exact = self.statistics()
        total, weighted = exact["sum_exp"], exact["weighted_sum"]
        log_sum, mean = total.value.log(), weighted.value / total.value
        of_mean = (weighted.bound / total.value + mean.abs() * _relative(total)) * (1 + _relative(total))
        bound = 2 * exact["max"].bound + _relative(total) + of_mean + FEW * self.unit * (1 + log_sum.abs() + mean.abs())
        return Exact(log_sum - mean, bound.masked_fill(bound.isnan(), torch.inf))  # 0 * inf: no bound is known


def _relative(total: Exact) -> Tensor:
    """What the error of a sum does to its logarithm."""
    share = total.bound / total.value
    return torch.where(share < 0.5, share / (1 - share), torch.inf)


def _kernel_of(call: LogitCall) -> str:
    """Whose rounding errors are allowed; eager's, which are the largest, where the call doesn't say."""
    if call.round_logits or call.input.device.type == "npu":
        return "ascend"
    asked = call.arguments.get("kernel", "auto")
    return "eager" if asked == "auto" else str(asked)


def _is_plain(call: LogitCall) -> bool:
    given = call.arguments
    return not given["label_smoothing"] and not given["z_loss"] and given["weight"] is None


def _some(column: Tensor, rows: list[int]) -> Tensor:  # float64 [k]
    return column.detach().reshape(-1)[rows].cpu().double()


def _ignored(call: LogitCall, rows: list[int]) -> Tensor:  # [k]
    """Rows of a loss that have no statistics."""
    if call.operator != "linear_cross_entropy":
        return torch.zeros(len(rows), dtype=torch.bool)
    return _without_target(call, rows)


def _without_target(call: LogitCall, rows: list[int]) -> Tensor:  # [k]
    if call.target is None:
        return torch.zeros(len(rows), dtype=torch.bool)
    return call.target[rows].cpu() < 0


def _free(exact: Exact, rows: Tensor) -> Exact:
    """Some rows are bounded by nothing."""
    return Exact(exact.value, exact.bound.masked_fill(rows, torch.inf))
