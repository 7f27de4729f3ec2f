"""As it was: results and arguments of a call, safe from what later runs write to the call's own memory.

Not here: copies that are made before each call (restore.py), and whether a call may be run again (refusal.py).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from steadysum.guard.refusal import Watched, memory_of
from steadysum.guard.tensors import map_tensors

__all__ = ["apart"]


def apart(output: Any, watched: Watched) -> Any:
    """A result outside of its graph, with copies of what lies in memory of the call's own tensors: reruns write there.

    Args:
        output: a nest of tensors, as the call gave it.
        watched: what the call can reach.
    """
    own = {memory_of(tensor) for tensor in watched.tensors} - {0}

    def kept(tensor: Tensor) -> Tensor:
        return tensor.detach().clone() if memory_of(tensor) in own else tensor.detach()

    return map_tensors(kept, output)
