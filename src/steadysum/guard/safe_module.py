"""SafeModule: a module that warms up once, checks each result, retries, and raises "accuracy check failed".

Not here: guards of modules and functions as they are (protection.py), of all layers of a model (model_protection.py).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from steadysum.guard.attempt import is_unguarded, unguardable, unguarded
from steadysum.guard.checks.protocol import Finding, Made
from steadysum.guard.failure import mention
from steadysum.guard.module_view import ModuleView
from steadysum.guard.options import accept_number
from steadysum.guard.protection import make_guard
from steadysum.guard.refusal import runs_python, watch
from steadysum.guard.restore import Contents, ambient, put
from steadysum.guard.tensors import map_tensors
from steadysum.guard.uncompiled import uncompiled

__all__ = ["SafeModule"]


class SafeModule(ModuleView):
    """A module whose results can be trusted: warmed up once, checked, computed again where they are wrong.

    Wraps a module, whose parameters and keys it shares; or is the base of a module that says itself what it computes
    and what a right result is:

    - `_real_forward(*args, **kwargs)`: what it computes; by default the wrapped module.
    - `_check_output(output)`: True, False, or a sentence that says what is wrong (an empty one: nothing); by default
      True.

    The first call runs `_real_forward` some times for nothing, without gradients, on copies of its arguments; the
    random state and the buffers are afterwards as they were.

    Args:
        module: the module to wrap; None in subclasses with a `_real_forward` of their own.
        warm_up: throw-away runs before the first result; 0: none.
        checks: of guard.checks, before `_check_output`; None: those that suit the module.
        options: as of protect: max_retries, fallback, synchronize, on_failure, every, escalate, bundles, operator,
            restore, all_ranks_decide.

    Raises:
        OperandTypeError, RangeError, OptionError: options that don't fit.
        AccuracyError: when called: a result stays wrong.

    Source: field report, R22 and R24.

    >>> from steadysum.guard.checks import Finite
    >>> layer = SafeModule(nn.Linear(2, 3), checks=[Finite()], bundles=None)
    >>> layer(torch.ones(1, 2)).shape
    torch.Size([1, 3])
    """

    def __init__(
        self, module: nn.Module | None = None, *, warm_up: int = 10, checks: Any = None, **options: Any
    ) -> None:
        super().__init__(module)
        self.warm_up = accept_number("warm_up", warm_up, 0)
        self.is_warm = False
        self.guard = make_guard(self if module is None else module, checks=checks, **options)
        if type(self)._check_output is not SafeModule._check_output:
            self.guard = self.guard.with_check(_OwnCheck(self))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """A result that has passed its checks, at once or after retries."""
        return _call(self, args, kwargs)

    def _real_forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.guarded is None:
            raise NotImplementedError(f"{type(self).__name__} wraps no module, and has no _real_forward of its own")
        return self.guarded(*args, **kwargs)

    def _check_output(self, output: Any) -> bool | str:  # noqa: ARG002 - for subclasses
        return True

    def _warm_up(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.is_warm = True
        if self.warm_up == 0:
            return
        copies = _copies(args, kwargs)
        if copies is None:
            mention(f"{self.guard.options.operator} was not warmed up: its arguments can't be copied")
            return
        owner = self if self.guarded is None else self.guarded
        watched = watch(owner, args, kwargs)
        saved = ambient(watched.devices, args, kwargs, runs_python=runs_python(owner))
        state = [(module._buffers, dict(module._buffers)) for module in owner.modules()]
        contents = Contents.of(watched.writable())
        try:
            with torch.no_grad(), unguarded():
                for _ in range(self.warm_up):
                    self._real_forward(*copies[0], **copies[1])
        finally:
            for buffers, before in state:
                buffers.update(before)
            contents.put()
            put(saved)


class _OwnCheck:
    """What a subclass says of its results, as a check. No closure: a copied module's check must ask the copy."""

    name = "check_output"

    def __init__(self, module: SafeModule) -> None:
        self.module = module

    def __repr__(self) -> str:
        return f"{type(self.module).__name__}._check_output"

    def fits(self, made: Made) -> str | None:  # noqa: ARG002
        """Any call."""
        return None

    def judge(self, made: Made) -> Finding:
        """What the module says."""
        with torch.no_grad():
            said = self.module._check_output(made.output)
        if isinstance(said, str):
            return Finding(self.name, passed=not said, summary=said)
        return Finding(self.name, passed=bool(said), summary="" if said else "the module says no")


def _copies(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Copies to warm up with: a run may write to what it is given, and a cache among it may grow; None: impossible."""
    shared = {
        id(value): value for value in (*args, *kwargs.values()) if isinstance(value, (nn.Module, torch.Generator))
    }
    try:
        copied: tuple[Any, Any] = copy.deepcopy(
            map_tensors(lambda tensor: tensor.detach().clone(), (args, dict(kwargs))), shared
        )
    except (RuntimeError, TypeError):  # tensors of a graph within an object; objects that hold what can't be copied
        return None
    return copied


@uncompiled
def _call(module: SafeModule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if is_unguarded() or unguardable() is not None:
        return module._real_forward(*args, **kwargs)
    if not module.is_warm:
        module._warm_up(args, kwargs)
    return module.guard.call(module._real_forward, args, kwargs, module if module.guarded is None else module.guarded)
