"""The arguments that all operators share: every check of what a user passed, and how they become a kernel's operands.

Three steps, each in one place: `accept` (public functions: Python types), `check` (operator and shape function:
ranks, sizes, dtypes, devices, ranges) and `operands` (operator: values of tensors, flattening of rows).
Not here: choosing a kernel, computing anything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from steadysum.errors import (
    DeviceError,
    DtypeError,
    LayoutError,
    OperandTypeError,
    RangeError,
    ShapeError,
    TargetRangeError,
    TargetShapeError,
)
from steadysum.kernels.problem import FLOATS, Operands, statistics_dtype
from steadysum.ops.kernel_choice import accept_kernel

__all__ = [
    "SCHEMA",
    "Arguments",
    "accept",
    "accept_target",
    "accept_tensor",
    "check",
    "check_devices",
    "check_storage",
    "check_target",
    "column",
    "empty_column",
    "in_shape",
    "first_bad",
    "leading_shape",
    "operands",
    "rows",
    "targets",
]

SCHEMA: Final = (
    "Tensor input, Tensor weight, Tensor? bias, float scale, float? softcap, Tensor? temperature, "
    "SymInt? valid_vocab, str kernel"
)
TARGET_DTYPES: Final = (torch.int64, torch.int32)


class Arguments(NamedTuple):
    """The arguments of every operator, in the order of SCHEMA."""

    input: Tensor  # [..., H]
    weight: Tensor  # [V, H]
    bias: Tensor | None  # [V]
    scale: float
    softcap: float | None
    temperature: Tensor | None  # [] or [1] or [...]
    valid_vocab: int | None
    kernel: str  # with how to verify its results, see kernels/verification.py

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors among them, by name."""
        candidates = {
            "input": self.input,
            "weight": self.weight,
            "bias": self.bias,
            "temperature": self.temperature,
        }
        return {name: tensor for name, tensor in candidates.items() if tensor is not None}


# ---- accept: Python types, names ---------------------------------------------------------------------------------


def accept(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: float,
    softcap: float | None,
    temperature: float | Tensor | None,
    valid_vocab: int | None,
    kernel: str,
    verify: str,
) -> Arguments:
    """Check the Python types of a public function's arguments."""
    accept_tensor("input", input)
    accept_tensor("weight", weight)
    if bias is not None:
        accept_tensor("bias", bias)
    dtype = statistics_dtype(input.dtype)
    scale = _accept_number("scale", scale)
    _check_scale(scale, dtype)
    if softcap is not None:
        softcap = _accept_number("softcap", softcap)
        _check_positive("softcap", softcap, dtype)
    if valid_vocab is not None and (isinstance(valid_vocab, bool) or not isinstance(valid_vocab, (int, torch.SymInt))):
        raise OperandTypeError(
            "type of valid_vocab",
            seen=_type_name(valid_vocab),
            allowed="int or None",
            remedy="Pass the number of real columns of a padded head.",
        )
    if valid_vocab is not None and weight.dim() == 2:
        _check_valid_vocab(valid_vocab, weight.shape[0])
    kernel = accept_kernel(kernel, verify)
    if temperature is not None and not isinstance(temperature, Tensor):
        number = _accept_number("temperature", temperature)
        _check_positive("temperature", number, dtype)
        temperature = torch.full((1,), number, dtype=dtype, device=input.device)
    return Arguments(input, weight, bias, scale, softcap, temperature, valid_vocab, kernel)


def accept_target(target: Tensor) -> None:
    """Check that target is a tensor."""
    accept_tensor("target", target)


def accept_tensor(name: str, value: Any) -> None:
    """Check that a value is a dense tensor."""
    if not isinstance(value, Tensor):
        raise OperandTypeError(f"type of {name}", _type_name(value), "torch.Tensor", "Use torch.as_tensor(...).")
    check_storage(name, value)  # here too, since torch's dispatcher finds no kernel for some layouts


def _accept_number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, torch.SymInt, torch.SymFloat)):
        allowed = "a Python number or a tensor" if name == "temperature" else "a Python number"
        raise OperandTypeError(f"type of {name}", _type_name(value), allowed, "Use float(...).")
    if not isinstance(value, int):
        return value  # type: ignore[return-value]  # a float, or a symbol of torch.compile
    try:
        return float(value)
    except OverflowError:
        raise RangeError(name, "an integer beyond float64", "a finite number", "Pass a float.") from None


def _type_name(value: Any) -> str:
    return type(value).__name__


# ---- check: ranks, sizes, dtypes, devices, ranges ----------------------------------------------------------------


def check(arguments: Arguments) -> None:
    """Raise before any work unless the arguments fit each other; reads shapes and numbers, never a tensor's values."""
    input, weight, bias, temperature = arguments.input, arguments.weight, arguments.bias, arguments.temperature
    for name, tensor in arguments.tensors.items():
        check_storage(name, tensor)
    if input.dim() < 1:
        raise ShapeError("rank of input", _shape(input), "[..., H], rank >= 1", "For one number use input[None].")
    if weight.dim() != 2:
        raise ShapeError("rank of weight", _shape(weight), "[V, H], rank 2", "As in torch.nn.functional.linear.")
    if input.shape[-1] != weight.shape[1]:
        raise ShapeError(
            "hidden sizes of input and weight",
            seen=f"input {_shape(input)}, weight {_shape(weight)}",
            allowed="input [..., H], weight [V, H] with one H",
            remedy="A weight laid out [H, V] is passed as weight.T, which costs no copy.",
        )
    if weight.shape[0] == 0:
        raise ShapeError("vocabulary of weight", _shape(weight), "[V, H], V >= 1", "A row of no logits has no max.")
    if input.dtype not in FLOATS:
        raise DtypeError("dtype of input", str(input.dtype), _listed(FLOATS), "Convert it with .to(...).")
    if weight.dtype != input.dtype:
        raise DtypeError(
            "dtypes of input and weight",
            seen=f"input {input.dtype}, weight {weight.dtype}",
            allowed="one dtype for both",
            remedy="Convert one of them with .to(...); under autocast, too, the operands are taken as they are.",
        )
    if bias is not None:
        _check_bias(bias, weight)
    check_devices({name: tensor.device for name, tensor in arguments.tensors.items()})
    dtype = statistics_dtype(input.dtype)
    _check_scale(arguments.scale, dtype)
    if arguments.softcap is not None:
        _check_positive("softcap", arguments.softcap, dtype)
    if temperature is not None:
        _check_temperature(temperature, leading_shape(arguments))
    if arguments.valid_vocab is not None:
        _check_valid_vocab(arguments.valid_vocab, weight.shape[0])


def check_target(arguments: Arguments, target: Tensor) -> None:
    """Raise unless target fits the (checked) arguments; reads no values."""
    check_storage("target", target)
    if target.dtype not in TARGET_DTYPES:
        raise DtypeError(
            "dtype of target",
            seen=str(target.dtype),
            allowed=_listed(TARGET_DTYPES),
            remedy="A target is the index of a vocabulary column; class probabilities are no targets here.",
        )
    if target.shape != leading_shape(arguments):
        raise TargetShapeError(
            "shape of target",
            seen=f"{_shape(target)} for input {_shape(arguments.input)}",
            allowed=f"{list(leading_shape(arguments))}, the leading shape of input",
            remedy="Pass one target per row.",
        )
    check_devices({"input": arguments.input.device, "target": target.device})


def leading_shape(arguments: Arguments) -> torch.Size:
    """The shape of one value per row."""
    return arguments.input.shape[:-1]


def empty_column(arguments: Arguments) -> Tensor:
    """What a shape function returns for one value per row."""
    return arguments.input.new_empty(leading_shape(arguments), dtype=statistics_dtype(arguments.input.dtype))


def column(arguments: Arguments, values: Tensor) -> Tensor:
    """One value per row [N] as operators return it: in the leading shape, rounded to the dtype of the statistics."""
    return in_shape(values.to(statistics_dtype(arguments.input.dtype)), leading_shape(arguments))


def in_shape(values: Tensor, shape: Sequence[int]) -> Tensor:
    """Contiguous values in another shape, as a tensor of its own: autograd lets nobody write into views of results."""
    reshaped: Tensor = torch.ops.aten._unsafe_view(values, list(shape))
    return reshaped


def rows(values: Tensor) -> Tensor:
    """One value per row [...] as kernels take it: [N], contiguous."""
    return values.detach().reshape(-1).contiguous()


def check_storage(name: str, tensor: Tensor) -> None:
    """Raise unless the tensor is dense and holds values."""
    if tensor.layout != torch.strided or tensor.is_nested:
        seen = "a nested tensor" if tensor.is_nested else str(tensor.layout)
        raise LayoutError(f"layout of {name}", seen, "torch.strided", "Use .to_dense(), or pad nested rows.")
    if tensor.device.type == "meta":
        raise DeviceError(
            f"device of {name}",
            seen="meta, which holds no values",
            allowed="a device that holds values",
            remedy="Materialise the tensor (e.g. module.to_empty(device=...) and load its weights).",
        )


def check_devices(devices: dict[str, torch.device]) -> None:
    """Raise unless all devices are the same."""
    if len(set(devices.values())) > 1:
        raise DeviceError(
            "devices of " + ", ".join(devices),
            seen=", ".join(f"{name} on {device}" for name, device in devices.items()),
            allowed="one device for all",
            remedy="Move them together with .to(device).",
        )


def _check_bias(bias: Tensor, weight: Tensor) -> None:
    if bias.shape != weight.shape[:1]:
        raise ShapeError(
            "shape of bias",
            seen=f"{_shape(bias)} for weight {_shape(weight)}",
            allowed=f"[{weight.shape[0]}], one value per row of weight",
            remedy="Pass a vector, or None.",
        )
    narrow = weight.dtype.itemsize == 2
    if bias.dtype != weight.dtype and not (narrow and bias.dtype == torch.float32):
        allowed = f"{weight.dtype}, as weight" + (", or torch.float32" if narrow else "")
        raise DtypeError("dtype of bias", str(bias.dtype), allowed, "Convert it with .to(...).")


def _check_temperature(temperature: Tensor, leading: torch.Size) -> None:
    if temperature.dtype not in FLOATS:
        raise DtypeError("dtype of temperature", str(temperature.dtype), _listed(FLOATS), "Convert it with .to(...).")
    if temperature.shape not in (torch.Size([]), torch.Size([1]), leading):
        raise ShapeError(
            "shape of temperature",
            seen=_shape(temperature),
            allowed=f"[], [1] or {list(leading)}, the leading shape of input",
            remedy="Pass a number for all rows, or one per row.",
        )


# Numbers are checked in the precision of the logits, to which they are rounded. NaN fails each comparison.


def _check_scale(scale: float, dtype: torch.dtype) -> None:
    most = torch.finfo(dtype).max
    if not abs(scale) <= most:
        raise RangeError("scale", str(scale), f"a finite number within +-{most:.3g}", "Pass 1.0 for no scale.")


def _check_positive(name: str, value: float, dtype: torch.dtype) -> None:
    limits = torch.finfo(dtype)
    if not limits.tiny <= value <= limits.max:
        allowed = f"a finite number > 0, {limits.tiny:.3g} to {limits.max:.3g}"
        raise RangeError(name, str(value), allowed, f"Pass None for no {name}.")


def _check_valid_vocab(valid_vocab: int, vocab: int) -> None:
    if not 1 <= valid_vocab <= vocab:
        raise RangeError(
            "valid_vocab",
            seen=str(valid_vocab),
            allowed=f"1 to {vocab}, the rows of weight",
            remedy="Pass the number of real columns of a padded head, or None if all are real.",
        )


def _shape(tensor: Tensor) -> str:
    return str(list(tensor.shape))


def _listed(dtypes: tuple[torch.dtype, ...]) -> str:
    return ", ".join(map(str, dtypes))


# ---- operands: values, rows --------------------------------------------------------------------------------------


def operands(arguments: Arguments, **others: Any) -> Operands:
    """The operands of checked arguments, rows flattened; weight is never copied, input only if need be.

    Args:
        arguments: the arguments.
        others: fields of the operands beside those, as they are.

    Raises:
        RangeError: a temperature is out of range (on the CPU, with its position; other devices assert without waiting).
    """
    rows = math.prod(leading_shape(arguments))
    input = arguments.input.reshape(rows, arguments.input.shape[-1])
    vocab = arguments.weight.shape[0]
    valid_vocab = vocab if arguments.valid_vocab is None else arguments.valid_vocab
    temperature = arguments.temperature
    if temperature is not None:
        rounded = temperature.detach().to(statistics_dtype(input.dtype))
        position = first_bad((rounded > 0) & (rounded < torch.inf), "temperature out of range")
        if position is not None:
            seen = f"{temperature[position].item()} at position {list(position)}"
            raise RangeError("temperature", seen, "finite numbers > 0", "For greedy decoding take the argmax instead.")
        temperature = rounded.reshape(-1).contiguous()
    return Operands(
        input=input.detach(),
        weight=arguments.weight.detach(),
        bias=None if arguments.bias is None else arguments.bias.detach(),
        scale=float(arguments.scale),
        softcap=None if arguments.softcap is None else float(arguments.softcap),
        temperature=temperature,
        valid_vocab=int(valid_vocab),
        **others,
    )


def targets(
    arguments: Arguments,
    target: Tensor,  # [...]
) -> Tensor:  # [N]
    """The targets as kernels take them.

    Raises:
        TargetRangeError: one is out of range (on the CPU, with its position; other devices assert, as torch's do).
    """
    vocab = arguments.weight.shape[0]
    valid_vocab = vocab if arguments.valid_vocab is None else arguments.valid_vocab
    remedy = "Leave ignored rows (such as -100) out, or give them a target in range and drop them."
    refuse_targets(target, (target >= 0) & (target < valid_vocab), valid_vocab, vocab, remedy=remedy)
    return target.reshape(-1).to(torch.int64).contiguous()


def refuse_targets(
    target: Tensor, good: Tensor, valid_vocab: int, vocab: int, *, remedy: str, besides: str = ""
) -> None:
    """Raise TargetRangeError unless all targets are good; `besides` names what is allowed beside the classes."""
    position = first_bad(good, "target out of range")
    if position is not None:
        real = "" if valid_vocab == vocab else f" (valid_vocab={valid_vocab} of {vocab})"
        raise TargetRangeError(
            "target",
            seen=f"{target[position].item()} at position {list(position)}",
            allowed=f"0 to {valid_vocab - 1}{real}{besides}",
            remedy=remedy,
        )


def first_bad(good: Tensor, message: str) -> tuple[int, ...] | None:
    """The first position at which `good` is False. Other devices than the CPU assert, without waiting."""
    if good.device.type != "cpu":
        torch._assert_async(good.all(), message)
        return None
    if bool(good.all()):
        return None
    first = int((~good).flatten().nonzero()[0])
    return tuple(int(index) for index in torch.unravel_index(torch.tensor(first), good.shape))
