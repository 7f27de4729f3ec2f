"""Kernel `native`: hands checked operands to the C++ extension, on the CPU, for fp32, bf16 and fp16.

Not here: the arithmetic (native/), or how the extension is found (_extension.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Final

import torch
from torch import Tensor

from steadysum import _extension
from steadysum.kernels.chunks import row_chunks
from steadysum.kernels.gradients import Gradients, PullBack, Wanted
from steadysum.kernels.problem import SIXTEEN_BIT, Operands, Problem, Statistics
from steadysum.kernels.promise import Promise

name: Final = "native"
promises: Final = frozenset(Promise)


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
    native = extension()
    results = [empty_results(call) for call in calls]
    work = [
        call_of(native, call, result, None)
        for call, result in zip(calls, results, strict=True)
        if call.input.shape[0] > 0
    ]
    if work:
        native.run(work, torch.get_num_threads())
    return results


def logits(call: Operands, out: Tensor) -> Statistics:
    """Write the logits [N, V] and return their statistics."""
    native = extension()
    result = empty_results(call)
    if call.input.shape[0] > 0:
        native.run([call_of(native, call, result, out)], torch.get_num_threads())
    return result


def softmax(call: Operands, out: Tensor) -> None:
    """Write the softmax [N, V], using `out` for the logits."""
    softmax_of(logits(call, out), out)


def softmax_of(found: Statistics, out: Tensor) -> None:
    """Turn logits [N, V] into the softmax, in their place."""
    if out.shape[0] > 0:
        total = found.sum_exp.masked_fill(found.max == torch.inf, torch.nan)  # as in torch: a row with +inf is NaN
        extension().softmax_(out, found.max, total, torch.get_num_threads())


def chunk_statistics(call: Operands) -> Statistics:
    """The statistics with every sum that the call asks for, chunk of rows by chunk of rows."""
    return kept_statistics(call, keep_logits)


def kept_statistics(call: Operands, keep: Keep) -> Statistics:
    """chunk_statistics, with the logits of each chunk kept by `keep`."""
    native = extension()
    work = native.Gradients()
    whole = empty_results(call)
    for start, stop in row_chunks(call, stored=True):
        chunk = call.rows(start, stop)
        found = whole.rows(start, stop)
        native_call = call_of(native, chunk, found, None)
        keep(work, native_call, chunk)
        _sum(work, native_call, chunk, found)
    return whole


def gradients(call: Operands, pull_back: PullBack, wanted: Wanted, known: Statistics | None = None) -> Gradients:
    """The gradients of input, weight and bias, with published bits; see kernels.gradients.

    With `known` statistics the logits are computed once more, segment by segment; without, those of a chunk of rows
    are kept until its statistics are found.
    """
    return kept_gradients(call, pull_back, wanted, known, keep_logits)


def kept_gradients(
    call: Operands, pull_back: PullBack, wanted: Wanted, known: Statistics | None, keep: Keep
) -> Gradients:
    """`gradients`, with the logits of each chunk kept by `keep`."""
    native = extension()
    work = native.Gradients()
    hidden, vocab = call.weight.shape[1], call.weight.shape[0]
    every_row = call.kept is None
    input = weight = bias = rows_gradient = None
    if wanted.input:
        input = _empty(*call.input.shape) if every_row else _empty(*call.input.shape).zero_()
    if wanted.weight:
        weight = _empty(vocab, hidden)
    if wanted.bias:
        bias = _empty(vocab)
    for start, stop in row_chunks(call, stored=known is None):
        chunk = call.rows(start, stop)
        found = empty_results(chunk) if known is None else known.rows(start, stop)
        native_call = call_of(native, chunk, found if known is None else Statistics(found.max, found.sum_exp), None)
        if known is None:
            keep(work, native_call, chunk)
            _sum(work, native_call, chunk, found)
        terms = pull_back(found, start, stop)
        if terms.slope is not None and terms.exp is None:
            terms = terms._replace(exp=torch.zeros_like(terms.slope))
        if input is not None:
            rows_gradient = input[start:stop] if every_row else _empty(stop - start, hidden)
        work.gradients(
            native_call,
            kept=known is None,
            column_weight=chunk.column_weight,
            dense=_readable(chunk.dense),
            exp=_column(terms.exp),
            slope=_column(terms.slope),
            center=_column(terms.center),
            column=_column(terms.column),
            dense_term=_column(terms.dense),
            tie=_column(terms.tie),
            target=_column(terms.target),
            keep_above=_column(terms.keep_above),
            input_gradient=rows_gradient,
            weight_gradient=weight,
            bias_gradient=bias,
            first=start == 0,
            threads=torch.get_num_threads(),
        )
        if input is not None and call.kept is not None and rows_gradient is not None:
            input[call.kept[start:stop]] = rows_gradient
    written = call.valid_vocab if call.size > 0 else 0
    for of_columns in (weight, bias):
        if of_columns is not None:
            of_columns[written:].zero_()
    return Gradients(input, weight, bias)


# What finds a chunk's statistics and keeps its logits in `work`, from the chunk's call and operands.
Keep = Callable[[Any, Any, Operands], None]


def keep_logits(work: Any, native_call: Any, _chunk: Operands) -> None:
    """Find a chunk's statistics, and keep its logits in `work`."""
    work.keep_logits(native_call, torch.get_num_threads())


def _sum(work: Any, native_call: Any, chunk: Operands, found: Statistics) -> None:
    """The sums over the rows of the logits that `work` keeps."""
    if not chunk.wants_column_sum and chunk.dense is None:
        return
    work.sum(
        native_call,
        column_weight=chunk.column_weight,
        dense=_readable(chunk.dense),
        column_sum=found.column_sum,
        dense_total=found.dense_total,
        dense_sum=found.dense_sum,
        dense_exp=found.dense_exp,
        threads=torch.get_num_threads(),
    )


def _readable(dense: Tensor | None) -> Tensor | None:
    """The dense matrix in a dtype that the extension reads."""
    if dense is None:
        return None
    if dense.dtype in (torch.float32, *SIXTEEN_BIT):
        return _plain(dense)
    narrow = _empty(*dense.shape)
    extension().narrow(_plain(dense).reshape(-1).contiguous(), narrow.view(-1))  # in the published rounding mode
    return narrow


def _column(coefficients: Tensor | None) -> Tensor | None:
    return None if coefficients is None else _plain(coefficients).contiguous()


def logprobs(found: Statistics) -> Tensor:
    """Log-probability of each row's target, with published bits."""
    out = torch.empty_like(found.max)
    extension().logprob(found.target_logit, found.max, found.sum_exp, out)
    return out


def entropy(found: Statistics) -> Tensor:
    """Entropy of each row in nats, with published bits."""
    out = torch.empty_like(found.max)
    extension().entropy(found.sum_exp, found.weighted_sum, out)
    return out


def log(sum_exp: Tensor) -> Tensor:
    """Elementwise natural logarithm, with published bits."""
    out = torch.empty_like(sum_exp)
    extension().log(sum_exp, out)
    return out


def extension() -> ModuleType:
    module = _extension.module
    assert module is not None, "the registry selects only kernels that support the problem"
    return module


def _empty(*shape: int) -> Tensor:
    """Memory for the extension, which writes fp32 on the CPU, whatever torch's defaults are."""
    return torch.empty(shape, dtype=torch.float32, device="cpu")


def empty_results(call: Operands) -> Statistics:
    def column() -> Tensor:
        return _empty(call.size)

    def column_if(wanted: bool) -> Tensor | None:
        return column() if wanted else None

    dense = call.dense is not None
    return Statistics(
        max=column(),
        sum_exp=column(),
        target_logit=column_if(call.target is not None),
        weighted_sum=column_if(call.wants_weighted_sum),
        ties=column_if(call.wants_ties),
        column_sum=column_if(call.wants_column_sum),
        dense_total=column_if(dense),
        dense_sum=column_if(dense),
        dense_exp=column_if(dense),
    )


def call_of(native: ModuleType, call: Operands, result: Statistics, logits: Tensor | None) -> Any:
    return native.Call(
        input=_plain(call.input),
        weight=_plain(call.weight),
        bias=None if call.bias is None else _plain(call.bias),
        scale=call.scale,
        softcap=call.softcap,
        temperature=call.temperature,
        valid_vocab=call.valid_vocab,
        shard=call.shard,
        max=result.max,
        sum_exp=result.sum_exp,
        target=call.target,
        target_logit=result.target_logit,
        weighted_sum=result.weighted_sum,
        ties=result.ties,
        logits=logits,
    )


def _plain(tensor: Tensor) -> Tensor:
    """The tensor as DLPack can carry it: without grad; a lazily negated one (torch.imag of a conjugate) is resolved."""
    return tensor.detach().resolve_neg()
