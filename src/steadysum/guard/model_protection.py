"""protect_model: guards the linear, embedding and LM-head layers of a model where they are, until that is undone.

A guarded layer gets a class of its own, made from its class, whose call or forward is guarded; nothing else of it
changes: parameters, keys, hooks, and what isinstance says. A layer without hooks is guarded as a whole, so that what
hooks of later break is caught; one that has hooks by then, which may be meant to change its results, is guarded inside
of them.
Not here: the guard of one layer (protection.py).
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType, MethodType, TracebackType
from typing import Any, Final, NamedTuple, Self

import torch
from torch import Tensor, nn

from steadysum.errors import OperandTypeError, OptionError
from steadysum.guard.checks.checksum import Checksum
from steadysum.guard.checks.defaults import default_checks
from steadysum.guard.checks.protocol import Check, Made
from steadysum.guard.guarding import Guard
from steadysum.guard.healing import Healing
from steadysum.guard.options import BUNDLES, Bundles, OnFailure, accept_bundles
from steadysum.guard.protection import make_guard
from steadysum.guard.sampling import Escalate
from steadysum.guard.uncompiled import own_code, uncompiled

__all__ = ["ProtectedModel", "protect_model"]

_MARK: Final = "_steadysum_guard"  # on classes of guarded layers


class _Layer(NamedTuple):
    """A guarded layer."""

    module: nn.Module
    original: type[nn.Module]
    guarded: type[nn.Module]
    guard: Guard


class ProtectedModel:
    """The guards of a model's layers; undone by `undo()`, or at the end of a `with` block."""

    def __init__(self, model: nn.Module, layers: Mapping[str, _Layer]) -> None:
        self.model = model
        self._layers = dict(layers)
        self.guards: Mapping[str, Guard] = MappingProxyType({name: layer.guard for name, layer in layers.items()})

    @property
    def healings(self) -> list[tuple[str, Healing]]:
        """What was done about wrong results, layer by layer."""
        return [(name, healing) for name, guard in self.guards.items() for healing in guard.healings]

    def undo(self) -> None:
        """Makes the layers what they were; a second time it does nothing.

        Raises:
            OptionError: a layer's class has been changed by something else since; the other layers are undone.
        """
        changed = []
        for name, layer in reversed(list(self._layers.items())):
            if type(layer.module) is layer.guarded:
                layer.module.__class__ = layer.original
                del self._layers[name]
            else:
                changed.append(name)
        if changed:
            raise OptionError(
                "guarded layers",
                f"another class since: {', '.join(sorted(changed)[:4])}",
                "the class that protect_model gave them",
                "Undo first what was done to them last.",
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.undo()


def protect_model(
    model: nn.Module,
    *,
    layers: Callable[[str, nn.Module], bool] | None = None,
    checks: Sequence[Check] | None = None,
    max_retries: int = 3,
    fallback: Callable[..., Any] | str | torch.device | None = None,
    synchronize: bool = True,
    on_failure: OnFailure = "raise",
    every: int = 1,
    escalate: Escalate | None = None,
    bundles: Bundles = BUNDLES,
) -> ProtectedModel:
    """Guard all linear and embedding layers of a model, the LM head among them, where they are.

    Results and gradients keep their bits. State keys, parameters, hooks and isinstance stay as they are; copies of the
    model and what pickle saves of it are unguarded. Layers whose weights are used without calling them (as torch's
    MultiheadAttention does, and its fast path of TransformerEncoderLayer) aren't seen.

    Args:
        model: any module.
        layers: (name, module) -> whether to guard it; None: every torch.nn.Linear, torch.nn.Embedding, Conv1D of
            transformers, and what the model's get_output_embeddings() gives.
        checks: for all of them; None: those that suit each.
        max_retries, fallback, synchronize, on_failure, every, escalate, bundles: as of protect. A layer's name is its
            operator in notices and bundles.

    Returns:
        A ProtectedModel, whose undo() makes the model what it was.

    Raises:
        OperandTypeError: no module, or one with guarded layers.
        OptionError: a model without such layers. Others as of protect, before anything is changed.

    Source: field report, R1: the fault is met most at embedding and fully connected layers.

    >>> model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 2))
    >>> with protect_model(model, bundles=None) as guards:
    ...     list(guards.guards)
    ['0', '1']
    """
    if not isinstance(model, nn.Module):
        raise OperandTypeError("type of model", type(model).__name__, "a torch.nn.Module", "For functions: protect.")
    store = accept_bundles(bundles)
    made = {}
    for name, module in _found(model, layers or _is_of_interest(model)):
        if hasattr(type(module), _MARK):
            raise OperandTypeError(
                f"layer {name or 'itself'}", "guarded already", "one guard each", "Undo the other guard first."
            )
        guard = make_guard(
            module,
            checks=_checks_of(module) if checks is None else checks,
            fallback=fallback,
            operator=name or type(module).__name__,
            max_retries=max_retries,
            synchronize=synchronize,
            on_failure=on_failure,
            every=every,
            escalate=escalate,
            bundles=store,
        )
        made[name] = _Layer(module, type(module), _guarded_class(module, guard), guard)
    if not made:
        raise OptionError("model", "no layer to guard", "linear or embedding layers", "For one module: protect.")
    for layer in made.values():
        layer.module.__class__ = layer.guarded
    return ProtectedModel(model, made)


def _found(model: nn.Module, wanted: Callable[[str, nn.Module], bool]) -> Iterator[tuple[str, nn.Module]]:
    for name, module in model.named_modules():
        if wanted(name, module):
            yield name, module


def _is_of_interest(model: nn.Module) -> Callable[[str, nn.Module], bool]:
    get_head = getattr(model, "get_output_embeddings", None)  # as models of transformers have it
    head = get_head() if callable(get_head) else None

    def wanted(name: str, module: nn.Module) -> bool:  # noqa: ARG001 - as a user's own
        return isinstance(module, (nn.Linear, nn.Embedding)) or _is_conv1d(module) or module is head

    return wanted


def _is_conv1d(module: nn.Module) -> bool:
    """GPT-2's linear layer, with its weight as [in, out]."""
    return any(
        kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers.") for kind in type(module).__mro__
    )


def _checks_of(module: nn.Module) -> Sequence[Check]:
    if _is_conv1d(module):
        return (Checksum(operands=_conv1d_operands),)
    return default_checks(module.forward if _has_hooks(module) else module)


def _conv1d_operands(made: Made) -> tuple[Tensor, Tensor, Tensor | None]:
    module: Any = getattr(made.function, "__self__", made.function)  # or its bound forward
    input = made.args[0] if made.args else made.kwargs["x"]
    return input, module.weight.T, module.bias


def _has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _guarded_class(module: nn.Module, guard: Guard) -> type[nn.Module]:
    """The class of one guarded layer; it has its original's name, for those who print it or look for it by name."""
    original = type(module)
    guarded = (_guarded_forward if _has_hooks(module) else _guarded_call)(original, guard)
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(guarded, name, getattr(original, name))
    setattr(guarded, _MARK, guard)
    return guarded


def _guarded_call(original: type[nn.Module], guard: Guard) -> type[nn.Module]:
    run = uncompiled(lambda *given: guard.call(*given))

    class Guarded(original):  # type: ignore[misc,valid-type]
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            # Hooks that have come since are suspect, too. Checks are shown the forward, by whose operands they go.
            shown = self.forward if _has_hooks(self) else self
            return run(MethodType(original.__call__, self), args, kwargs, shown)

        def __reduce_ex__(self, protocol: Any) -> Any:
            return _as_original(original, super().__reduce_ex__(protocol))

    own_code(Guarded.__call__)
    return Guarded


def _guarded_forward(original: type[nn.Module], guard: Guard) -> type[nn.Module]:
    run = uncompiled(lambda *given: guard.call(*given))

    class Guarded(original):  # type: ignore[misc,valid-type]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            twin = object.__new__(original)
            twin.__dict__ = self.__dict__  # the same module under its own class, whose forward checks know
            return run(twin.forward, args, kwargs, None)

        def __reduce_ex__(self, protocol: Any) -> Any:
            return _as_original(original, super().__reduce_ex__(protocol))

    own_code(Guarded.forward)
    return Guarded


def _as_original(original: type[nn.Module], reduced: Any) -> Any:
    """For pickle and copy, which would look for the guarded class by its name, and find the original."""
    return copyreg._reconstructor, (original, object, None), reduced[2]  # type: ignore[attr-defined]
