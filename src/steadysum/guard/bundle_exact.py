"""What operators of known meaning should have given, in float64, each value with the bound of what rounding explains.

A copy of this file lies in every bundle, beside reproduce.py: it must run without steadysum, on torch alone.
Not here: comparing with it (reproduce_script.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor


def linear_in_float64(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> list[tuple[Tensor, Tensor]]:
    """[(input weight^T + bias, bound)], for a result in the operands' dtype."""
    return [_product(input, weight, bias, input.dtype)]


def matmul_in_float64(input: Tensor, other: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The same for input @ other."""
    if other.ndim != 2:
        raise TypeError("only matrices")
    return linear_in_float64(input, other.T)


def max_sum_in_float64(
    input: Tensor,
    weight: Tensor,
    *_: Any,
    bias: Tensor | None = None,
    scale: float = 1.0,
    softcap: float | None = None,
    temperature: float | Tensor | None = None,
    valid_vocab: int | None = None,
    round_logits: bool = False,
    **__: Any,
) -> list[tuple[Tensor, Tensor]]:
    """[(max, bound), (sum_exp, bound)] of the logits in float64.

    An error d of a row's logits changes max by d, and sum_exp by a factor within exp(+-2 d); the sum itself has at most
    512 terms in a tile, and four roundings for each tile that is folded.
    """
    eps = torch.finfo(torch.float32).eps
    z, bound = _product(input, weight, bias, input.dtype if round_logits else _precision(input))
    z, bound = z * scale, bound * abs(scale) + 2 * eps * (z * scale).abs()
    if softcap is not None:
        z = softcap * torch.tanh(z / softcap)
        bound = bound + 8 * eps * softcap
    if temperature is not None:
        t = torch.as_tensor(temperature, dtype=torch.float64).reshape(-1, 1)
        z, bound = z / t, bound / t + 2 * eps * (z / t).abs()
    z, bound = z[..., :valid_vocab], bound[..., :valid_vocab]
    largest, error = z.amax(-1), bound.amax(-1)
    sum_exp = (z - largest[..., None]).exp().sum(-1)
    terms = 512 + 4 * (z.shape[-1] // 512 + 1)
    return [(largest, error), (sum_exp, sum_exp * (torch.expm1(2 * error) + terms * eps))]


def _product(input: Tensor, weight: Tensor, bias: Tensor | None, result: torch.dtype) -> tuple[Tensor, Tensor]:
    """input weight^T + bias, and the bound of its rounding in any order of summation.

    H + 2 roundings of |input| |weight|^T in the precision of the sums, and two of the result in its own (Higham,
    Accuracy and Stability of Numerical Algorithms, section 3.1).
    """
    x, w = input.double(), weight.double()
    value, sizes = x @ w.T, x.abs() @ w.abs().T
    if bias is not None:
        value, sizes = value + bias.double(), sizes + bias.double().abs()
    fine, coarse = torch.finfo(_precision(input)), torch.finfo(result)
    return value, (x.shape[-1] + 2) * fine.eps * sizes + 2 * coarse.eps * value.abs() + coarse.tiny


def _precision(operand: Tensor) -> torch.dtype:
    """Of the sums: fp32 for 16-bit operands."""
    return torch.float64 if operand.dtype == torch.float64 else torch.float32


# Operators whose meaning is known, by package and name.
KNOWN: Mapping[tuple[str, str], Callable[..., list[tuple[Tensor, Tensor]]]] = {
    ("torch", "linear"): linear_in_float64,
    ("torch", "matmul"): matmul_in_float64,
    ("torch", "mm"): matmul_in_float64,
    ("steadysum", "linear_max_sum"): max_sum_in_float64,
    ("steadysum", "fused_linear_online_max_sum"): max_sum_in_float64,
    ("steadysum", "npu_fused_linear_online_max_sum"): max_sum_in_float64,
}
