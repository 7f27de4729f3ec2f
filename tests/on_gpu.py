"""A kernel of a GPU for operands on the CPU: each call's tensors are copied to the device, its results copied back.

So tests that make their operands on the CPU run the compiled triton kernel where there is a GPU. The copies have the
originals' strides, gaps included, so that tests of layouts and of far elements stay what they are: far elements take up
to 16 GiB of the device's memory, of which little is touched.

Not here: where this is needed (the fixture triton_takes_cpu_operands in conftest.py), or any arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from types import ModuleType
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from steadysum.kernels.gradients import Gradients, LogitGradient, PullBack, Wanted
from steadysum.kernels.problem import Operands, Problem, Statistics

__all__ = ["ADAPTORS", "adapt"]


def adapt(kernel: ModuleType, device: torch.device, patch: pytest.MonkeyPatch) -> None:
    """Put functions that compute on the device, wherever their operands lie, in the place of the kernel's own."""
    for name, adaptor in ADAPTORS.items():
        patch.setattr(kernel, name, adaptor(getattr(kernel, name), device))


def _supports(right: Callable[[Problem], str | None], device: torch.device) -> Callable[[Problem], str | None]:
    """What is said of a problem on the CPU is what is said of the same problem on the device."""
    return lambda problem: right(replace(problem, device=device) if problem.device.type == "cpu" else problem)


def _of_values(right: Callable[[Any], Any], device: torch.device) -> Callable[[Any], Any]:
    """A function of one value, whose result is all that it gives."""
    return lambda value: _copied(right(_copied(value, device)), _home(value))


def _of_calls(
    right: Callable[[list[Operands]], list[Statistics]], device: torch.device
) -> Callable[[list[Operands]], list[Statistics]]:
    def statistics(calls: list[Operands]) -> list[Statistics]:
        found = right([_copied(call, device) for call in calls])
        return [_copied(each, _home(call)) for call, each in zip(calls, found, strict=True)]

    return statistics


def _into_out(right: Callable[[Operands, Tensor], Any], device: torch.device) -> Callable[[Operands, Tensor], Any]:
    def written(call: Operands, out: Tensor) -> Any:
        there = _copied(out, device)  # with what stands in it, which an element that isn't written keeps
        found = right(_copied(call, device), there)
        out.copy_(there)
        return _copied(found, _home(call))

    return written


def _gradients(right: Callable[..., Gradients], device: torch.device) -> Callable[..., Gradients]:
    def gradients(call: Operands, pull_back: PullBack, wanted: Wanted, known: Statistics | None = None) -> Gradients:
        home = _home(call)

        def from_home(found: Statistics, start: int, stop: int) -> LogitGradient:
            coefficients: LogitGradient = _copied(pull_back(_copied(found, home), start, stop), device)
            return coefficients

        found: Gradients = _copied(right(_copied(call, device), from_home, wanted, _copied(known, device)), home)
        return found

    return gradients


# For each function of `Kernel` that takes a description or tensors.
ADAPTORS: Final[dict[str, Callable[[Callable[..., Any], torch.device], Callable[..., Any]]]] = {
    "supports": _supports,
    "statistics": _of_calls,
    "chunk_statistics": _of_values,
    "gradients": _gradients,
    "logits": _into_out,
    "softmax": _into_out,
    "logprobs": _of_values,
    "entropy": _of_values,
    "log": _of_values,
}


def _home(value: Operands | Statistics | Tensor) -> torch.device:
    """Where a call's tensors lie, and its results go."""
    if isinstance(value, Operands):
        return value.input.device
    return (value.max if isinstance(value, Statistics) else value).device


def _copied(value: Any, device: torch.device) -> Any:
    """The same value with copies of its tensors on the device."""
    if isinstance(value, Tensor):
        return _copy(value, device)
    if isinstance(value, Operands):
        return replace(value, **{each.name: _copied(getattr(value, each.name), device) for each in fields(value)})
    if isinstance(value, Statistics | Gradients | LogitGradient):
        return type(value)(*(_copied(each, device) for each in value))
    return value


def _copy(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy on the device with the same strides; Tensor.to would close the gaps, and write out what is broadcast."""
    written = tensor[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())]
    there = torch.empty_strided(written.shape, written.stride(), dtype=tensor.dtype, device=device).copy_(written)
    return there.expand(tensor.shape)
