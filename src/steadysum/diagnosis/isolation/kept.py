"""Outputs of runs as tensors by name, and as files by which they come from one process to the other. Never pickled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from steadysum.guard.tensors import flatten

__all__ = ["Outputs", "outputs_of", "read_outputs", "write_outputs"]


class Outputs(NamedTuple):
    """What a run returned: its tensors by path, and the rest as JSON can hold it."""

    tensors: dict[str, Tensor]
    rest: Any  # the skeleton of steadysum.guard.tensors.flatten

    def rest_bytes(self) -> bytes:
        """The rest, for a digest; empty for one bare tensor."""
        return b"" if self.rest.get("kind") == "tensor" else json.dumps(self.rest).encode()

    def copy(self) -> Outputs:
        """In memory of its own, on the CPU."""
        return Outputs({name: one.detach().to("cpu", copy=True) for name, one in self.tensors.items()}, self.rest)


def outputs_of(value: Any) -> Outputs:
    """Takes apart whatever an operator returns; arrays of numpy count as tensors.

    >>> outputs_of((torch.ones(2), 3)).tensors["0"]
    tensor([1., 1.])
    """
    return Outputs(*flatten(_without_arrays(value)))


def write_outputs(path: Path, outputs: Outputs) -> None:
    """To one safetensors file, under a temporary name first: a file that is there is whole."""
    from safetensors.torch import save_file

    stored, dtypes = {}, {}
    for name, tensor in outputs.tensors.items():
        dense = tensor.detach().cpu()
        dense = (dense if dense.layout is torch.strided else dense.to_dense()).resolve_conj().resolve_neg()
        dtypes[name] = str(dense.dtype).removeprefix("torch.")
        stored[name] = (torch.view_as_real(dense) if dense.is_complex() else dense).contiguous().clone()
    partial = path.with_suffix(".partial")
    save_file(stored, partial, {"rest": json.dumps(outputs.rest), "dtypes": json.dumps(dtypes)})
    partial.rename(path)


def read_outputs(path: Path) -> Outputs:
    """The inverse of write_outputs."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
        dtypes = json.loads(metadata["dtypes"])
        tensors = {}
        for name in dtypes:
            tensor = file.get_tensor(name)
            tensors[name] = torch.view_as_complex(tensor) if dtypes[name].startswith("complex") else tensor
    return Outputs(tensors, json.loads(metadata["rest"]))


def _without_arrays(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return torch.from_numpy(np.ascontiguousarray(value).reshape(np.shape(value)))
    if isinstance(value, tuple):
        items = [_without_arrays(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list):
        return [_without_arrays(item) for item in value]
    if type(value) is dict:
        return {key: _without_arrays(item) for key, item in value.items()}
    return value
