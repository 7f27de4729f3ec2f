"""A trial of the kernels on a device, on a tiny problem, before the first call there is entrusted to them.

What they need beside a GPU (a C compiler for Triton's launchers, a device that is new enough, a Triton that knows it)
shows only when one is compiled and run: so that is done once, and what fails is a reason, and no error in a user's
call. Not here: tests.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import torch
from torch import Tensor

from steadysum.kernels.gradients import LogitGradient, Wanted
from steadysum.kernels.problem import Operands, Statistics
from steadysum.kernels.triton_code import gradients, mode, statistics

__all__ = ["trial"]

ROWS, HIDDEN, VOCAB = 5, 70, 600  # two tiles, and a ragged block in every direction
FP32: Final = 2.0**-24  # one rounding
TF32: Final = 2.0**-11
THREE_TF32: Final = 2.0**-21  # of G in two parts of 11 bits each


@lru_cache(maxsize=64)
def trial(device: torch.device, dtype: torch.dtype, with_gradients: bool) -> str | None:
    """Run the kernels for these operands once.

    Args:
        device: that of the operands.
        dtype: fp32, bf16 or fp16.
        with_gradients: also try those of the gradients.

    Returns:
        Why they can't be used there, or None if results are within the bounds of rounding.
    """
    try:
        off = _errors(device, dtype, with_gradients)
    except Exception as error:
        first_line = (str(error).splitlines() or [""])[0]
        return f"a trial of triton on {device} failed ({type(error).__name__}: {first_line})"
    wrong = [name for name, share in off.items() if not share <= 1]  # NaN is wrong
    return f"a trial of triton on {device} gave a wrong {', '.join(wrong)}" if wrong else None


def _errors(device: torch.device, dtype: torch.dtype, with_gradients: bool) -> dict[str, float]:
    """The largest error of each result against float64, as a share of the bound of its roundings."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, HIDDEN, generator=generator).to(dtype)
    weight = torch.randn(VOCAB, HIDDEN, generator=generator).to(dtype)
    target = torch.arange(ROWS) * (VOCAB // ROWS)
    call = Operands(x.to(device), weight.to(device), None, 1.0, None, None, VOCAB, target=target.to(device))

    def cross_entropy(found: Statistics, *_: int) -> LogitGradient:
        return LogitGradient(exp=1 / found.sum_exp, target=-torch.ones_like(found.sum_exp))

    with torch.no_grad(), mode.launching(device):
        found = statistics.statistics(call, None)
        wanted = Wanted(input=True, weight=True, bias=False)
        computed = gradients.gradients(call, cross_entropy, wanted, None) if with_gradients else None

    # One rounding of a product; a logit of H of them is off by at most H + 2 (Higham, lemma 3.1).
    u = TF32 if statistics.precision(dtype) == "tf32" else FP32
    x, weight = x.double(), weight.double()
    z, sizes = x @ weight.T, x.abs() @ weight.abs().T
    logit = (HIDDEN + 2) * u * sizes.amax()
    largest, e = z.amax(1), (z - z.amax(1, keepdim=True)).exp()
    of_sum = torch.expm1(2 * logit) + VOCAB * FP32
    off = {
        "max": _share(found.max, largest, logit),
        "sum_exp": _share(found.sum_exp, e.sum(1), of_sum * e.sum(1)),
    }
    if computed is not None:
        assert computed.input is not None
        assert computed.weight is not None
        p = e / e.sum(1, keepdim=True)
        g = p - torch.nn.functional.one_hot(target, VOCAB)
        of_g = (of_sum + torch.expm1(2 * logit)) * p + FP32
        of_product = max(u, THREE_TF32) * (VOCAB + 2)
        off["gradient of input"] = _share(computed.input, g @ weight, (of_g + of_product * g.abs()) @ weight.abs())
        off["gradient of weight"] = _share(computed.weight, g.T @ x, (of_g + of_product * g.abs()).T @ x.abs())
    return off


def _share(found: Tensor, exact: Tensor, bound: Tensor) -> float:
    return float(((found.cpu().double() - exact).abs() / bound).max())
