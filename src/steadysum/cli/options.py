"""Options that `check` and `bench` share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from steadysum.diagnosis.arguments import Shape, parse_dtype, parse_shape
from steadysum.diagnosis.operands import OperandSource

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
