"""default_checks: each kind of target has checks that fit its calls."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import steadysum
from steadysum.compat import torch_npu
from steadysum.guard import checks
from steadysum.guard.checks import default_checks
from steadysum.nn import LinearCrossEntropyLoss


class Scaled(nn.Embedding):
    """An embedding with a forward of its own."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Scaled, as some models have it."""
        return 8.0 * super().forward(input)


@pytest.mark.parametrize(
    ("target", "names"),
    [
        (nn.Linear(2, 3), ["checksum"]),
        (nn.Linear(2, 3).forward, ["checksum"]),
        (F.linear, ["checksum"]),
        (functools.partial(F.linear, bias=None), ["checksum"]),
        (torch.mm, ["checksum"]),
        (torch.matmul, ["checksum", "finite"]),
        (operator.matmul, ["checksum", "finite"]),
        (nn.Embedding(2, 3), ["embedding_gather"]),
        (F.embedding, ["embedding_gather"]),
        (Scaled(2, 3), ["finite"]),
        (nn.Embedding(2, 3, max_norm=1.0), ["finite"]),
        (steadysum.linear_max_sum, ["max_sum_invariants"]),
        (steadysum.linear_logprobs, ["max_sum_invariants"]),
        (steadysum.linear_cross_entropy, ["max_sum_invariants"]),
        (LinearCrossEntropyLoss(2, 3), ["max_sum_invariants"]),
        (steadysum.linear_softmax, ["rows_sum_to_one"]),
        (torch_npu.fused_linear_online_max_sum, ["max_sum_invariants", "rows_sum_to_one"]),
        (torch_npu.npu_fused_linear_online_max_sum, ["max_sum_invariants", "rows_sum_to_one"]),
        (nn.Sequential(nn.Linear(2, 3)), ["finite"]),
        (torch.sin, ["finite"]),
        (len, ["finite"]),
    ],
)
def test_each_target_has_the_checks_that_suit_it(target: Callable[..., Any], names: list[str]) -> None:
    assert [check.name for check in default_checks(target)] == names


def test_every_check_is_shown_once_and_has_a_name_of_its_own() -> None:
    shown = {
        checks.Checksum(), checks.EmbeddingGather(), checks.Finite(), checks.MaxSumInvariants(), checks.Redundant(),
        checks.RowsSumToOne(), checks.SampledRows(), checks.Custom(bool), checks.Reference(len),
    }  # fmt: skip
    names = {check.name for check in shown}
    assert len(names) == 9
    assert all(name == name.lower() and name.replace("_", "").isalpha() for name in names)
