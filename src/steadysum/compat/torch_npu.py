"""The vendor's fused loss operators under the names of its package: `import steadysum.compat.torch_npu as torch_npu`.

A script written for the chip then runs on any device. Every spelling that releases of the vendor's package have had is
here; docs/torch-npu.md lists them, and each case where the vendor's document and its kernel disagree.
Not here: the operators (ops/online_max_sum.py and its siblings), the settings (stopgaps.py), other parts of torch_npu.
"""

from __future__ import annotations

import math
from typing import Final, NoReturn, overload

import torch
from torch import Tensor

from steadysum.compat.stopgaps import config, npu, set_compile_mode, synchronize
from steadysum.errors import AccuracyError, OperandTypeError, RangeError, ShapeError
from steadysum.kernels.problem import statistics_dtype
from steadysum.ops.arguments import accept_tensor
from steadysum.ops.loss_with_max_sum import fused_cross_entropy_loss_with_max_sum
from steadysum.ops.loss_with_max_sum_backward import fused_linear_cross_entropy_loss_with_max_sum_backward
from steadysum.ops.online_max_sum import OnlineMaxSum
from steadysum.ops.online_max_sum import fused_linear_online_max_sum as npu_fused_linear_online_max_sum
from steadysum.ops.softmax import linear_softmax
from steadysum.ops.vendor_arguments import accept_int
from steadysum.tiling import TILE, segments

__all__ = [
    "config",
    "fused_cross_entropy_loss_with_max_sum",
    "fused_linear_cross_entropy_loss_with_max_sum_backward",
    "fused_linear_cross_entropy_loss_with_max_sum_grad",
    "fused_linear_online_max_sum",
    "npu",
    "npu_fused_cross_entropy_loss_with_max_sum",
    "npu_fused_linear_cross_entropy_loss_with_max_sum_backward",
    "npu_fused_linear_cross_entropy_loss_with_max_sum_grad",
    "npu_fused_linear_online_max_sum",
    "safe_fused_linear",
    "set_compile_mode",
    "synchronize",
]

npu_fused_cross_entropy_loss_with_max_sum = fused_cross_entropy_loss_with_max_sum
fused_linear_cross_entropy_loss_with_max_sum_grad = fused_linear_cross_entropy_loss_with_max_sum_backward
npu_fused_linear_cross_entropy_loss_with_max_sum_grad = fused_linear_cross_entropy_loss_with_max_sum_backward
npu_fused_linear_cross_entropy_loss_with_max_sum_backward = fused_linear_cross_entropy_loss_with_max_sum_backward


@overload
def fused_linear_online_max_sum(input: Tensor, weight: Tensor, *, kernel: str = ..., verify: str = ...) -> Tensor: ...


@overload
def fused_linear_online_max_sum(
    input: Tensor,
    weight: Tensor,
    target: Tensor,
    vocab_start_index: int,
    vocab_end_index: int,
    return_logits: bool = ...,
    *,
    round_logits: bool = ...,
    vocab_size: int | None = ...,
    kernel: str = ...,
    verify: str = ...,
) -> OnlineMaxSum: ...


def fused_linear_online_max_sum(
    input: Tensor,
    weight: Tensor,
    target: Tensor | None = None,
    vocab_start_index: int | None = None,
    vocab_end_index: int | None = None,
    return_logits: bool = False,
    *,
    round_logits: bool = False,
    vocab_size: int | None = None,
    kernel: str = "auto",
    verify: str = "off",
) -> Tensor | OnlineMaxSum:
    """The vendor's operator; or, with two arguments, the softmax of a linear layer as the field report writes it.

    Args:
        input, weight: with a target [BT, H] and [V, H], as in steadysum.ops.fused_linear_online_max_sum. Without one
            [..., in] and [in, out]: the report's weight lies the other way round.
        target, vocab_start_index, vocab_end_index: all three, or none.
        return_logits, round_logits, vocab_size: of the vendor's form alone.
        kernel: "auto" or a kernel's name.
        verify: as in linear_max_sum.

    Returns:
        The vendor's results; or the softmax [..., out], fp32 (fp64 for fp64 operands), which has gradients.

    Raises:
        OperandTypeError: some of target, vocab_start_index and vocab_end_index, or an option of the vendor's form
            without them. Else what the two forms raise.

    >>> fused_linear_online_max_sum(torch.ones(1, 2), torch.zeros(2, 4))
    tensor([[0.2500, 0.2500, 0.2500, 0.2500]])
    """
    if target is not None and vocab_start_index is not None and vocab_end_index is not None:
        return npu_fused_linear_online_max_sum(
            input,
            weight,
            target,
            vocab_start_index,
            vocab_end_index,
            return_logits,
            round_logits=round_logits,
            vocab_size=vocab_size,
            kernel=kernel,
            verify=verify,
        )
    given = {
        "target": target is not None,
        "vocab_start_index": vocab_start_index is not None,
        "vocab_end_index": vocab_end_index is not None,
        "return_logits": return_logits is not False,
        "round_logits": round_logits is not False,
        "vocab_size": vocab_size is not None,
    }
    present = [name for name, is_given in given.items() if is_given]
    if present:
        raise OperandTypeError(
            "arguments of fused_linear_online_max_sum",
            seen=f"input, weight, {', '.join(present)}",
            allowed="input, weight, target, vocab_start_index and vocab_end_index; or x and weight [in, out] alone",
            remedy="Pass all five for the vendor's statistics, or two for the softmax.",
        )
    _check_report_weight(input, weight)
    return linear_softmax(input, weight.T, kernel=kernel, verify=verify)


def _check_report_weight(x: Tensor, weight: Tensor) -> None:
    """The operator's own check would speak of the transposed weight."""
    accept_tensor("x", x)
    accept_tensor("weight", weight)
    if weight.dim() != 2 or x.dim() < 1 or x.shape[-1] != weight.shape[0]:
        raise ShapeError(
            "x and weight of fused_linear_online_max_sum(x, weight)",
            seen=f"x {list(x.shape)}, weight {list(weight.shape)}",
            allowed="x [..., in], weight [in, out]",
            remedy="A weight laid out [out, in] is passed as weight.T. For statistics pass a target, too.",
        )


# ---- safe_fused_linear -------------------------------------------------------------------------------------------


def safe_fused_linear(
    x: Tensor,  # [..., in]
    weight: Tensor,  # [in, out]
    max_retry: int = 3,
) -> Tensor:  # [..., out]
    """The softmax of a linear layer, checked; computed again if a check fails, at most max_retry times.

    After each call the device is synchronised. Every row must be a softmax: no probability below 0 or above 1, and the
    sum 1, within the rounding errors of its own computation; a row of NaN only where its logits have none (one of them
    NaN or +inf, or all -inf).

    Args:
        x: [..., in]. weight: [in, out].
        max_retry: further calls after a first that fails, >= 0.

    Returns:
        As fused_linear_online_max_sum(x, weight).

    Raises:
        AccuracyError: every call failed; says how many rows, and what the first of them looks like.
        OperandTypeError, RangeError: max_retry. Else what fused_linear_online_max_sum raises.

    Source: field report, R12. What it checks catches a lost or stale partial of some tile; not a wrong logit.

    >>> safe_fused_linear(torch.ones(1, 2), torch.zeros(2, 4))
    tensor([[0.2500, 0.2500, 0.2500, 0.2500]])
    """
    max_retry = accept_int("max_retry", max_retry, remedy="Pass e.g. 3.")
    if max_retry < 0:
        raise RangeError("max_retry", str(max_retry), ">= 0", "Pass 0 for one call and no other.")
    fault = ""
    for _ in range(1 + max_retry):
        result = fused_linear_online_max_sum(x, weight)
        _finish(result.device)
        found = _fault(x, weight, result)
        if found is None:
            return result
        fault = found
    raise AccuracyError(
        "softmax of fused_linear_online_max_sum",
        seen=f"{fault}, after {1 + max_retry} calls",
        allowed="rows of probabilities which sum to 1",
        remedy="Save the operands; `steadysum check` says how often the operator deviates on this machine.",
    )


def _finish(device: torch.device) -> None:
    if device.type != "cpu":
        torch.get_device_module(device).synchronize(device)


def _fault(x: Tensor, weight: Tensor, result: Tensor) -> str | None:
    """What is wrong with a softmax [..., out], or None."""
    p = result.detach().reshape(-1, result.shape[-1])
    unit = torch.finfo(p.dtype).eps / 2
    allowed = rounding_bound(p.shape[1]) * unit
    total = p.sum(dim=1, dtype=torch.float64)
    is_nan = p.isnan()
    empty = is_nan.all(dim=1)
    wrong = {
        "a probability below 0": (p < 0).any(dim=1),
        "a probability above 1": (p > 1 + allowed).any(dim=1),
        "a NaN beside numbers": is_nan.any(dim=1) & ~empty,
        f"a sum that differs from 1 by more than {allowed:.2g}": ~empty & ((total - 1).abs() > allowed),
        "NaN, where its logits have a softmax": empty & _have_softmax(x, weight, empty),
    }
    for what, rows in wrong.items():
        count = int(rows.sum())
        if count:
            first = int(rows.nonzero()[0])
            return f"{count} of {p.shape[0]} rows with {what} (row {first}: sum {float(total[first]):.9g})"
    return None


def rounding_bound(vocab: int) -> float:
    """By how many units of rounding (2^-24 in fp32) the sum of a softmax's row may differ from 1, to first order.

    With d = z - max, a probability is exp(d) / s: one unit for the quotient, 4 for exp (at most 2 ulp), and 2 |d| for
    the rounding of d, and of d log2(e) where exp is made of exp2, which exp magnifies. Averaged over the row, the sum
    of p |d| is the entropy - log s, at most log V. The sum s has the same errors of its terms, and once more for each
    time that a partial is measured from another maximum; and one unit for each addition or product on the longest way
    from a term to the sum: a tile's additions in any order, then two per merge, of tiles and of segments.

    >>> rounding_bound(512) * 2**-24 < 1e-4
    True
    """
    cut = segments(vocab)
    tiles = math.ceil(max(len(segment) for segment in cut) / TILE)
    merges = tiles - 1 + math.ceil(math.log2(len(cut)))
    per_exp = 4 + 2 * math.log(vocab)
    return 1 + per_exp + (min(vocab, TILE) + 2 * merges) + per_exp * (1 + merges)


CHECKED_ROWS: Final = 256  # at a time, so that rows of NaN don't need all logits at once


def _have_softmax(x: Tensor, weight: Tensor, rows: Tensor) -> Tensor:
    """Of the rows marked, those whose logits have a softmax: none of them NaN or +inf, not all -inf."""
    x, weight = x.detach().reshape(math.prod(x.shape[:-1]), x.shape[-1]), weight.detach()  # in may be 0
    most = torch.finfo(statistics_dtype(x.dtype)).max
    found = torch.zeros_like(rows)
    marked = rows.nonzero()[:, 0]
    for start in range(0, len(marked), CHECKED_ROWS):
        part = marked[start : start + CHECKED_ROWS]
        wide = x[part].double(), weight.double()
        z = wide[0] @ wide[1]
        largest = wide[0].abs() @ wide[1].abs()  # no sum on the way to a logit is larger
        may_overflow = (largest >= most) & largest.isfinite()
        none = (z.isnan() | (z == torch.inf) | may_overflow).any(dim=1) | (z == -torch.inf).all(dim=1)
        found[part] = ~none
    return found


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(f"steadysum.compat.torch_npu has no {name!r}; it offers {', '.join(__all__)}")
