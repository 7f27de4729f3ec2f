"""How tensors go into a safetensors file: their memory, once for all views of it, and each view's layout as JSON.

A wrong result may come from a stride or from memory that two operands share, so both are kept: what is saved is the
stretch of memory that the views of it cover. Layouts, by path:

    stored          name in the file
    dtype           as torch has it, without "torch."
    shape, stride   in elements
    offset          of the view's first element in what is stored
    device          where the tensor was
    requires_grad   whether it did
    note            what could not be kept; may be empty
    unsaved         in place of all these: why the tensor couldn't be saved

Not here: reading them (bundle_reading.py, which must run without this package).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from steadysum.guard.bundle_reading import DTYPES

__all__ = ["Stretch", "lay_out", "materialise"]

# A view may lie in memory that is mostly not its own: up to this many times its elements are saved with it. One of
# three products that were formed as one (query, key, value) lies in 3 times its own.
_LOOSEST: Final = 4
_SHORT: Final = 1 << 16  # elements that are saved in any case

# The dtypes of every version of the file format; others are saved as their bytes.
_DIRECT: Final = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool}) | frozenset(
    {torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8}
)


class Stretch(NamedTuple):
    """Memory to be saved."""

    tensor: Tensor  # one of those that lie in it
    start: int  # its first element, counted in the tensor's storage
    length: int  # elements
    whole: bool  # it is this tensor alone, contiguous, and is saved in its shape

    @property
    def nbytes(self) -> int:
        """In the file."""
        return self.length * self.tensor.element_size()


def lay_out(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Stretch], dict[str, dict[str, Any]]]:
    """What is to be saved, by its name in the file, and the layout of each tensor in it; nothing is copied yet.

    Args:
        tensors: by path, on any device, of any dtype and layout.
    """
    stretches: dict[str, Stretch] = {}
    layouts: dict[str, dict[str, Any]] = {}
    groups: dict[tuple[Any, ...], list[tuple[str, Tensor]]] = {}
    for path, tensor in tensors.items():
        reason = _why_not(tensor)
        if reason is not None:
            layouts[path] = {"unsaved": reason}
            continue
        bare = tensor.detach().resolve_conj().resolve_neg()
        alone = path if bare.numel() == 0 else None  # empty tensors share no memory, whatever their addresses are
        key = (bare.device, bare.untyped_storage().data_ptr(), bare.dtype, alone)
        groups.setdefault(key, []).append((path, bare))
    for group in groups.values():
        note = ""
        if _is_loose([bare for _, bare in group]) and len(group) > 1:
            note = "it shared memory with others"
            split = [[member] for member in group]
        else:
            split = [group]
        for members in split:
            _add(members, note, stretches, layouts)
    for path, layout in layouts.items():
        if "unsaved" not in layout:
            layout["requires_grad"] = tensors[path].requires_grad
    return stretches, layouts


def materialise(stretch: Stretch) -> Tensor:
    """The memory, on the CPU, as the file can hold it."""
    if stretch.whole:
        values = stretch.tensor.cpu().contiguous()
    else:
        values = stretch.tensor.as_strided((stretch.length,), (1,), stretch.start).cpu()
    return values if values.dtype in _DIRECT else values.reshape(-1).view(torch.uint8)


def _add(
    members: Sequence[tuple[str, Tensor]],
    note: str,
    stretches: dict[str, Stretch],
    layouts: dict[str, dict[str, Any]],
) -> None:
    """One stretch, and its members' layouts."""
    name, bare = members[0]
    alone = len(members) == 1
    loose = alone and _is_loose([bare])
    if loose:
        note = "; ".join(filter(None, [note, f"it had strides {list(bare.stride())}, in memory too large to save"]))
    if alone and (loose or bare.is_contiguous()):
        bare = bare.contiguous() if loose else bare
        stretches[name] = Stretch(bare, int(bare.storage_offset()), bare.numel(), whole=True)
    else:
        start = min(int(member.storage_offset()) for _, member in members)
        end = max(_end(member) for _, member in members)
        stretches[name] = Stretch(bare, start, end - start, whole=False)
    for path, member in members:
        kept = bare if alone else member
        layouts[path] = {
            "stored": name,
            "dtype": str(kept.dtype).removeprefix("torch."),
            "shape": list(kept.shape),
            "stride": list(kept.stride()),
            "offset": int(kept.storage_offset()) - stretches[name].start,
            "device": str(member.device),
            "requires_grad": False,
            "note": note,
        }


def _why_not(tensor: Tensor) -> str | None:
    """Why a tensor can't be saved, or None."""
    if tensor.layout is not torch.strided:
        return f"a tensor of layout {tensor.layout}"
    if tensor.is_meta:
        return "a tensor without values (device meta)"
    name = str(tensor.dtype).removeprefix("torch.")
    if tensor.is_quantized or name not in DTYPES:
        return f"a tensor of dtype {name}"
    if type(tensor) is not Tensor and type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        return f"a tensor of class {type(tensor).__qualname__}"
    try:
        held = tensor.untyped_storage().nbytes()
    except RuntimeError as error:  # tensors of torch.func and the like have none
        return f"a tensor without memory of its own ({error})"
    if tensor.numel() > 0 and held < _end(tensor) * tensor.element_size():
        return "a tensor whose memory has been given back"
    return None


def _is_loose(tensors: Sequence[Tensor]) -> bool:
    """Whether the memory between the first and the last element is far more than the tensors."""
    if any(tensor.numel() == 0 for tensor in tensors):
        return False
    length = max(map(_end, tensors)) - min(int(tensor.storage_offset()) for tensor in tensors)
    return length > max(_SHORT, _LOOSEST * sum(tensor.numel() for tensor in tensors))


def _end(tensor: Tensor) -> int:
    """One beyond the tensor's last element, in its storage."""
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return int(tensor.storage_offset()) + last + 1
