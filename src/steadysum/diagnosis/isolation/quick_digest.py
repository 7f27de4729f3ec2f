"""A digest of every run's outputs that costs less than a tenth of a matrix product: the runs must not be slowed.

Not steadysum.diagnosis.digest, whose values are written to files and compared for years: that one mixes each word on
its own, ten times as slowly. This one is compared within one diagnosis, and has no meaning beyond it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["bytes_of", "quick_digest"]

# Words of a block: block, weights and temporary lie in the second-level cache, so that the output is read once.
_BLOCK = 1 << 14
_SEED = 0x243F6A88  # digits of pi


def quick_digest(outputs: Iterable[tuple[str, Tensor]], beside: bytes = b"") -> str:
    """128 bits of names, shapes, dtypes and bits, as hexadecimal digits.

    Two sums of 64-bit words are taken over each block, each word times a random odd weight of its place, modulo 2^64:
    of the words, and of their upper halves. A bit that differs is in the lower half of one of the two, so that at least
    33 bits of each difference count: two outputs that differ by chance have the same digest with probability 2^-33 at
    most. The sums of all blocks are hashed together.

    Args:
        outputs: by name, in order; of any strides and device.
        beside: what else belongs to the result.

    Source: multilinear hashing, Carter and Wegman, J. Computer and System Sciences 18 (1979).

    >>> one = torch.tensor([1.0, 2.0])
    >>> quick_digest([("value", one)]) == quick_digest([("value", one.flip(0))])
    False
    """
    whole = hashlib.blake2b(beside, digest_size=16)
    for name, output in outputs:
        raw = bytes_of(output)
        whole.update(f"{name}:{output.dtype}:{tuple(output.shape)}:".encode())
        words = raw[: raw.size // 8 * 8].view(np.int64)
        if words.size:
            whole.update(_sums(words).tobytes())
        whole.update(raw[words.size * 8 :].tobytes())
    return whole.hexdigest()


def bytes_of(output: Tensor) -> npt.NDArray[np.uint8]:
    """The tensor's bytes in order of its elements; a view where they lie so already."""
    flat = output.detach()
    if flat.layout is not torch.strided:
        flat = flat.to_dense()
    if flat.is_quantized:
        flat = flat.int_repr()
    flat = flat.cpu().resolve_conj().resolve_neg().contiguous().view(-1)
    raw: npt.NDArray[np.uint8] = flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8)
    return raw


def _sums(words: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The two sums of each block."""
    blocks = -(-words.size // _BLOCK)
    sums = np.empty((blocks, 2), np.int64)
    lower, upper = _weights()
    for block in range(blocks):
        part = words[block * _BLOCK : (block + 1) * _BLOCK]
        sums[block, 0] = np.dot(part, lower[: part.size])
        sums[block, 1] = np.dot(part >> 32, upper[: part.size])
    return sums


@lru_cache(maxsize=1)
def _weights() -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    drawn: Any = np.random.default_rng(_SEED).integers(-(2**63), 2**63, (2, _BLOCK), dtype=np.int64, endpoint=False)
    drawn |= 1
    return drawn[0], drawn[1]
