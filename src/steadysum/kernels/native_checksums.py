"""Kernel `native` with checksums of its tiles, compared as they are computed: statistics and logits, with its own bits.

A tile that is in doubt is computed again, and only a result that is wrong each time raises. Not here: the checks
themselves (native/checksum.hpp, native/checked_tile.hpp), the weights' checksums (weight_checksums.py), or what has no
checksums (native_checked.py).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Final

import torch
from torch import Tensor

from steadysum import notices
from steadysum.errors import AccuracyError
from steadysum.kernels import native, weight_checksums
from steadysum.kernels.gradients import Gradients, PullBack, Wanted
from steadysum.kernels.native import entropy, log, logprobs, missing, name, promises, supports
from steadysum.kernels.problem import Operands, Statistics
from steadysum.kernels.verification import CHECKSUM

__all__ = [
    "chunk_statistics",
    "entropy",
    "gradients",
    "log",
    "logits",
    "logprobs",
    "missing",
    "name",
    "promises",
    "run",
    "softmax",
    "statistics",
    "supports",
]

ATTEMPTS: Final = 3  # with the checksums of a weight that changes meanwhile
LISTED: Final = 16  # places that an error names
WORDS: Final = 2**32

# Of calls: what an earlier call left in memory doesn't pass for a result of this one. Its start differs by process.
_epochs = itertools.count(int.from_bytes(os.urandom(4), "little"))


def statistics(calls: Sequence[Operands]) -> list[Statistics]:
    """max, sum_exp, and what else each call asks for, verified.

    Raises:
        AccuracyError: a result is wrong each time that it is computed.
    """
    results = [native.empty_results(call) for call in calls]
    run(calls, results, [None] * len(calls))
    return results


def logits(call: Operands, out: Tensor) -> Statistics:
    """Write the logits [N, V] and return their statistics, verified."""
    result = native.empty_results(call)
    run([call], [result], [out])
    return result


def softmax(call: Operands, out: Tensor) -> None:
    """Write the softmax [N, V]; the logits and statistics that it is made of are verified."""
    native.softmax_of(logits(call, out), out)


def chunk_statistics(call: Operands) -> Statistics:
    """The statistics, verified, with every sum that the call asks for, which aren't."""
    return native.kept_statistics(call, _keep_logits)


def gradients(call: Operands, pull_back: PullBack, wanted: Wanted, known: Statistics | None = None) -> Gradients:
    """The gradients of input, weight and bias; only the statistics that they are made of are verified."""
    return native.kept_gradients(call, pull_back, wanted, known, _keep_logits)


def _keep_logits(work: Any, native_call: Any, chunk: Operands) -> None:
    if chunk.size == 0:
        return

    def keep(module: ModuleType, epoch: int) -> dict[str, Any]:
        checksums = weight_checksums.take(module, chunk, native_call)
        result: dict[str, Any] = work.keep_verified_logits(
            native_call, checksums, epoch=epoch, threads=torch.get_num_threads()
        )
        return result

    _settled([chunk], keep)


def run(
    calls: Sequence[Operands],
    results: Sequence[Statistics],
    logits: Sequence[Tensor | None],
    ratios: Sequence[Tensor | None] | None = None,
) -> dict[str, Any]:
    """Compute the calls into `results`, verified.

    Args:
        calls, results, logits: as native.statistics and native.logits have them.
        ratios: [tiles, N] for each call: where to put the square of each checksum's residual over that of its
            threshold, the larger of a tile's two. For those who look at the thresholds.

    Returns:
        What the extension found: "checks", "healed" by stage, "cleared", "stale", "bad", "bad_count"; empty without
        rows.
    """
    native_module = native.extension()
    each = zip(calls, results, logits, ratios or [None] * len(calls), strict=True)
    work = [
        (call, native.call_of(native_module, call, result, out), ratio)
        for call, result, out, ratio in each
        if call.input.shape[0] > 0
    ]
    if not work:
        return {}

    def verified(module: ModuleType, epoch: int) -> dict[str, Any]:
        found: dict[str, Any] = module.run_verified(
            [native_call for _, native_call, _ in work],
            [weight_checksums.take(module, call, native_call) for call, native_call, _ in work],
            [ratio for _, _, ratio in work],
            epoch=epoch,
            threads=torch.get_num_threads(),
        )
        return found

    return _settled([call for call, _, _ in work], verified)


def _settled(calls: Sequence[Operands], verified: Callable[[ModuleType, int], dict[str, Any]]) -> dict[str, Any]:
    """What a verified run found, begun again where a weight wasn't what its checksums were taken of."""
    module = native.extension()
    for _ in range(ATTEMPTS):
        found = verified(module, next(_epochs) % WORDS)
        if not found["stale"]:
            break
        for call in calls:
            weight_checksums.forget(module, call)
    else:
        raise AccuracyError(
            "weight of a call that is verified by checksums",
            seen=f"other elements at each of {ATTEMPTS} attempts",
            allowed="one that stays as it is during the call",
            remedy="Wait for whoever writes to it; with none, its memory is failing.",
            attribution="persistent",
        )
    _post(found)
    if found["bad"]:
        raise _error(found, calls)
    return found


def _post(found: dict[str, Any]) -> None:
    if not notices.heard():
        return
    healed = {stage: count for stage, count in found["healed"].items() if count}
    outcome = "failed" if healed or found["bad"] else "passed"
    notices.post("check", 0.0, operator=name, check=CHECKSUM, outcome=outcome)  # its time is the kernel's own
    for stage, count in healed.items():
        notices.post("healed_tile", float(count), operator=f"{name} {stage}")
        notices.post("anomaly", operator=name, check=CHECKSUM, attribution="transient")
    if found["bad"]:
        notices.post("anomaly", operator=name, check=CHECKSUM, attribution="persistent")


_WHAT: Final = {
    "input": "packed input",
    "product": "logits",
    "statistics": "maximum or sum",
    "partial": "stored partials",
}


def _error(found: dict[str, Any], calls: Sequence[Operands]) -> AccuracyError:
    stage, index, _, tile = found["bad"][0]
    rows = [_number(calls[index], row) for where, which, row, _ in found["bad"] if (where, which) == (stage, index)]
    listed = ", ".join(map(str, sorted(set(rows))[:LISTED]))
    more = found["bad_count"] - min(len(set(rows)), LISTED)
    places = f"row {listed}" if len(set(rows)) == 1 else f"rows {listed}"
    if more > 0:
        places += f" and {more} places more"
    return AccuracyError(
        f"{_WHAT[stage]} of {places} in tile {tile}, by kernel {name!r}",
        seen="values that their checksums and float64 say are wrong, and again when computed twice more",
        allowed="differences that rounding explains",
        remedy="The same on another core or machine tells damaged hardware from a fault of the software; "
        "`steadysum check` says how often the operator deviates on this machine.",
        attribution="persistent",
    )


def _number(call: Operands, row: int) -> int:
    if call.numbers is not None:
        return int(call.numbers[row])
    return row if call.kept is None else int(call.kept[row])
