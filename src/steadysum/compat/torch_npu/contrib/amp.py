"""Mixed precision in the two steps that the field report names (R19): O1 is autocast, O2 stores 16 bits.

The 16 bits are bf16, which has fp32's range: a loss needs no scaling. Not here: master weights (masters.py), and O2 of
one guarded call, whose parameters stay in fp32 (protect(..., amp="O2")).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from steadysum.compat.torch_npu.contrib import masters
from steadysum.errors import DtypeError, OperandTypeError, OptionError, PatchError, RangeError
from steadysum.guard.sixteen_bits import NORMS, STORED, stored, widened
from steadysum.guard.tensors import map_tensors

__all__ = ["initialize", "master_params", "scale_loss"]

_PLAIN = "_forward_without_amp"


@overload
def initialize(model: nn.Module, optimizer: None = None, opt_level: Literal["O1", "O2"] = ...) -> nn.Module: ...
@overload
def initialize(
    model: nn.Module, optimizer: Optimizer, opt_level: Literal["O1", "O2"] = ...
) -> tuple[nn.Module, Optimizer]: ...
def initialize(
    model: nn.Module, optimizer: Optimizer | None = None, opt_level: Literal["O1", "O2"] = "O1"
) -> nn.Module | tuple[nn.Module, Optimizer]:
    """Make a model compute in mixed precision, and its optimizer keep fp32 weights; both in place.

    O1: the model's forward runs under torch.autocast with bf16; parameters stay in fp32.

    O2: parameters, but for those of normalisations, are stored in bf16, and so are activations; torch's kernels
    accumulate products and compute statistics in fp32. The optimizer keeps fp32 masters of the parameters, steps on
    them, and rounds them to the stored ones; they are in its state_dict. A weight that is changed from outside is taken
    over by its master at the next step. Gradients are in fp32, so that several backward passes add up in it; with
    torch.distributed initialised, and where torch has no Tensor.grad_dtype, they are in bf16, in which
    DistributedDataParallel reduces them.

    At both levels the model takes fp32 tensors, and gives them back: losses are computed in fp32.

    Args:
        model: parameters in fp32; not yet wrapped for several processes, nor compiled.
        optimizer: of the model's parameters, all of them that it will ever have; None: for inference. Its gradients
            are cleared.
        opt_level: "O1" or "O2".

    Returns:
        The same model and optimizer; the model alone without one.

    Raises:
        OperandTypeError, RangeError, DtypeError, OptionError: arguments that don't fit. PatchError: a model or an
            optimizer that has been given to it before.

    Source: field report, R19; the calls are those of torch_npu.contrib's amp, which has them from NVIDIA's apex.

    >>> net = nn.Linear(2, 2)
    >>> net, optimizer = initialize(net, torch.optim.SGD(net.parameters(), lr=0.1), opt_level="O2")
    >>> net.weight.dtype, net(torch.ones(1, 2)).dtype, optimizer.param_groups[0]["params"][0].dtype
    (torch.bfloat16, torch.float32, torch.float32)
    """
    _check(model, optimizer, opt_level)
    if opt_level == "O2":
        narrow = _narrow_parameters(model)
        if optimizer is not None:
            masters.keep(optimizer, narrow)
        for parameter in narrow:
            parameter.grad = None
            parameter.data = parameter.data.to(STORED)
            masters.widen_gradient(parameter)
    _replace_forward(model, _in_autocast if opt_level == "O1" else _in_sixteen_bits)
    return model if optimizer is None else (model, optimizer)


@contextmanager
def scale_loss(loss: Tensor, optimizer: Optimizer) -> Iterator[Tensor]:  # noqa: ARG001 - the vendor's signature
    """The loss itself: bf16 has the range of fp32, so that no gradient vanishes for want of scaling.

    Args:
        loss: what backward is called on. optimizer: as of initialize.

    >>> loss = torch.ones((), requires_grad=True)
    >>> with scale_loss(loss, torch.optim.SGD([loss])) as scaled:
    ...     scaled.backward()
    """
    yield loss


def master_params(optimizer: Optimizer) -> Iterator[nn.Parameter]:
    """The parameters whose gradients the optimizer's next step takes: those to clip.

    Args:
        optimizer: as of initialize, or any.

    Returns:
        The stored parameters under O2, whose gradients their masters take over; else the optimizer's.

    >>> [parameter] = master_params(torch.optim.SGD([nn.Parameter(torch.ones(1))]))
    """
    return masters.parameters_with_gradients(optimizer)


# ---- the model -----------------------------------------------------------------------------------------------------


def _narrow_parameters(model: nn.Module) -> list[nn.Parameter]:
    kept = {id(each) for module in model.modules() if isinstance(module, NORMS) for each in module._parameters.values()}
    return [each for each in model.parameters() if each.dtype == torch.float32 and id(each) not in kept]


def _replace_forward(model: nn.Module, run: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]) -> None:
    """Methods, and no closures: a copied model's forward is the copy's."""
    plain = model.forward

    @functools.wraps(getattr(plain, "__func__", plain))
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return run(self, args, kwargs)

    model.__dict__[_PLAIN] = plain
    model.forward = MethodType(forward, model)


def _in_autocast(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    parameter = next(model.parameters(), None)
    with torch.autocast("cpu" if parameter is None else parameter.device.type, dtype=STORED):
        return widened(model.__dict__[_PLAIN](*args, **kwargs))


def _in_sixteen_bits(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # Autocast beside it: a fp32 buffer that is added to an activation makes that fp32, which a bf16 weight refuses.
    return _in_autocast(model, map_tensors(stored, args), map_tensors(stored, kwargs))


# ---- arguments -----------------------------------------------------------------------------------------------------


def _check(model: Any, optimizer: Any, opt_level: Any) -> None:
    if not isinstance(model, nn.Module):
        raise OperandTypeError("type of model", type(model).__name__, "torch.nn.Module", "One model at a time.")
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        raise OperandTypeError(
            "type of optimizer", type(optimizer).__name__, "torch.optim.Optimizer or None", "One optimizer at a time."
        )
    if opt_level not in ("O1", "O2"):
        raise RangeError("opt_level", repr(opt_level), "'O1', 'O2'", "For fp32, leave initialize out.")
    if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
        raise OptionError("model", type(model).__name__, "the model inside", "Call initialize before wrapping it.")
    if any(_PLAIN in module.__dict__ for module in model.modules()) or masters.are_kept(optimizer):
        raise PatchError("amp.initialize", "a second call", "one for each model and optimizer", "Leave one out.")
    wrong = {str(each.dtype) for each in model.parameters() if each.is_floating_point()} - {"torch.float32"}
    if wrong:
        raise DtypeError("dtype of model", ", ".join(sorted(wrong)), "fp32 parameters", "Call model.float() before.")
