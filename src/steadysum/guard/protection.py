"""protect: a callable or a module whose results are checked, healed where they are wrong, and accounted for.

Not here: a guarded call, step by step (guarding.py, healing.py), and whole models in place (model_protection.py).
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any, Literal, overload

import torch
from torch import nn

from steadysum.errors import OperandTypeError, OptionError, RangeError
from steadysum.guard.checks.defaults import default_checks
from steadysum.guard.checks.protocol import Check
from steadysum.guard.fallback import accept_fallback
from steadysum.guard.guarding import Guard
from steadysum.guard.module_view import ModuleView
from steadysum.guard.options import (
    BUNDLES,
    Bundles,
    OnFailure,
    Options,
    accept_bundles,
    accept_checks,
    accept_decision,
    accept_escalate,
    accept_number,
    accept_on_failure,
)
from steadysum.guard.sampling import Escalate
from steadysum.guard.sixteen_bits import in_sixteen_bits, widened
from steadysum.guard.uncompiled import uncompiled

__all__ = ["GuardedFunction", "GuardedModule", "make_guard", "protect"]


class GuardedFunction:
    """A callable whose results are checked; `guarded` is the callable itself. A method stays one."""

    def __init__(self, function: Callable[..., Any], guard: Guard, amp: str | None) -> None:
        functools.update_wrapper(self, function)
        self.guarded = function
        self.guard = guard
        self._amp = amp

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the callable, checks its result, and heals it where it is wrong."""
        return _call(self.guard, self.guarded, self._amp, args, kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As of a function in a class."""
        return self if instance is None else MethodType(self, instance)

    def __repr__(self) -> str:
        return f"protect({self.guarded!r})"


class GuardedModule(ModuleView):
    """A module whose results are checked; `guarded` is the module itself.

    Parameters, buffers, submodules and the keys of its state are those of the guarded module.
    """

    def __init__(self, module: nn.Module, guard: Guard, amp: str | None) -> None:
        super().__init__(module)
        self.guard = guard
        self._amp = amp

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the guarded module, hooks and all, checks its result, and heals it where it is wrong."""
        return _call(self.guard, self.guarded, self._amp, args, kwargs)

    def _get_name(self) -> str:
        return f"Guarded{self.guarded._get_name()}"  # type: ignore[union-attr]


@overload
def protect(target: nn.Module, **options: Any) -> GuardedModule: ...
@overload
def protect(target: Callable[..., Any], **options: Any) -> GuardedFunction: ...
@overload
def protect(target: None = None, **options: Any) -> Callable[[Callable[..., Any]], GuardedFunction]: ...
def protect(  # type: ignore[misc]  # overloads that list all options would be three more lists of them
    target: Callable[..., Any] | nn.Module | None = None,
    *,
    checks: Sequence[Check] | None = None,
    max_retries: int = 3,
    fallback: Callable[..., Any] | str | torch.device | None = None,
    synchronize: bool = True,
    on_failure: OnFailure = "raise",
    every: int = 1,
    escalate: Escalate | None = None,
    bundles: Bundles = BUNDLES,
    operator: str | None = None,
    restore: bool = False,
    all_ranks_decide: Callable[[bool], bool] | None = None,
    amp: Literal["O2"] | None = None,
) -> Any:
    """Guard a callable or a module: its results are checked, and a wrong one is computed again before anyone sees it.

    A result that fails a check is followed by up to `max_retries` reruns under the same random state, autocast and grad
    mode, then by the fallback, then by `on_failure`. Whose fault it was is told apart: "transient" (a rerun was right),
    "persistent" (only the fallback was), "application" (all agree, against the check), else "undecided". Whatever was
    run, the random state is afterwards that of one unguarded run.

    A call isn't run again if it changes its arguments or its module's buffers (see restore), or calls a collective (see
    all_ranks_decide).

    Args:
        target: a callable or a module. Left out: protect is a decorator.
        checks: of guard.checks, in order; None: those that suit the target.
        max_retries: reruns at most, from 0.
        fallback: another way to the result: a callable with the target's parameters; "eager" or another kernel's name,
            for functions and modules of steadysum; "cpu" or another device. It may give other bits; the first time
            that it is taken is warned of.
        synchronize: wait for the device before a rerun.
        on_failure: "raise"; "warn" and "return" give back the last result; a callable gets a Failure, and gives back
            what the caller gets.
        every: check the first and then every n-th call.
        escalate: strong checks for an operator that fails again and again.
        bundles: a folder (or BundleStore) for the evidence of each failure; None: none is written.
        operator: the name in notices and bundles.
        restore: copy arguments and buffers before each call, so that a call which changes them can be run again.
        all_ranks_decide: (whether this rank's result failed) -> whether any rank's did; called on every rank after
            every run, so that all of them run again together.
        amp: "O2": weights and activations in bf16, results and statistics in fp32. Parameters stay as they are, and
            are rounded at each call, but for those of normalisations.

    Returns:
        A GuardedFunction or a GuardedModule.

    Raises:
        OperandTypeError, RangeError, OptionError, UnknownKernelError: options that don't fit.
        AccuracyError: when called: a result stays wrong. What the target raises comes through.

    Source: field report, R12, R23; docs/guard.md says how attribution is decided.

    >>> from steadysum.guard.checks import Finite
    >>> inverse = protect(torch.reciprocal, checks=[Finite()], bundles=None)
    >>> inverse(torch.tensor([2.0, 4.0]))
    tensor([0.5000, 0.2500])
    """
    options: dict[str, Any] = {
        "checks": checks,
        "max_retries": max_retries,
        "fallback": fallback,
        "synchronize": synchronize,
        "on_failure": on_failure,
        "every": every,
        "escalate": escalate,
        "bundles": bundles,
        "operator": operator,
        "restore": restore,
        "all_ranks_decide": all_ranks_decide,
    }
    if amp not in (None, "O2"):
        raise RangeError("amp", repr(amp), "'O2' or None", "For O1, call inside torch.autocast.")
    if target is None:
        return functools.partial(protect, **options, amp=amp)
    guard = make_guard(target, **options)
    if isinstance(target, nn.Module):
        return GuardedModule(target, guard, amp)
    return GuardedFunction(target, guard, amp)


def make_guard(
    target: Any,
    *,
    checks: Sequence[Check] | None = None,
    max_retries: int = 3,
    fallback: Callable[..., Any] | str | torch.device | None = None,
    synchronize: bool = True,
    on_failure: OnFailure = "raise",
    every: int = 1,
    escalate: Escalate | None = None,
    bundles: Bundles = BUNDLES,
    operator: str | None = None,
    restore: bool = False,
    all_ranks_decide: Callable[[bool], bool] | None = None,
) -> Guard:
    """The guard of one target; arguments and errors are those of protect."""
    if not callable(target) or isinstance(target, type):
        raise OperandTypeError(
            "type of target",
            repr(target) if isinstance(target, type) else type(target).__name__,
            "a callable or a module",
            "Of a class, guard the instances.",
        )
    if inspect.iscoroutinefunction(target) or inspect.isgeneratorfunction(target):
        seen = "a function that gives back its result later"
        raise OperandTypeError("target", seen, "one that gives back a result", "Guard what it calls.")
    if isinstance(target, (GuardedFunction, GuardedModule)):
        raise OperandTypeError("target", "something that is guarded already", "one guard each", "Guard target.guarded.")
    if isinstance(target, nn.Module) and _is_lazy(target):
        raise OptionError(
            "target",
            f"{type(target).__name__} with parameters that have no shape yet",
            "a module whose parameters are there",
            "Run one batch through it first: it becomes another class then.",
        )
    if checks is None:
        checks = default_checks(target)
    return Guard(
        Options(
            operator=operator or _name_of(target),
            checks=accept_checks(checks),
            max_retries=accept_number("max_retries", max_retries, 0),
            fallback=accept_fallback(fallback, target),
            synchronize=bool(synchronize),
            on_failure=accept_on_failure(on_failure),
            every=accept_number("every", every, 1),
            escalate=accept_escalate(escalate),
            bundles=accept_bundles(bundles),
            restore=bool(restore),
            all_ranks_decide=accept_decision(all_ranks_decide),
        )
    )


def _is_lazy(module: nn.Module) -> bool:
    return any(nn.parameter.is_lazy(tensor) for tensor in itertools.chain(module.parameters(), module.buffers()))


def _name_of(target: Callable[..., Any]) -> str:
    inner = target
    while isinstance(inner, functools.partial):
        inner = inner.func
    return str(getattr(inner, "__name__", type(inner).__name__))


@uncompiled
def _call(guard: Guard, function: Any, amp: str | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if amp is None:
        return guard.call(function, args, kwargs)
    return widened(guard.call(*in_sixteen_bits(function, args, kwargs)))
