"""As it was: results and arguments of a call, safe from what later runs write to the call's own memory.

Not here: copies that are made before each call (restore.py), and whether a call may be run again (refusal.py).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from steadysum.guard.attempt import Target
from steadysum.guard.checks.operands import all_finite
from steadysum.guard.checks.protocol import Made
from steadysum.guard.refusal import Watched
from steadysum.guard.restore import Contents
from steadysum.guard.tensors import map_tensors, memories_of, memory_of, tensors_of

__all__ = ["apart", "left_changed", "made_as_found", "state_before"]


def apart(output: Any, watched: Watched) -> Any:
    """A result outside of its graph, with copies of what lies in memory of the call's own tensors: reruns write there.

    Args:
        output: a nest of tensors, as the call gave it.
        watched: what the call can reach.
    """
    own = memories_of(watched.tensors)

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


def left_changed(target: Target, watched: Watched, contents: Contents | None) -> tuple[str, ...]:
    """What a bundle can only save as the call has left it, by name: what it has changed, without a copy."""
    if contents is None:
        names = [watched.name_of(tensor) for tensor in watched.changed()]
        why = watched.why_written()  # contents of lists and statistics of batch norm have no version
        return tuple(sorted(set(names))) or (() if why is None else (why,))
    buffers = () if watched.owner is None else watched.owner.buffers()
    saved = {id(tensor) for tensor in (*tensors_of((target.args, dict(target.kwargs))), *buffers)}
    saved &= {id(tensor) for tensor in contents.tensors}
    changed = (*watched.changed(), *contents.changed().tensors)
    return tuple(sorted({watched.name_of(tensor) for tensor in changed if id(tensor) not in saved}))


def state_before(owner: nn.Module, contents: Contents | None) -> dict[str, Any]:
    """A module's state, with the copies of what the call has changed in it."""
    if contents is None:
        return dict(owner.state_dict())
    state = contents.changed().swapped(dict(owner.state_dict(keep_vars=True)))
    return {name: map_tensors(Tensor.detach, value) for name, value in state.items()}
