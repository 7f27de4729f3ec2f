"""verify="checksum": kernel `native`, whose tiles are verified by checksums, and what has none by samples.

The bits are those of `native`. Statistics and logits are verified by checksums (native_checksums.py); of the softmax,
of the gradients and of sums with class weights or probabilities, some rows and columns are computed again in float64,
as with verify="sampled" (sampled.py). docs/verify.md says what is seen, and what can't be.
"""

from __future__ import annotations

from typing import Final

from steadysum.kernels import native_checksums
from steadysum.kernels.native_checksums import logits, missing, name, promises, statistics, supports
from steadysum.kernels.sampled import Sampled

__all__ = [
    "chunk_statistics",
    "entropy",
    "gradients",
    "log",
    "logits",
    "logprobs",
    "missing",
    "name",
    "promises",
    "softmax",
    "statistics",
    "supports",
]

_sampled: Final = Sampled(native_checksums)

softmax = _sampled.softmax
chunk_statistics = _sampled.chunk_statistics
gradients = _sampled.gradients
logprobs = _sampled.logprobs
entropy = _sampled.entropy
log = _sampled.log
