"""What the vendor's three operators share: the checks of their arguments.

The signatures are those of torch_npu (CANN); tensors are flat there: input [BT, H], one value per row [BT].
Not here: the operators (online_max_sum.py, loss_with_max_sum.py, loss_with_max_sum_backward.py).
"""

from __future__ import annotations

import numbers
import operator
from typing import Any

import torch
from torch import Tensor

from steadysum.errors import DtypeError, OperandTypeError, OptionError, RangeError, ShapeError
from steadysum.kernels.problem import FLOATS
from steadysum.kernels.target_mask import mask_bytes
from steadysum.ops.arguments import Arguments, accept_tensor, check, check_devices, check_storage
from steadysum.tiling import Shard

__all__ = [
    "accept_bool",
    "accept_int",
    "accept_label_smoothing",
    "accept_tensors",
    "check_label_smoothing",
    "check_mask",
    "check_matrices",
    "check_rows",
    "check_shard",
]


# ---- Python types ------------------------------------------------------------------------------------------------


def accept_tensors(required: dict[str, Tensor], optional: dict[str, Tensor | None] | None = None) -> None:
    """Check that the arguments of these names are dense tensors."""
    for name, value in {**required, **(optional or {})}.items():
        if value is not None or name in required:
            accept_tensor(name, value)


def accept_int(name: str, value: Any, *, allowed: str = "int", remedy: str = "Use int(...).") -> int:
    """An argument as the operators take it: an int of 64 bits. NumPy's integers are taken, too."""
    is_int = isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool)
    number: int = value if is_int else _index(name, value, allowed, remedy)
    if not -(2**63) <= number < 2**63:
        raise RangeError(name, "an integer beyond int64", "-2^63 to 2^63 - 1", "Ids in a vocabulary are far smaller.")
    return number


def _index(name: str, value: Any, allowed: str, remedy: str) -> int:
    """An integer of another type; a tensor is none, since reading it would wait for its device."""
    try:
        if not isinstance(value, (bool, Tensor)):
            return operator.index(value)
    except TypeError:
        pass
    raise OperandTypeError(f"type of {name}", type(value).__name__, allowed, remedy)


def accept_bool(name: str, value: Any) -> None:
    """Check that an argument is True or False."""
    if not isinstance(value, bool):
        raise OperandTypeError(f"type of {name}", type(value).__name__, "bool", "Pass True or False.")


def accept_label_smoothing(value: Any) -> None:
    """Check that label smoothing is a number or None, and none at all."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, (numbers.Real, torch.SymFloat))):
        raise OperandTypeError(
            "type of label_smoothing", type(value).__name__, "0.0 or None, as in the vendor's operator", "Leave it out."
        )
    check_label_smoothing(value)


# ---- sizes, dtypes, ranges ---------------------------------------------------------------------------------------


def check_matrices(input: Tensor, weight: Tensor, kernel: str) -> Arguments:
    """The matrices [BT, H] and [V, H] as the arguments of our operators, checked."""
    if input.dim() != 2:
        raise ShapeError(
            "rank of input",
            seen=str(list(input.shape)),
            allowed="[BT, H], rank 2",
            remedy="Flatten the leading dimensions: input.reshape(-1, H), target.reshape(-1).",
        )
    arguments = Arguments(input, weight, None, 1.0, None, None, None, kernel)
    check(arguments)
    return arguments


def check_shard(start: int, columns: int, vocab_size: int | None) -> Shard | None:
    """Where the columns of a weight lie in a vocabulary of `vocab_size` columns; None: the weight's cut is its own."""
    if start < 0:
        raise RangeError("vocab_start_index", str(start), ">= 0", "Pass the id of the weight's first row.")
    if vocab_size is None:
        return None
    if start + columns > vocab_size:
        raise RangeError(
            "vocab_size",
            seen=f"{vocab_size}, with vocab_start_index {start} and {columns} rows of weight",
            allowed=f">= {start + columns}",
            remedy="Pass the size of the whole vocabulary, over all cards, or None.",
        )
    return Shard(start, vocab_size)


def check_rows(
    values: dict[str, Tensor], rows: int, dtypes: tuple[torch.dtype, ...] = FLOATS, *, beside: str = "input"
) -> None:
    """Raise unless each tensor has one value per row, in one of the dtypes, on the device of the first."""
    for name, tensor in values.items():
        check_storage(name, tensor)
        if tensor.shape != (rows,):
            allowed = f"[{rows}], one value per row of {beside}"
            raise ShapeError(f"shape of {name}", str(list(tensor.shape)), allowed, "Flatten it with .reshape(-1).")
        if tensor.dtype not in dtypes:
            raise DtypeError(
                f"dtype of {name}", str(tensor.dtype), ", ".join(map(str, dtypes)), "Convert it with .to(...)."
            )
    check_devices({name: tensor.device for name, tensor in values.items()})


def check_label_smoothing(label_smoothing: Any) -> None:
    """Raise unless there is none: the vendor's operator has the argument, and allows only 0."""
    if label_smoothing:
        raise OptionError(
            "label_smoothing",
            seen=str(label_smoothing),
            allowed="0.0 or None, as in the vendor's operator",
            remedy="linear_cross_entropy has label smoothing.",
        )


def check_mask(target_mask: Tensor, size: int) -> None:
    """Raise unless the mask has a bit for each of `size` rows."""
    check_storage("target_mask", target_mask)
    if target_mask.dtype != torch.uint8:
        raise DtypeError(
            "dtype of target_mask",
            seen=str(target_mask.dtype),
            allowed="torch.uint8, one bit per row",
            remedy="Pass what fused_linear_online_max_sum returned.",
        )
    if target_mask.dim() != 1 or target_mask.shape[0] < mask_bytes(size):
        raise ShapeError(
            "shape of target_mask",
            seen=str(list(target_mask.shape)),
            allowed=f"[{mask_bytes(size)}] or longer, one bit per row of input, of which there are {size}",
            remedy="Pass what fused_linear_online_max_sum returned.",
        )
