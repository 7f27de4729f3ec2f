"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from steadysum.diagnosis.arguments import Shape, parse_dtype, parse_shape
from steadysum.diagnosis.operands import OperandSource
from steadysum.errors import OptionError

Shapes = Annotated[
    list[str] | None,
    typer.Option("--shape", metavar="N,H,V", help="Rows, hidden size, vocabulary. Repeatable.", show_default=False),
]
Dtypes = Annotated[
    list[str] | None,
    typer.Option(
        "--dtype",
        metavar="fp32|bf16|fp16",
        help="Of the operands. Repeatable.  [default: fp32, or as stored in --weights]",
        show_default=False,
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(metavar="FILE[:TENSOR]", help="Your own LM head [V, H] from a safetensors file.", show_default=False),
]
Inputs = Annotated[
    str | None,
    typer.Option(
        metavar="FILE[:TENSOR]", help="Your own hidden states [..., H]; random ones otherwise.", show_default=False
    ),
]
Kernels = Annotated[
    list[str] | None,
    typer.Option("--kernel", help="Repeatable.  [default: all that are available]", show_default=False),
]
Seed = Annotated[int, typer.Option(min=0, max=2**32, help="Of random operands, cuts and samples.")]
Json = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Also write the result as JSON.", show_default=False, dir_okay=False),
]
# Of the emulated device.
Cores = Annotated[int | None, typer.Option("--cores", min=1, help="Cores of the emulated device.", show_default="24")]
Policy = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="legacy|enhanced|verified|duplicated|0-3",
        help="How its cores do a sync; legacy has the field's fault.",
        show_default="legacy",
    ),
]
Load = Annotated[
    float | None,
    typer.Option("--load", metavar="L", help="Its system load; 0: none.", show_default="1"),
]
Faults = Annotated[
    list[str] | None,
    typer.Option(
        "--fault", metavar="SPEC", help="Arm a fault: stale:core=3,probability=0.1. Repeatable.", show_default=False
    ),
]


def given(**values: Any) -> dict[str, Any]:
    """Those of some options that were given."""
    return {name: value for name, value in values.items() if value is not None and value != []}


def refuse_without_device(emulated: Mapping[str, Any]) -> None:
    """Options of the emulated device mean nothing without it."""
    if emulated:
        names = ", ".join(f"--{name}" for name in emulated)
        raise OptionError(names, "no --device", "--device emulated", "They are options of the emulated device.")


def operand_source(
    shapes: Sequence[str] | None,
    dtypes: Sequence[str] | None,
    weights: str | None,
    inputs: str | None,
    seed: int,
    default: tuple[Shape, ...],  # shapes where neither shapes nor weights are given
) -> OperandSource:
    """The options' operands."""
    asked = tuple(parse_shape(shape) for shape in shapes or ())
    return OperandSource(
        shapes=asked if asked or weights is not None else default,
        dtypes=tuple(parse_dtype(dtype) for dtype in dtypes or ()),
        weights=weights,
        inputs=inputs,
        seed=seed,
    )
