"""Kernel `ascend`: the vendor's own fused operator, where torch_npu, an NPU and the operator's limits allow it.

It has not been run on hardware: we have none. So it is thin, and what it hands over is tested with a stand-in for
torch_npu whose operators are written from the vendor's documentation.

It promises the same bits run to run, since the vendor documents the operator as deterministic (for a given number of
cores). We don't vouch for that: it is what practitioners saw broken, and it is promised here so that `steadysum check`
counts such a deviation against the kernel, instead of listing it as something that nobody promised. Rows don't have
the same bits in every batch: the vendor's tiles are shared out over cores by the size of the batch.

What the vendor computes is taken as it is. On chips of the A2 and A3 series logits are rounded to the 16-bit dtype
before max and exp, and gradients come back in 16 bits on all of them. target_logit is predicted + max, rounded twice.

Not here: the vendor's operators for other devices (compat/torch_npu.py). torch_npu is imported where it is first used.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Final

import torch
from torch import Tensor

from steadysum.kernels import eager
from steadysum.kernels.derived import entropy as entropy
from steadysum.kernels.derived import log as log
from steadysum.kernels.derived import logprobs as logprobs

# The vendor's operator returns none of these, or in 16 bits alone: `supports` refuses calls that ask for them.
from steadysum.kernels.eager import chunk_statistics as chunk_statistics
from steadysum.kernels.eager import logits as logits
from steadysum.kernels.eager import softmax as softmax
from steadysum.kernels.gradients import Gradients, LogitGradient, PullBack, Wanted
from steadysum.kernels.problem import SIXTEEN_BIT, Operands, Problem, Statistics
from steadysum.kernels.promise import Promise
from steadysum.kernels.target_mask import pack_mask

name: Final = "ascend"
promises: Final = frozenset({Promise.RUN_TO_RUN})

DEVICE: Final = "npu"  # torch's type of the device
PACKAGE: Final = "torch_npu"

# One operator each, under the names that it has had in the releases of torch_npu.
FORWARD: Final = ("npu_fused_linear_online_max_sum", "fused_linear_online_max_sum")
BACKWARD: Final = (
    "npu_fused_linear_cross_entropy_loss_with_max_sum_backward",
    "npu_fused_linear_cross_entropy_loss_with_max_sum_grad",
    "fused_linear_cross_entropy_loss_with_max_sum_grad",
)

# The limits that the vendor documents.
MOST_HIDDEN: Final = 65534
LEAST_VOCAB_OF_GRADIENTS: Final = 128
# Targets are compared with columns in fp32, which has all integers up to here.
MOST_VOCAB_OF_TARGETS: Final = 2**24

_WANTED: Final = frozenset({"max_sum", "target_logit", "gradients"})


def missing() -> str | None:
    """Why the vendor's operator can't be used on this machine at all."""
    found = devices()
    return found if isinstance(found, str) else _no_operator(FORWARD)


def supports(problem: Problem) -> str | None:
    """16-bit problems on an NPU that ask for max, sum_exp, the target's logit, or the gradients of a plain loss."""
    if problem.device.type != DEVICE:
        return f"ascend runs on NPUs, not on {problem.device}"
    return missing() or _beyond_the_operator(problem)


def statistics(calls: Sequence[Operands]) -> list[Statistics]:
    """max, sum_exp and, with a target, its logit."""
    return [_statistics(call) for call in calls]


def gradients(call: Operands, pull_back: PullBack, wanted: Wanted, known: Statistics | None = None) -> Gradients:
    """The wanted gradients: by the vendor's operator where they are those of a cross-entropy, else by `eager`.

    Which it is shows in the coefficients that `pull_back` gives for all rows at once: the vendor's backward knows
    grad_i (p_ij - [j = t_i]) alone, without the second term in rows whose target is another card's. Anything else, such
    as a z-loss, a gradient filter or a row with an infinite max, is computed by `eager` on the same device, from the
    vendor's statistics.
    """
    if call.size == 0:
        return eager.gradients(call, pull_back, wanted, known)
    rows = call.rows(0, call.size)
    found = _statistics(rows) if known is None else known
    terms = pull_back(found, 0, call.size)
    elsewhere = None if terms.target is None else terms.target == 0
    if elsewhere is None or not _is_cross_entropy(terms, found, elsewhere):

        def again(_: Statistics, start: int, stop: int) -> LogitGradient:  # pull_back may count what it is shown
            return LogitGradient(*(None if term is None else term[start:stop] for term in terms))

        return eager.gradients(call, again, wanted, found)
    assert rows.target is not None
    assert terms.target is not None
    assert terms.exp is not None
    of_rows, of_weight = _operator(BACKWARD)(
        torch.where(elsewhere, terms.exp * found.sum_exp, -terms.target),
        rows.input.contiguous(),
        rows.weight.contiguous(),
        pack_mask(elsewhere, pad=0),
        rows.target,
        logits_max=found.max,
        sum_exp_logits=found.sum_exp,
    )
    return Gradients(
        _at_their_places(call, of_rows.to(call.dtype)) if wanted.input else None,
        of_weight.to(call.dtype) if wanted.weight else None,
        None,
    )


def _statistics(call: Operands) -> Statistics:
    target = call.target
    if target is None:
        target = torch.zeros(call.input.shape[0], dtype=torch.int64, device=call.input.device)
    largest, sum_exp, predicted, *_ = _operator(FORWARD)(
        call.input.contiguous(),
        call.weight.contiguous(),
        target,
        0,
        call.weight.shape[0],  # the kernel takes the end as exclusive, whatever its documentation says
    )
    return Statistics(largest, sum_exp, None if call.target is None else predicted + largest)


def _is_cross_entropy(terms: LogitGradient, found: Statistics, elsewhere: Tensor) -> bool:
    """Whether the gradient of the logits is grad_i (p_ij - [j = t_i]), grad = -target = exp sum_exp, or grad_i p_ij.

    The answer is on the device: reading it waits for all that the device has been given, once per backward pass.

    exp was rounded when it was divided by sum_exp and the product here is rounded again: at most eps together.
    """
    if terms.exp is None or terms.target is None:
        return False
    if any(term is not None for term in terms._replace(exp=None, target=None)):
        return False
    eps = torch.finfo(found.sum_exp.dtype).eps
    off = terms.exp * found.sum_exp + terms.target
    return bool((elsewhere & terms.exp.isfinite() | (off.abs() <= eps * terms.target.abs())).all())  # not where NaN


def _at_their_places(
    call: Operands,
    of_rows: Tensor,  # [N, H]
) -> Tensor:  # [M, H]
    if call.kept is None:
        return of_rows
    return of_rows.new_zeros(call.input.shape).index_copy_(0, call.kept, of_rows)


def _beyond_the_operator(problem: Problem) -> str | None:
    """What the vendor's operator doesn't do, or None."""
    if problem.dtype not in SIXTEEN_BIT:
        return f"the vendor's operator computes bfloat16 and float16, not {problem.dtype}"
    if problem.hidden > MOST_HIDDEN:
        return f"the vendor's operator takes a hidden size of at most {MOST_HIDDEN}, not {problem.hidden}"
    options = {
        "bias": problem.bias_dtype is not None,
        "scale": problem.scale != 1.0,
        "softcap": problem.softcap is not None,
        "temperature": problem.has_temperature,
        "valid_vocab": problem.valid_vocab not in (None, problem.vocab),
    }
    used = [option for option, is_used in options.items() if is_used]
    if used:
        return f"the vendor's operator has no {', '.join(used)}"
    if others := sorted(problem.wants - _WANTED):
        return f"the vendor's operator doesn't return what this call needs: {', '.join(others)}"
    if "target_logit" in problem.wants and problem.vocab > MOST_VOCAB_OF_TARGETS:
        return (
            f"the vendor's operator compares targets in float32, exact up to {MOST_VOCAB_OF_TARGETS} columns, "
            f"not {problem.vocab}"
        )
    if "gradients" in problem.wants:
        if problem.vocab < LEAST_VOCAB_OF_GRADIENTS:
            return (
                f"the vendor's gradients need a vocabulary of at least {LEAST_VOCAB_OF_GRADIENTS} columns, "
                f"not {problem.vocab}"
            )
        return _no_operator(BACKWARD)
    return None


def devices() -> Any:
    """What torch_npu has put at torch.npu, where that finds an NPU; else, as text, why there is none."""
    package = _package()
    if isinstance(package, str):
        return package
    npu = getattr(torch, "npu", None)
    try:
        found = npu is not None and npu.is_available()
    except Exception as error:  # the driver's, or there is no such function
        return f"{PACKAGE} finds no NPU ({type(error).__name__}: {_first_line(error)})"
    return npu if found else f"{PACKAGE} finds no NPU"


def _package() -> ModuleType | str:
    """The vendor's package, or why it can't be used."""
    try:
        package = importlib.import_module(PACKAGE)
    except ModuleNotFoundError as error:
        if error.name == PACKAGE:
            return f"{PACKAGE} isn't installed"
        return f"{PACKAGE} can't be imported ({type(error).__name__}: {_first_line(error)})"
    except Exception as error:  # it loads the vendor's libraries, which can fail in any way
        return f"{PACKAGE} can't be imported ({type(error).__name__}: {_first_line(error)})"
    own_name = getattr(package, "__name__", PACKAGE)
    if own_name.startswith("steadysum."):  # sys.modules["torch_npu"] = steadysum.compat.torch_npu
        return f"{own_name} stands in for {PACKAGE} in this process"
    return package


def _no_operator(names: Sequence[str]) -> str | None:
    module = importlib.import_module(PACKAGE)
    if any(hasattr(module, each) for each in names):
        return None
    return f"{PACKAGE} {getattr(module, '__version__', '(unknown version)')} has no {' or '.join(names)}"


def _operator(names: Sequence[str]) -> Callable[..., Any]:
    module = importlib.import_module(PACKAGE)
    operator: Callable[..., Any] = getattr(module, next(each for each in names if hasattr(module, each)))
    return operator


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]
