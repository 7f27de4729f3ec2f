"""Masters: fp32 weights that an optimizer keeps for parameters that a model stores in 16 bits.

The optimizer's groups hold the masters, so that its own state is fp32 as well. Gradients are the stored parameters':
masters take them over when a step begins. Not here: the model (amp.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, distributed, nn
from torch.optim import Optimizer

from steadysum.errors import ShapeError

__all__ = ["are_kept", "keep", "parameters_with_gradients", "widen_gradient"]

KEY: Final = "master_weights"  # in the optimizer's state_dict


class _Pair(NamedTuple):
    stored: nn.Parameter
    master: nn.Parameter


_pairs_of: WeakKeyDictionary[Optimizer, tuple[_Pair, ...]] = WeakKeyDictionary()


def are_kept(optimizer: Optimizer | None) -> bool:
    """Whether the optimizer has masters."""
    return optimizer is not None and optimizer in _pairs_of


def keep(optimizer: Optimizer, parameters: Sequence[nn.Parameter]) -> None:
    """Put fp32 masters in the place of the optimizer's parameters, those among `parameters`.

    Args:
        optimizer: is changed in place; what it knows of a parameter it then knows of the master.
        parameters: still in fp32; the caller stores them in 16 bits afterwards.
    """
    wanted = set(parameters)
    pairs = []
    for group in optimizer.param_groups:
        for place, stored in enumerate(group["params"]):
            if stored in wanted:
                master = nn.Parameter(stored.detach().clone(), requires_grad=stored.requires_grad)
                group["params"][place] = master
                if stored in optimizer.state:
                    optimizer.state[master] = optimizer.state.pop(stored)
                pairs.append(_Pair(stored, master))
    _pairs_of[optimizer] = tuple(pairs)
    optimizer.zero_grad = functools.partial(_zero_grad, optimizer)  # type: ignore[method-assign]
    optimizer.register_step_pre_hook(_before_step)
    optimizer.register_step_post_hook(_after_step)
    optimizer.register_state_dict_post_hook(_save)
    optimizer.register_load_state_dict_pre_hook(_load)


def parameters_with_gradients(optimizer: Optimizer) -> Iterator[nn.Parameter]:
    """The parameters whose gradients the next step takes."""
    stored_of = {pair.master: pair.stored for pair in _pairs_of.get(optimizer, ())}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            yield stored_of.get(parameter, parameter)


def widen_gradient(parameter: nn.Parameter) -> None:
    """Have a 16-bit parameter's gradients added up in fp32, where torch and its reducers let us.

    Older releases of torch haven't got grad_dtype; DistributedDataParallel refuses gradients of another dtype than the
    parameter's.
    """
    reduces = distributed.is_available() and distributed.is_initialized()
    if hasattr(parameter, "grad_dtype") and not reduces:
        parameter.grad_dtype = torch.float32


# ---- a step --------------------------------------------------------------------------------------------------------


def _before_step(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    pairs = _pairs_of[optimizer]
    _take_over_weights(pairs)
    _take_over_gradients(pairs)
    if len(args) > 1 and args[1] is not None:  # the first one is the optimizer
        return (args[0], _around(args[1], pairs), *args[2:]), kwargs
    if kwargs.get("closure") is not None:
        return args, {**kwargs, "closure": _around(kwargs["closure"], pairs)}
    return None


def _after_step(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG001
    _round(_pairs_of[optimizer])


def _around(closure: Callable[[], Any], pairs: tuple[_Pair, ...]) -> Callable[[], Any]:
    """The closure computes a loss with the stored weights, and the optimizer reads its masters' gradients."""

    def run() -> Any:
        _round(pairs)
        loss = closure()
        _take_over_gradients(pairs)
        return loss

    return run


@torch.no_grad()
def _take_over_weights(pairs: tuple[_Pair, ...]) -> None:
    """A stored weight that isn't its master, rounded, was changed from outside: loaded, clipped, averaged."""
    for stored, master in pairs:
        changed = stored != master.to(stored.dtype)
        if bool(changed.any()):
            master.copy_(torch.where(changed, stored.to(master.dtype), master))


def _take_over_gradients(pairs: tuple[_Pair, ...]) -> None:
    for stored, master in pairs:
        master.grad = None if stored.grad is None else stored.grad.to(master.dtype)


@torch.no_grad()
def _round(pairs: tuple[_Pair, ...]) -> None:
    for stored, master in pairs:
        stored.copy_(master)


def _zero_grad(optimizer: Optimizer, set_to_none: bool = True) -> None:
    type(optimizer).zero_grad(optimizer, set_to_none)
    for stored, _ in _pairs_of[optimizer]:
        if set_to_none:
            stored.grad = None
        elif stored.grad is not None:
            stored.grad.detach_().zero_()


# ---- saving and loading --------------------------------------------------------------------------------------------


def _save(optimizer: Optimizer, state: dict[str, Any]) -> None:
    state[KEY] = [pair.master.detach() for pair in _pairs_of[optimizer]]


@torch.no_grad()
def _load(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Low bits of masters from a saved state; one from a run without masters has none, and nothing is changed."""
    pairs = _pairs_of[optimizer]
    saved: list[Tensor] | None = state.get(KEY)
    if saved is None:
        return
    shapes, own = [list(each.shape) for each in saved], [list(pair.master.shape) for pair in pairs]
    if shapes != own:
        raise ShapeError(
            f"{KEY} of an optimizer's state", str(shapes), str(own), "Load the state of a run of the same model."
        )
    for (_, master), weight in zip(pairs, saved, strict=True):
        master.copy_(weight)
