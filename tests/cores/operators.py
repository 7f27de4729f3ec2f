"""What the tests of the device share: small problems, and a device for them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from steadysum.cores.device import Device
from steadysum.cores.grid import Geometry
from steadysum.settings import Settings
from steadysum.sync.virtual import VirtualRunner

SMALL = Geometry(8, 16)  # tiles of the small problems
POLICIES = ("legacy", "enhanced", "verified", "duplicated")
ORDERS = ("clock", "random", "pct")


class Given(NamedTuple):
    """Operands of a call."""

    input: Tensor  # [N, H]
    weight: Tensor  # [V, H]
    target: Tensor  # [N]


def given(rows: int, hidden: int, vocab: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Given:
    """Normal operands, and targets of which one in five is on another card."""
    draw = torch.Generator().manual_seed(seed)
    return Given(
        torch.randn(rows, hidden, generator=draw).to(dtype),
        torch.randn(vocab, hidden, generator=draw).to(dtype),
        torch.randint(0, vocab + max(1, vocab // 4), (rows,), generator=draw),
    )


def whole_numbers(rows: int, hidden: int, vocab: int, seed: int = 0) -> Given:
    """Small integers: every product is exact in any order, and no two logits differ by a rounding error."""
    draw = torch.Generator().manual_seed(seed)
    return Given(
        torch.randint(-3, 4, (rows, hidden), generator=draw).float(),
        torch.randint(-3, 4, (vocab, hidden), generator=draw).float(),
        torch.randint(0, vocab, (rows,), generator=draw),
    )


def device(policy: str, cores: int = 4, *, order: str = "clock", seed: int = 0, **others: Any) -> Device:
    """A device of small tiles."""
    changes = others.pop("settings", {})
    settings = Settings(allreduce_policy=POLICIES.index(policy), **changes)
    runner = others.pop("runner", VirtualRunner(seed, order))
    return Device(cores, settings, geometry=others.pop("geometry", SMALL), seed=seed, runner=runner, **others)


def call(on: Device, operands: Given) -> tuple[Tensor, ...]:
    """The operator's five tensors, without logits."""
    found = on.fused_linear_online_max_sum(*operands, 0, operands.weight.shape[0])
    return tuple(part for part in found if part is not None)


def same_bits(first: tuple[Tensor, ...], second: tuple[Tensor, ...]) -> bool:
    """Whether all outputs are equal, NaN included."""
    return all(
        torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
        for a, b in zip(first, second, strict=True)
    )
