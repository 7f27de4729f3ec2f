"""Kernel `native`: hands checked operands to the C++ extension, on the CPU, for fp32, bf16 and fp16.

Not here: the arithmetic (native/), or how the extension is found (_extension.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, Final

import torch
from torch import Tensor

from steadysum import _extension
from steadysum.kernels.problem import SIXTEEN_BIT, Operands, Problem, Statistics
from steadysum.kernels.promise import Promise

name: Final = "native"
# Not shards: a call on a shard cuts a grid of its own.
promises: Final = frozenset(Promise) - {Promise.SHARDS}


def missing() -> str | None:
    """Why the extension can't be used on this machine at all."""
    return _extension.reason if _extension.module is None else None


def supports(problem: Problem) -> str | None:
    """CPU problems in fp32, bf16 or fp16."""
    if _extension.module is None:
        return missing()
    if problem.device.type != "cpu":
        return f"native runs on the CPU, not on {problem.device}"
    if problem.dtype not in (torch.float32, *SIXTEEN_BIT):
        return f"native computes float32, bfloat16 and float16, not {problem.dtype}"
    return None


def statistics(calls: Sequence[Operands]) -> list[Statistics]:
    """max, sum_exp, and what else each call asks for: one parallel region over the union of the calls' tiles."""
    native = _module()
    results = [_results(call) for call in calls]
    work = [
        _call(native, call, result, None)
        for call, result in zip(calls, results, strict=True)
        if call.input.shape[0] > 0
    ]
    if work:
        native.run(work, torch.get_num_threads())
    return results


def logits(call: Operands, out: Tensor) -> Statistics:
    """Write the logits [N, V] and return their statistics."""
    native = _module()
    result = _results(call)
    if call.input.shape[0] > 0:
        native.run([_call(native, call, result, out)], torch.get_num_threads())
    return result


def softmax(call: Operands, out: Tensor) -> None:
    """Write the softmax [N, V], using `out` for the logits."""
    found = logits(call, out)
    if call.input.shape[0] > 0:
        total = found.sum_exp.masked_fill(found.max == torch.inf, torch.nan)  # as in torch: a row with +inf is NaN
        _module().softmax_(out, found.max, total, torch.get_num_threads())


def logprobs(found: Statistics) -> Tensor:
    """Log-probability of each row's target, with published bits."""
    out = torch.empty_like(found.max)
    _module().logprob(found.target_logit, found.max, found.sum_exp, out)
    return out


def entropy(found: Statistics) -> Tensor:
    """Entropy of each row in nats, with published bits."""
    out = torch.empty_like(found.max)
    _module().entropy(found.sum_exp, found.weighted_sum, out)
    return out


def log(sum_exp: Tensor) -> Tensor:
    """Elementwise natural logarithm, with published bits."""
    out = torch.empty_like(sum_exp)
    _module().log(sum_exp, out)
    return out


def _module() -> ModuleType:
    module = _extension.module
    assert module is not None, "the registry selects only kernels that support the problem"
    return module


def _results(call: Operands) -> Statistics:
    def column() -> Tensor:
        return torch.empty(call.input.shape[0], dtype=torch.float32)

    return Statistics(
        column(),
        column(),
        None if call.target is None else column(),
        column() if call.wants_weighted_sum else None,
    )


def _call(native: ModuleType, call: Operands, result: Statistics, logits: Tensor | None) -> Any:
    return native.Call(
        input=_plain(call.input),
        weight=_plain(call.weight),
        bias=None if call.bias is None else _plain(call.bias),
        scale=call.scale,
        softcap=call.softcap,
        temperature=call.temperature,
        valid_vocab=call.valid_vocab,
        max=result.max,
        sum_exp=result.sum_exp,
        target=call.target,
        target_logit=result.target_logit,
        weighted_sum=result.weighted_sum,
        logits=logits,
    )


def _plain(tensor: Tensor) -> Tensor:
    """The tensor as DLPack can carry it: without grad; a lazily negated one (torch.imag of a conjugate) is resolved."""
    return tensor.detach().resolve_neg()
