"""The caller's autocast, switched off where a product must keep its precision.

Not here: which products those are (each kernel's and operator's own file).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

__all__ = ["without_autocast"]


def without_autocast(device: str) -> AbstractContextManager[object]:
    """A context in which autocast doesn't round products on this type of device; does nothing where it is off."""
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()
