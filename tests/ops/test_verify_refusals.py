"""Wishes for a verification that can't be had are refused before any work, and the texts say what can."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

import pytest
import torch

from steadysum import (
    fused_cross_entropy_loss_with_max_sum,
    fused_linear_cross_entropy_loss_with_max_sum_backward,
    fused_linear_online_max_sum,
    kernels,
    linear_cross_entropy,
    linear_logprobs,
    linear_max_sum,
    linear_softmax,
    nn,
    regroup,
)
from steadysum.compat import torch_npu
from steadysum.errors import KernelUnavailableError, OperandTypeError, RangeError, UnknownKernelError
from steadysum.kernels import eager, registry, verification
from steadysum.kernels.problem import Problem
from steadysum.kernels.sampled import Sampled

from .verified_calls import HEAD, TARGET, X, draw


# ---- checksums -------------------------------------------------------------------------------------------------------
def test_checksums_need_native(needs_native: ModuleType) -> None:
    for name in ("eager", "reference"):
        text = (
            f"verify='checksum' with kernel='{name}': got kernel {name}, which forms products in ways that leave no "
            "room for checksums; allowed: kernel native, which takes them as it computes. Pass verify='sampled', "
            "which every kernel has."
        )
        with pytest.raises(KernelUnavailableError, match=r"^" + re.escape(text)):
            linear_max_sum(X, HEAD, kernel=name, verify="checksum")
        with kernels.use(name), pytest.raises(KernelUnavailableError, match=r"^" + re.escape(text)):
            linear_max_sum(X, HEAD, verify="checksum")


def test_a_call_that_native_cannot_run_cannot_have_checksums(needs_native: ModuleType) -> None:
    text = (
        "verify='checksum': got native computes float32, bfloat16 and float16, not torch.float64; allowed: a call that "
        "kernel native supports: checksums are taken as it computes. Pass verify='sampled', which every kernel has."
    )
    for kernel in ("auto", "native"):
        with pytest.raises(KernelUnavailableError, match=r"^" + re.escape(text)):
            linear_max_sum(X.double(), HEAD.double(), kernel=kernel, verify="checksum")


# ---- mistakes --------------------------------------------------------------------------------------------------------
CALLS: dict[str, Callable[..., object]] = {
    "linear_max_sum": lambda **how: linear_max_sum(X, HEAD, **how),
    "linear_softmax": lambda **how: linear_softmax(X, HEAD, **how),
    "linear_logprobs": lambda **how: linear_logprobs(X, HEAD, TARGET, **how),
    "linear_cross_entropy": lambda **how: linear_cross_entropy(X, HEAD, TARGET, **how),
    "nn.LinearCrossEntropyLoss": lambda **how: nn.LinearCrossEntropyLoss(32, 700, **how)(X, TARGET),
    "regroup": lambda **how: regroup([], **how),
    "fused_linear_online_max_sum": lambda **how: fused_linear_online_max_sum(X, HEAD, TARGET, 0, 700, **how),
    "fused_cross_entropy_loss_with_max_sum": lambda **how: fused_cross_entropy_loss_with_max_sum(
        torch.ones(1), torch.ones(1), torch.zeros(1), **how
    ),
    "fused_linear_cross_entropy_loss_with_max_sum_backward": lambda **how: (
        fused_linear_cross_entropy_loss_with_max_sum_backward(
            torch.ones(6), X, HEAD, torch.zeros(1, dtype=torch.uint8), TARGET, softmax=draw(6, 700), **how
        )
    ),
    "compat.torch_npu": lambda **how: torch_npu.fused_linear_online_max_sum(X, HEAD.T, **how),
}
TOLD = "'off', 'checksum', 'sampled'"


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_wish_that_does_not_exist_is_refused(call: Callable[..., object]) -> None:
    text = f"verify: got 'twice'; allowed: {TOLD}. 'checksum' needs kernel native; every kernel has 'sampled'."
    with pytest.raises(RangeError, match=r"^" + re.escape(text) + "$"):
        call(verify="twice")
    for value, name in ((True, "bool"), (None, "NoneType"), (torch.ones(2), "Tensor")):
        text = f"type of verify: got {name}; allowed: str, {TOLD}. Pass 'off' for none."
        with pytest.raises(OperandTypeError, match=r"^" + re.escape(text) + "$"):
            call(verify=value)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_kernel_and_a_wish_in_one_text_are_refused(call: Callable[..., object]) -> None:
    with pytest.raises(UnknownKernelError, match=r"^kernel: got 'eager\+sampled'; allowed: 'auto', "):
        call(kernel="eager+sampled")
    with pytest.raises(UnknownKernelError):
        kernels.use("auto+sampled").__enter__()


def test_operators_called_by_their_torch_name_check_as_well() -> None:
    run = torch.ops.steadysum.linear_max_sum
    with pytest.raises(RangeError, match=r"^verify: got 'twice'"):
        run(X, HEAD, None, 1.0, None, None, None, "auto+twice")
    with pytest.raises(UnknownKernelError, match=r"^kernel: got 'cuda'"):
        run(X, HEAD, None, 1.0, None, None, None, "cuda+sampled")
    with pytest.raises(UnknownKernelError, match=r"^kernel: got 'cuda'"):
        run(X, HEAD, None, 1.0, None, None, None, "cuda+checksum")
    assert torch.equal(run(X, HEAD, None, 1.0, None, None, None, "auto+off")[0], linear_max_sum(X, HEAD).max)


@pytest.mark.parametrize("verify", ["checksum", "sampled"])
def test_heads_of_more_dimensions_are_not_verified(verify: str) -> None:
    text = f"verify='{verify}' can't verify this call: got linear_weight [5, 2, 32]; allowed: linear_weight [V, H], or "
    with pytest.raises(KernelUnavailableError, match=r"^" + re.escape(text)):
        linear_cross_entropy(X, draw(5, 2, 32), torch.zeros(6, 2, dtype=torch.int64), verify=verify)


def test_a_kernel_that_is_not_verified_is_the_plain_one() -> None:
    problem = Problem.of(X, HEAD)
    assert registry.select(problem, verification.choice("eager", "off")) is eager
    chosen = registry.select(replace(problem, dtype=torch.float64), "auto+sampled")
    assert isinstance(chosen, Sampled)
    assert chosen.kernel is eager
