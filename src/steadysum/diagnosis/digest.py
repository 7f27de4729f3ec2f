"""A 128-bit digest of an operator's outputs, cheap enough to take after every run.

Equal bits give equal digests; a changed, moved or swapped element changes it, since each element's bits are mixed with
its position. Not cryptographic, and no proof against an adversary.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_Words = npt.NDArray[np.uint64]

# The constants of the splitmix64 generator (Steele, Lea, Flood, OOPSLA 2014), which turn a counter into random words.
_GOLDEN = 0x9E3779B97F4A7C15
_MIX1 = 0xBF58476D1CE4E5B9
_MIX2 = 0x94D049BB133111EB
_SEEDS = (0x243F6A8885A308D3, 0x13198A2E03707344)  # digits of pi: one seed for each half of the digest
_MASK = (1 << 64) - 1
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def digest(outputs: Sequence[Tensor]) -> int:
    """The 128-bit digest of the outputs' shapes, dtypes, positions and bits.

    >>> digest([torch.tensor([1.0, 2.0])]) == digest([torch.tensor([2.0, 1.0])])
    False
    """
    halves = [0, 0]
    for place, output in enumerate(outputs):
        words = _words_of(output)
        header = f"{place}:{output.dtype}:{tuple(output.shape)}".encode()
        for half, seed in enumerate(_SEEDS):
            total = int(np.sum(_scramble(words ^ _weights(words.size, seed)), dtype=np.uint64)) if words.size else 0
            halves[half] = _fold(halves[half], header, total)
    return halves[0] << 64 | halves[1]


def _words_of(output: Tensor) -> _Words:
    flat = output.detach().cpu().contiguous().view(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    raw = flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8)
    return raw.view(_UNSIGNED[flat.element_size()]).astype(np.uint64)


@lru_cache(maxsize=8)  # a check digests the same two or three lengths over and over
def _weights(count: int, seed: int) -> _Words:
    counter = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
    return _scramble(counter + np.uint64(seed))


def _scramble(words: _Words) -> _Words:
    """splitmix64's finaliser: a bijection of 64-bit words, so that unequal words stay unequal."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(_MIX1)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(_MIX2)
    return words ^ (words >> np.uint64(31))


def _fold(half: int, header: bytes, total: int) -> int:
    """Chains one output's sum onto the half, behind the output's place, dtype and shape."""
    for word in (*header, total):
        half = (half ^ word) * _MIX1 & _MASK
        half ^= half >> 29
    return half
