"""Operands of a check or a benchmark: random ones of a given shape, or a user's own from safetensors files.

Every mistake in a file name, tensor name, rank or size is raised here, before any work, with what the file does hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from steadysum.diagnosis.arguments import DTYPE_NAMES, DTYPES, Shape
from steadysum.diagnosis.memory import check_memory
from steadysum.diagnosis.subject import Operands
from steadysum.errors import DtypeError, RangeError, ShapeError, WeightsFileError, WeightsFileNotFoundError

ROWS_BESIDE_A_FILE = 256  # random hidden states where only weights are given: a few blocks of rows
MOST_LISTED = 12  # tensors named in an error
DRAWN_BYTES = 4  # of a random number: drawn in fp32, then converted


@dataclass(frozen=True)
class OperandSource:
    """Where the operands of a command come from: shapes, or files."""

    shapes: tuple[Shape, ...]  # beside `weights`: at most one, whose N is the number of random hidden states
    dtypes: tuple[torch.dtype, ...] = ()  # empty: fp32 for random operands, as stored for files
    weights: str | None = None  # FILE[:TENSOR]
    inputs: str | None = None  # FILE[:TENSOR]; only with weights
    seed: int = 0

    def load(self) -> Iterator[Operands]:
        """The operands, one problem at a time, so that one is in memory.

        Raises:
            SteadySumError: a file, tensor, size or dtype can't be used.
        """
        if self.weights is not None:
            for dtype in self.dtypes or (None,):
                yield file_operands(self.weights, self.inputs, self.shapes, dtype, self.seed)
            return
        if self.inputs is not None:
            raise RangeError(
                "--inputs", self.inputs, "only together with --weights", "Name the head that they go into."
            )
        for shape in self.shapes:
            for random_dtype in self.dtypes or (torch.float32,):
                yield random_operands(shape, random_dtype, self.seed)


def random_operands(shape: Shape, dtype: torch.dtype, seed: int) -> Operands:
    """Normal inputs and weights, as in the field report's loop; the weights are scaled by H^-1/2, as in a trained head.

    Raises:
        RangeError: the memory of this machine can't hold the operands.
    """
    each = DRAWN_BYTES if dtype is torch.float32 else DRAWN_BYTES + dtype.itemsize
    check_memory(f"{_text(shape)}, whose operands take", (shape.rows + shape.vocabulary) * shape.hidden * each)
    generator = torch.Generator().manual_seed(seed)
    input = torch.randn(shape.rows, shape.hidden, generator=generator)
    weight = torch.randn(shape.vocabulary, shape.hidden, generator=generator)
    weight *= shape.hidden**-0.5
    return Operands(input.to(dtype), weight.to(dtype))


def file_operands(
    weights: str,
    inputs: str | None,
    shapes: Sequence[Shape],
    dtype: torch.dtype | None,
    seed: int,
) -> Operands:
    """A user's own LM head, with the user's hidden states or random ones.

    Args:
        weights: FILE or FILE:TENSOR, a [V, H] matrix in a safetensors file.
        inputs: the same for hidden states, [..., H]; None for random normal ones.
        shapes: none, or the one that the files must have; N then is the number of random hidden states.
        dtype: what both are converted to; None leaves them as they are stored.
        seed: of random hidden states.
    """
    weight = load_tensor(weights, "--weights")
    if weight.ndim != 2 or 0 in weight.shape:
        raise ShapeError(
            f"--weights {weights}", f"shape {list(weight.shape)}", "[V, H], V and H > 0", "Name another tensor."
        )
    vocabulary, hidden = weight.shape
    weight = _converted(weight, dtype, f"--weights {weights}")
    if inputs is None:
        count = shapes[0].rows if shapes else ROWS_BESIDE_A_FILE
        _check_asked(shapes, Shape(count, hidden, vocabulary))
        check_memory(f"{count} random hidden states, which take", count * hidden * (DRAWN_BYTES + weight.itemsize))
        states = torch.randn(count, hidden, generator=torch.Generator().manual_seed(seed)).to(weight.dtype)
        return Operands(states, weight, source=f"{_file_name(weights)}, random hidden states")
    states = load_tensor(inputs, "--inputs")
    if states.ndim < 2 or states.numel() == 0:
        raise ShapeError(
            f"--inputs {inputs}",
            f"shape {list(states.shape)}",
            "[..., H] with at least two dimensions, none of them 0",
            "Name another tensor.",
        )
    if states.shape[-1] != hidden:
        raise ShapeError(
            f"last dimension of --inputs {inputs}",
            f"{states.shape[-1]} (shape {list(states.shape)})",
            f"{hidden}, as of --weights {weights} (shape {[vocabulary, hidden]})",
            "The hidden states must be those that this head multiplies.",
        )
    states = _converted(states.reshape(-1, hidden), dtype, f"--inputs {inputs}")
    if states.dtype != weight.dtype:
        raise DtypeError(
            "dtypes of --inputs and --weights",
            f"{DTYPE_NAMES[states.dtype]} and {DTYPE_NAMES[weight.dtype]}",
            "one dtype for both",
            "Convert both with --dtype fp32, bf16 or fp16.",
        )
    _check_asked(shapes, Shape(states.shape[0], hidden, vocabulary))
    return Operands(states, weight, source=f"{_file_name(weights)}, {_file_name(inputs)}")


def load_tensor(spec: str, option: str) -> Tensor:
    """The tensor of FILE[:TENSOR]; without a name, the file's only tensor.

    Args:
        spec: FILE or FILE:TENSOR. A file whose own name holds a colon is found, too.
        option: the option that it came from, for error texts.

    Raises:
        WeightsFileNotFoundError: no such file.
        WeightsFileError: no file name, a folder, not a safetensors file, no such tensor, or several tensors and no
            name.
    """
    if not spec or spec.startswith(":"):
        raise WeightsFileError(option, f"{spec!r}, which has no file name", "FILE or FILE:TENSOR", "Name a file.")
    path, name = _split_spec(spec)
    if path.is_dir():
        raise WeightsFileError(
            f"{option} {path}", "a path that is a folder", "a .safetensors file", "Name a file in it."
        )
    if not path.exists():
        raise WeightsFileNotFoundError(
            f"{option} {path}", "no file of this name", "an existing safetensors file", "Check the path."
        )
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            held = list(file.keys())
            chosen = _choose(name, held, f"{option} {path}", lambda key: file.get_slice(key).get_shape())
            tensor: Tensor = file.get_tensor(chosen)
            return tensor
    except (SafetensorError, OSError) as error:
        raise WeightsFileError(
            f"{option} {path}",
            f"a file that can't be read as safetensors ({error})",
            "a .safetensors file",
            "Save the tensor with safetensors.torch.save_file; of a sharded model, name the shard that holds it.",
        ) from error


def _check_asked(shapes: Sequence[Shape], found: Shape) -> None:
    """A --shape beside files must be theirs."""
    for shape in shapes:
        if shape != found:
            raise ShapeError(
                "--shape beside --weights",
                ",".join(map(str, shape)),
                ",".join(map(str, found)) + ", as in the files",
                "Leave --shape out, or use it only for the number of random hidden states.",
            )


def _split_spec(spec: str) -> tuple[Path, str | None]:
    if Path(spec).exists() or ":" not in spec:
        return Path(spec), None
    file, _, name = spec.rpartition(":")
    return Path(file), name


def _choose(name: str | None, held: Sequence[str], where: str, shape_of: Callable[[str], Sequence[int]]) -> str:
    if name is None and len(held) == 1:
        return held[0]
    if name in held:
        return str(name)
    listed = ", ".join(f"{key} {list(shape_of(key))}" for key in sorted(held)[:MOST_LISTED])
    if len(held) > MOST_LISTED:
        listed += f" and {len(held) - MOST_LISTED} more"
    seen = f"{len(held)} tensors and no name" if name is None else f"no tensor {name!r} in it"
    raise WeightsFileError(where, seen, listed or "a file with tensors", "Name one as FILE:TENSOR.")


def _converted(tensor: Tensor, dtype: torch.dtype | None, what: str) -> Tensor:
    if dtype is not None and tensor.is_floating_point():
        return tensor.to(dtype)
    if tensor.dtype not in DTYPE_NAMES:
        raise DtypeError(
            what,
            str(tensor.dtype).removeprefix("torch."),
            ", ".join(DTYPES),
            "Convert it with --dtype, or name another.",
        )
    return tensor


def _text(shape: Shape) -> str:
    return ",".join(map(str, shape))


def _file_name(spec: str) -> str:
    path, name = _split_spec(spec)
    return path.name if name is None else f"{path.name}:{name}"
