"""A module that stands for another one: the same parameters, buffers, submodules and keys, and a forward of its own.

It shares the dictionaries in which the other module keeps them, so that optimisers, checkpoints, to() and train() see
one module. Not here: what the forward does (protection.py, safe_module.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Self

from torch import nn

__all__ = ["ModuleView"]

_SHARED: Final = (
    "_parameters",
    "_buffers",
    "_modules",
    "_non_persistent_buffers_set",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


class ModuleView(nn.Module):
    """Stands for `guarded`; without one it is a module like any other.

    Hooks of the guarded module stay there, and run whenever its forward does.
    """

    guarded: nn.Module | None

    def __init__(self, guarded: nn.Module | None = None) -> None:
        super().__init__()
        self.__dict__["guarded"] = guarded  # not as a submodule, which would put its name into every key
        if guarded is not None:
            for name in _SHARED:
                self.__dict__[name] = guarded.__dict__[name]
            self.__dict__["training"] = guarded.training

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            guarded = self.__dict__.get("guarded")
            if guarded is None or name.startswith("__"):
                raise
            return getattr(guarded, name)

    def __setattr__(self, name: str, value: Any) -> None:
        guarded = self.__dict__.get("guarded")
        is_own = guarded is None or name in self.__dict__ or hasattr(type(self), name)
        if is_own or not hasattr(guarded, name):
            super().__setattr__(name, value)
        else:
            setattr(guarded, name, value)  # where the guarded module's forward reads it

    def train(self, mode: bool = True) -> Self:
        """As of any module."""
        if self.guarded is not None:
            self.guarded.train(mode)
            self.training = mode
            return self
        return super().train(mode)

    def apply(self, fn: Callable[[nn.Module], None]) -> Self:
        """As of any module; fn sees the guarded module, not this one."""
        if self.guarded is None:
            return super().apply(fn)
        self.guarded.apply(fn)
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As of the guarded module."""
        return super().state_dict(*args, **kwargs) if self.guarded is None else self.guarded.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As of the guarded module."""
        if self.guarded is None:
            return super().load_state_dict(*args, **kwargs)
        return self.guarded.load_state_dict(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any) -> None:
        # Called by a parent's load_state_dict, which then goes on to the submodules by itself.
        if self.guarded is None:
            super()._load_from_state_dict(*args)
        else:
            self.guarded._load_from_state_dict(*args)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        if self.guarded is None:
            return super()._apply(fn, recurse)  # type: ignore[no-any-return, no-untyped-call]
        self.guarded._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def extra_repr(self) -> str:
        """What is printed between the parentheses, beside submodules."""
        return "" if self.guarded is None else self.guarded.extra_repr()
