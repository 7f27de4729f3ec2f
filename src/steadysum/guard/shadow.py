"""Shadow: a module's twin, with the same parameters, buffers and submodules, and something else changed.

Not here: copies of tensors.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final

from torch import nn

__all__ = ["shadow", "unhooked"]

_HOOKS: Final = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
)


def shadow(module: nn.Module, **changed: Any) -> nn.Module:
    """The twin: an object of the same class that shares all that isn't changed. Made in a microsecond."""
    twin = object.__new__(type(module))
    twin.__dict__ = {**module.__dict__, **changed}
    return twin


def unhooked(module: nn.Module) -> nn.Module:
    """The twin without hooks of its own: calling it runs forward alone."""
    return shadow(module, **{name: OrderedDict() for name in _HOOKS if module.__dict__.get(name)})
