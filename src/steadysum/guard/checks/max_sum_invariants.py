"""MaxSumInvariants: what holds of every output of this package's statistics, and costs next to nothing to look at.

Not here: whether the maximum is that of the row's logits: that takes the logits (sampled_rows.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from torch import Tensor

from steadysum.guard.checks.logits import LogitCall, exact_target_logits, largest_logits, logit_call
from steadysum.guard.checks.operands import excused_rows
from steadysum.guard.checks.protocol import Finding, Made
from steadysum.kernels.autocast import without_autocast
from steadysum.kernels.softmax_bound import rounding_bound
from steadysum.kernels.target_mask import mask_bytes, unpack_mask
from steadysum.maxsum import MaxSum
from steadysum.ops.cross_entropy import LossStats
from steadysum.ops.online_max_sum import OnlineMaxSum

__all__ = ["MaxSumInvariants"]

MOST_ROWS: Final = 16
EXACT_COUNT: Final = 1 << 24  # sums of so many numbers of at most 1 are at most their count, in fp32 too


@dataclass(frozen=True)
class MaxSumInvariants:
    """Statistics that could be those of a row of logits.

    Of MaxSum, OnlineMaxSum, and a loss with LossStats: 1 <= sum_exp <= V (adding numbers of at most 1 never rounds
    above their count); a row without a finite max is one of the three that there are: (-inf, 0), (+inf, a count), NaN;
    and its operands hold NaN or infinities, or may overflow, or it is ignored. Where the call has targets:
    predicted <= 0; max + predicted is the target's logit, which is computed again in float64, one per row; the masks
    are what targets and range say, bit for bit (bits beyond the last row are free). Losses of rows are at least 0 and
    log(sum_exp) - predicted; log-probabilities are at most 0, and entropies between 0 and log V. Of a loss alone: it is
    finite and, without smoothing and class weights, at least 0.

    Source: field report; OPERATOR.md, "cheap invariants".

    >>> from steadysum import linear_max_sum
    >>> x, w = torch.ones(2, 3), torch.zeros(4, 3)
    >>> broken = MaxSum(torch.zeros(2), torch.tensor([4.0, 5.0]))
    >>> MaxSumInvariants().judge(Made(linear_max_sum, (x, w), {}, broken)).summary
    '1 of 2 rows (first: 1) have a sum_exp outside of 1 to 4'
    """

    @property
    def name(self) -> str:
        """max_sum_invariants."""
        return "max_sum_invariants"

    def fits(self, made: Made) -> str | None:
        """One of the operators with statistics, log-probabilities or a loss as its output."""
        call = logit_call(made)
        if isinstance(call, str):
            return call
        found = _parts(made, call)
        return found if isinstance(found, str) else None

    def judge(self, made: Made) -> Finding:
        """The first invariant that doesn't hold, and the rows in which it doesn't."""
        call = logit_call(made)
        if isinstance(call, str):
            return Finding(self.name, passed=False, summary=f"the check doesn't fit: {call}")
        with torch.no_grad(), without_autocast(call.input.device.type):
            parts = _parts(made, call)
            if isinstance(parts, str):
                return Finding(self.name, passed=False, summary=f"the check doesn't fit: {parts}")
            for what, rows in _broken(made, call, parts):
                bad = rows.nonzero().flatten().tolist()
                if bad:
                    return Finding(
                        self.name,
                        passed=False,
                        summary=f"{len(bad)} of {rows.numel()} rows (first: {bad[0]}) have {what}",
                        rows=tuple(bad[:MOST_ROWS]),
                        measured=float(len(bad)),
                        allowed=0.0,
                    )
        return Finding(self.name, passed=True, measured=0.0, allowed=0.0)


class _Parts(NamedTuple):
    """What an output holds, rows flattened; None: it doesn't."""

    max: Tensor | None = None  # [N]
    sum_exp: Tensor | None = None
    online: OnlineMaxSum | None = None
    token_loss: Tensor | None = None
    loss: Tensor | None = None  # [N] or [1]
    correct: Tensor | None = None
    logprobs: Tensor | None = None
    entropy: Tensor | None = None


def _parts(made: Made, call: LogitCall) -> _Parts | str:
    output = made.output
    if isinstance(output, MaxSum):
        return _Parts(_flat(output.max), _flat(output.sum_exp))
    if isinstance(output, OnlineMaxSum):
        return _Parts(_flat(output.logits_max), _flat(output.sum_exp_logits), online=output)
    if isinstance(output, tuple) and len(output) == 2 and isinstance(output[1], LossStats):
        stats = output[1]
        largest, sum_exp, tokens = (_flat(each) for each in (*stats.max_sum, stats.token_loss))
        return _Parts(largest, sum_exp, token_loss=tokens, correct=stats.correct.detach())
    if call.operator == "linear_logprobs":
        if isinstance(output, tuple):
            return _Parts(logprobs=_flat(output[0]), entropy=_flat(output[1]))
        return _Parts(logprobs=_flat(output))
    if call.operator == "linear_cross_entropy" and isinstance(output, Tensor):
        return _Parts(loss=_flat(output))
    return "its output holds no statistics"


def _flat(column: Tensor) -> Tensor:
    return column.detach().reshape(-1)


def _broken(made: Made, call: LogitCall, parts: _Parts) -> Iterator[tuple[str, Tensor]]:
    """Each invariant, and the rows in which it doesn't hold."""
    if parts.max is not None and parts.sum_exp is not None:
        yield from _broken_sums(made, call, parts.max, parts.sum_exp)
        if parts.online is not None:
            yield from _broken_targets(call, parts.online, parts.max)
        if parts.token_loss is not None:
            yield from _broken_losses(call, parts.max, parts.sum_exp, parts.token_loss)
    if parts.loss is not None:
        yield from _broken_loss(made, call, parts.loss)
    if parts.correct is not None:
        rows = call.input.shape[0] if call.target is None else int((call.target >= 0).sum())
        outside = (parts.correct < 0) | (parts.correct > rows)
        yield f"a number of correct rows outside of 0 to {rows}", outside.reshape(1)
    if parts.logprobs is not None:
        yield "a log-probability above 0", parts.logprobs > 0
        empty = parts.logprobs.isnan()
        if bool(empty.any()):
            yield "NaN, where their operands hold none", empty & ~_excused(made, call)
    if parts.entropy is not None:
        unit = call.units.sum
        # H = log s - (sum of p (-d)): each is at most log V, and each exponential has its error (rounding_bound).
        slack = rounding_bound(call.vocab) * unit * (1 + 2 * math.log(call.vocab)) + 4 * unit
        most = math.log(call.vocab) + slack
        yield f"an entropy outside of 0 to {most:.6g}", (parts.entropy < -slack) | (parts.entropy > most)


def _broken_sums(made: Made, call: LogitCall, largest: Tensor, sum_exp: Tensor) -> Iterator[tuple[str, Tensor]]:
    most = call.vocab if call.vocab <= EXACT_COUNT else call.vocab * (1 + rounding_bound(call.vocab) * call.units.sum)
    outside = ~((sum_exp >= 1) & (sum_exp <= most))  # NaN is outside
    yield f"a sum_exp outside of 1 to {call.vocab}", outside & largest.isfinite()
    counts = (sum_exp == sum_exp.round()) & ~outside
    wrong = (largest == -torch.inf) & (sum_exp != 0)
    wrong |= (largest == torch.inf) & ~counts
    wrong |= largest.isnan() & ~sum_exp.isnan()
    yield "a sum_exp that doesn't belong to a max that isn't finite", wrong
    odd = ~largest.isfinite()
    if bool(odd.any()):
        yield "a max that isn't finite, where their operands are", odd & ~_excused(made, call)


def _excused(made: Made, call: LogitCall) -> Tensor:  # [N]
    """Rows that may not be finite."""
    rows, device = call.input.shape[0], call.input.device
    if call.target is not None and call.operator == "linear_cross_entropy":
        ignored = call.target < 0
    else:
        ignored = torch.zeros(rows, dtype=torch.bool, device=device)
    excused = excused_rows(made, rows)
    if excused is None:
        return torch.ones_like(ignored)
    return ignored | excused.to(device) | (largest_logits(call) >= call.units.most)


def _broken_targets(call: LogitCall, online: OnlineMaxSum, largest: Tensor) -> Iterator[tuple[str, Tensor]]:
    assert call.target is not None
    rows = call.target.shape[0]
    masked = call.target < 0
    yield "a target_mask that their targets don't have", unpack_mask(online.target_mask, rows) != masked
    too_long = torch.tensor([online.target_mask.shape[0] != mask_bytes(rows)])
    yield "a target_mask of another length", too_long
    wanted = call.target.clamp(min=0)
    yield "a masked_target that isn't target - vocab_start_index", online.masked_target.to(torch.int64) != wanted
    predicted = online.predicted_logits
    yield "a predicted_logits above 0", predicted > 0
    yield "a predicted_logits that isn't 0, though masked", masked & (predicted != 0)
    exact, error = exact_target_logits(call)
    finite = ~masked & largest.isfinite() & exact.isfinite()
    seen = largest.double() + predicted.double()
    allowed = error + (largest.double().abs() + predicted.double().abs()) * (2 * call.units.sum)
    yield "a max + predicted_logits that isn't their target's logit", finite & ~((seen - exact).abs() <= allowed)
    if hasattr(online, "target_logits"):
        far = ~((online.target_logits.double() - exact).abs() <= error)
        yield "a target_logits that isn't their target's logit", finite & far
        yield "a target_logits that isn't 0, though masked", masked & (online.target_logits != 0)


def _broken_loss(made: Made, call: LogitCall, loss: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Of a loss without statistics: per row, or one of all rows."""
    odd = ~loss.isfinite()
    if bool(odd.any()):
        excused = _excused(made, call)
        if loss.numel() != excused.numel():  # NaN of a row that counts, or of a mean over none
            counts = torch.ones_like(excused) if call.target is None else call.target >= 0
            excused = ((excused & counts).any() | ~counts.any()).reshape(1)
        yield "a loss that isn't finite, where their operands are", odd & ~excused
    if call.target is not None and _is_plain(call):
        yield "a loss below 0", loss < 0


def _is_plain(call: LogitCall) -> bool:
    """Whether a loss has the target's part alone."""
    given = call.arguments
    return not given["label_smoothing"] and not given["z_loss"] and given["weight"] is None


def _broken_losses(call: LogitCall, largest: Tensor, sum_exp: Tensor, tokens: Tensor) -> Iterator[tuple[str, Tensor]]:
    if call.target is None or not _is_plain(call):
        return  # these losses have other parts than the target's
    ignored = call.target < 0
    finite = ~ignored & largest.isfinite()
    yield "a loss that isn't 0, though ignored", ignored & (tokens != 0)
    yield "a loss below 0", finite & (tokens < 0)
    exact, error = exact_target_logits(call)
    finite &= exact.isfinite()
    log_sum = sum_exp.double().log()
    expected = log_sum - (exact - largest.double())
    allowed = error + (log_sum + (exact - largest.double()).abs() + largest.double().abs()) * (4 * call.units.sum)
    yield (
        "a loss that isn't log(sum_exp) + max - their target's logit",
        finite & ~((tokens - expected).abs() <= allowed),
    )
