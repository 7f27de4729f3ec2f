"""O2: one call with weights and activations stored in bf16, and statistics and results in fp32.

The module's own parameters stay as they are (the optimiser's fp32 masters): each call rounds them anew, and gradients
arrive at them in their own dtype. Not here: autocast (O1), which chooses the dtype operator by operator.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from steadysum.guard.shadow import shadow
from steadysum.guard.tensors import map_tensors

__all__ = ["NORMS", "STORED", "in_sixteen_bits", "stored", "widened"]

STORED: Final = torch.bfloat16
_PLAIN: Final = (nn.Linear, nn.Embedding)
NORMS: Final = (
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
    nn.LocalResponseNorm,
    nn.modules.batchnorm._NormBase,
)
# functional_call puts the rounded parameters into the module while it runs: no other thread may take them for its own.
_swapping: Final = threading.RLock()


def in_sixteen_bits(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """The same call with fp32 tensors rounded to bf16: arguments, and a module's parameters.

    Args:
        function: a callable or a module. args, kwargs: its arguments.

    Returns:
        function, args, kwargs of the call that takes its place.
    """
    given: tuple[Any, ...] = map_tensors(stored, args)
    named: dict[str, Any] = map_tensors(stored, dict(kwargs))
    if not isinstance(function, nn.Module):
        return function, given, named
    if type(function) in _PLAIN:  # stays what it is, so that checks know what it computes
        parameters = {name: None if each is None else stored(each) for name, each in function._parameters.items()}
        return shadow(function, _parameters=parameters), given, named
    return _Rounded(function), given, named


def widened(output: Any) -> Any:
    """The result in fp32."""
    return map_tensors(lambda tensor: tensor.float() if tensor.dtype == STORED else tensor, output)


@dataclass(frozen=True)
class _Rounded:
    """A module's call with rounded parameters."""

    module: nn.Module

    @property
    def __self__(self) -> nn.Module:
        """Whose buffers it may change."""
        return self.module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        kept = {
            name
            for path, each in self.module.named_modules()
            if isinstance(each, NORMS)
            for name in (f"{path}.{own}" if path else own for own in each._parameters)
        }
        with _swapping:
            rounded = {
                name: stored(parameter) for name, parameter in self.module.named_parameters() if name not in kept
            }
            return torch.func.functional_call(self.module, rounded, args, kwargs)


def stored(tensor: Tensor) -> Tensor:
    """The tensor in bf16, if it is in fp32."""
    return tensor.to(STORED) if tensor.dtype == torch.float32 else tensor
