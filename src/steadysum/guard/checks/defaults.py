"""Which checks suit a target, where the user names none.

Not here: the checks.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional as F

from steadysum.guard.checks.calls import plain_module
from steadysum.guard.checks.checksum import Checksum
from steadysum.guard.checks.embedding_gather import EmbeddingGather
from steadysum.guard.checks.finite import Finite
from steadysum.guard.checks.logits import operator_of
from steadysum.guard.checks.max_sum_invariants import MaxSumInvariants
from steadysum.guard.checks.protocol import Check
from steadysum.guard.checks.rows_sum_to_one import RowsSumToOne

__all__ = ["default_checks"]

_ALWAYS_PRODUCTS: Final = (F.linear, torch.mm, torch.Tensor.mm)
_PRODUCTS_OF_MATRICES: Final = (torch.matmul, operator.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__)


def default_checks(target: Callable[..., Any] | nn.Module) -> tuple[Check, ...]:
    """The checks that see most of what can be wrong with a target, for a few percent of its time.

    Args:
        target: a callable or a module, not guarded yet.

    Returns:
        Checksum for linear layers and products (beside Finite where a product may have more dimensions, which Checksum
        doesn't know), EmbeddingGather for embeddings, RowsSumToOne or MaxSumInvariants for this package's operators,
        Finite for all others.

    >>> default_checks(nn.Linear(2, 3))
    (Checksum(factor=6.0, operands=None),)
    >>> default_checks(torch.sin)
    (Finite(),)
    """
    while isinstance(target, functools.partial):
        target = target.func
    if isinstance(plain_module(target, nn.Linear), nn.Linear) or any(target is each for each in _ALWAYS_PRODUCTS):
        return (Checksum(),)
    if any(target is each for each in _PRODUCTS_OF_MATRICES):
        return (Checksum(), Finite())
    embedding = plain_module(target, nn.Embedding)
    if target is F.embedding or (isinstance(embedding, nn.Embedding) and embedding.max_norm is None):
        return (EmbeddingGather(),)
    name = operator_of(target)
    if name is None:
        return (Finite(),)
    if name == "fused_linear_online_max_sum":  # one of its two forms gives a softmax
        return (MaxSumInvariants(), RowsSumToOne())
    return (RowsSumToOne(),) if name == "linear_softmax" else (MaxSumInvariants(),)
