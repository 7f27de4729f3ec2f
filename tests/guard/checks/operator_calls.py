"""Calls of this package's operators, with their outputs, for tests of the checks that know them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from steadysum import linear_cross_entropy, linear_logprobs, linear_max_sum, linear_softmax
from steadysum.compat import torch_npu
from steadysum.guard.checks.protocol import Made
from steadysum.nn import LinearCrossEntropyLoss
from steadysum.ops.online_max_sum import fused_linear_online_max_sum

ROWS, HIDDEN, VOCAB = 12, 16, 700  # two segments, the second one ragged


def operands(dtype: torch.dtype = torch.float32, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """Input, weight and targets."""
    generator = torch.Generator().manual_seed(5)
    x = (scale * torch.randn(ROWS, HIDDEN, generator=generator)).to(dtype)
    w = torch.randn(VOCAB, HIDDEN, generator=generator).to(dtype)
    return x, w, torch.randint(VOCAB, (ROWS,), generator=generator)


def made(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Made:
    """The call, and what it gave."""
    with torch.no_grad():
        return Made(function, args, kwargs, function(*args, **kwargs))


def calls(dtype: torch.dtype = torch.float32, scale: float = 1.0) -> dict[str, Made]:
    """One call of each form whose output has rows."""
    x, w, target = operands(dtype, scale)
    ignoring = target.clone()
    ignoring[3] = -100
    shifted = functools.partial(
        linear_max_sum, softcap=20.0, temperature=torch.linspace(0.5, 2.0, ROWS).reshape(3, 4), scale=1.5
    )
    bias = torch.linspace(-3, 3, VOCAB).to(dtype)
    module = LinearCrossEntropyLoss(HIDDEN, VOCAB, reduction="none", dtype=dtype)
    found = {
        "max_sum": made(linear_max_sum, x, w),
        "max_sum, options": made(shifted, x.reshape(3, 4, HIDDEN), w, bias=bias, valid_vocab=650),
        "softmax": made(linear_softmax, x, w, bias=bias),
        "softmax in bf16": made(linear_softmax, x, w, dtype=torch.bfloat16),
        "logprobs": made(linear_logprobs, x, w, target),
        "logprobs with entropy": made(linear_logprobs, x, w, target, return_entropy=True),
        "losses": made(linear_cross_entropy, x, w, ignoring, linear_bias=bias, reduction="none"),
        "losses of a module": made(module, x, ignoring),
        "loss with stats": made(linear_cross_entropy, x, w, ignoring, return_stats=True),
    }
    if dtype in (torch.float16, torch.bfloat16):
        found["online"] = made(fused_linear_online_max_sum, x, w, target, 0, VOCAB)
        found["online, a shard"] = made(fused_linear_online_max_sum, x, w, target, 100, 100 + VOCAB)
        found["online, rounded"] = made(
            torch_npu.fused_linear_online_max_sum, x, w, target, 0, VOCAB, round_logits=True
        )
        found["softmax of the report"] = made(torch_npu.fused_linear_online_max_sum, x, w.T)
    return found
