"""As it was: results and arguments of a call, safe from what later runs write to the call's own memory.

Not here: copies that are made before each call (restore.py), and whether a call may be run again (refusal.py).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from steadysum.guard.attempt import Target
from steadysum.guard.checks.operands import all_finite
from steadysum.guard.checks.protocol import Made
from steadysum.guard.refusal import Watched, memory_of
from steadysum.guard.restore import Contents
from steadysum.guard.tensors import map_tensors, tensors_of

__all__ = ["apart", "made_as_found"]


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


def made_as_found(target: Target, watched: Watched, contents: Contents | None, output: Any) -> Made:
    """What a check looks at: the arguments as the call found them, and which tensors are no longer so.

    Args:
        target: the call.
        watched: what it can reach.
        contents: copies from before it, where there are any. Checks get copies of these: they may run the call again.
        output: what it gave.
    """
    if contents is None:
        return target.made(output)._replace(written=watched.changed())
    changed = contents.changed()
    if not changed.tensors:
        return target.made(output)
    spare = Contents.of(changed.copies)._replace(tensors=changed.tensors)
    args, kwargs = spare.swapped(target.args), spare.swapped(dict(target.kwargs))
    reached = {id(tensor) for tensor in tensors_of((target.args, dict(target.kwargs)))}
    # What stays changed: buffers, and what objects hold; one that wasn't finite before may have its effect.
    written = tuple(
        tensor
        for tensor, copy in zip(changed.tensors, changed.copies, strict=True)
        if id(tensor) not in reached and all_finite(copy)
    )
    return Made(target.callee, args, kwargs, output, written)
