"""The vendor's three operators restated in float64 from their description, how far fp32 may be from that, problems.

Written from the table of values and traps, one row at a time where integers are concerned; nothing of steadysum's is
used. Not here: the properties themselves (test_torch_npu_golden.py and its siblings).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch
from hypothesis import strategies as st
from torch import Tensor

UNIT: Final = 2.0**-24  # of rounding, in fp32

# The vendor's tolerance of fp32 results; ours is a tenth of it, without the 0.1 % of outliers allowed there.
RTOL, ATOL = 1e-4, 1e-8
STRICTER: Final = 10.0


@dataclass(frozen=True)
class Problem:
    """The arguments of the vendor's first operator."""

    input: Tensor  # [BT, H]
    weight: Tensor  # [V, H]
    target: Tensor  # [BT]
    start: int
    end: int
    spread: float = 1.0  # of the logits

    @property
    def arguments(self) -> tuple[Tensor, Tensor, Tensor, int, int]:
        return self.input, self.weight, self.target, self.start, self.end


@dataclass(frozen=True)
class Forward:
    """Results in float64, and by how much rounding in fp32 may move each; integers exactly."""

    logits: Tensor  # [BT, V]
    max: Tensor  # [BT]
    sum_exp: Tensor
    predicted: Tensor
    loss: Tensor
    mask: list[int]  # bytes
    masked_target: list[int]
    outside: Tensor  # bool
    logits_bound: Tensor  # [BT, V]
    max_bound: Tensor  # [BT]
    sum_bound: Tensor
    predicted_bound: Tensor
    loss_bound: Tensor

    @property
    def softmax(self) -> Tensor:  # [BT, V]
        return torch.exp(self.logits - self.max[:, None]) / self.sum_exp[:, None]


def forward(problem: Problem, logits: Tensor | None = None) -> Forward:
    """Operators 1 and 2. `logits` are given where they were rounded first; they are then exact."""
    x, w = problem.input.double(), problem.weight.double()
    rows, vocab = x.shape[0], w.shape[0]
    # A dot product in fp32, in any order: each term is rounded at most once per addition, and as a product.
    bound = (x.shape[1] + 1) * UNIT * (x.abs() @ w.abs().T)
    if logits is not None:
        bound = torch.zeros_like(bound)
    z = x @ w.T if logits is None else logits.double()
    largest = z.max(dim=1).values
    distance = z - largest[:, None]
    terms = distance.exp()
    sum_exp = terms.sum(dim=1)
    max_bound = bound.max(dim=1).values
    # Of a term: its logit, the maximum, their difference, exp (1 ulp); of the sum: an addition per term, in any order,
    # and for the at most 2 tiles of V <= 600 one more exp, product and addition.
    relative = bound + max_bound[:, None] + UNIT * distance.abs() + 2 * UNIT
    sum_bound = (terms * relative).sum(dim=1) + (vocab + 8) * UNIT * sum_exp + max_bound * sum_exp
    masked_target, outside = [], []
    for each in problem.target.tolist():
        here = problem.start <= each < problem.end
        outside.append(not here)
        masked_target.append(each - problem.start if here else 0)
    columns = torch.tensor(masked_target, dtype=torch.int64)
    masked = torch.tensor(outside, dtype=torch.bool)
    at = torch.arange(rows)
    predicted = (z[at, columns] - largest).masked_fill(masked, 0.0)
    predicted_bound = (bound[at, columns] + max_bound + UNIT * predicted.abs()).masked_fill(masked, 0.0)
    log_sum = sum_exp.log()
    loss = log_sum - predicted
    return Forward(
        logits=z,
        max=largest,
        sum_exp=sum_exp,
        predicted=predicted,
        loss=loss,
        mask=packed(outside, pad=1 if problem.start > 0 else 0),
        masked_target=masked_target,
        outside=masked,
        logits_bound=bound,
        max_bound=max_bound,
        sum_bound=sum_bound,
        predicted_bound=predicted_bound,
        loss_bound=sum_bound / sum_exp + 2 * UNIT * log_sum.abs() + predicted_bound + UNIT * loss.abs(),
    )


def packed(bits: list[bool], pad: int) -> list[int]:
    """Bytes of a mask: bit i of byte k is row 8 k + i."""
    found = []
    for k in range((len(bits) + 7) // 8):
        byte = 0
        for i in range(8):
            row = 8 * k + i
            byte += (int(bits[row]) if row < len(bits) else pad) << i
        found.append(byte)
    return found


@dataclass(frozen=True)
class Backward:
    """Results in float64, and by how much rounding in fp32 may move each."""

    input_grad: Tensor  # [BT, H]
    weight_grad: Tensor  # [V, H]
    input_bound: Tensor
    weight_bound: Tensor


def backward(problem: Problem, grad: Tensor, known: Forward, softmax: Tensor | None = None) -> Backward:
    """Operator 3: from a given softmax, or from that of the known statistics."""
    x, w, upstream = problem.input.double(), problem.weight.double(), grad.double()[:, None]
    p = known.softmax if softmax is None else softmax.double()
    hit = torch.zeros_like(p)
    hit[torch.arange(p.shape[0]), torch.tensor(known.masked_target, dtype=torch.int64)] = 1.0
    hit = hit.masked_fill(known.outside[:, None], 0.0)
    g = (p - hit) * upstream
    # Of p: as of the terms above, and of the sum; the quotient. Of G: the difference, and the product with grad.
    relative = torch.zeros_like(p)
    if softmax is None:
        distance = (known.logits - known.max[:, None]).abs()
        relative = known.logits_bound + known.max_bound[:, None] + UNIT * distance + 4 * UNIT
        relative = relative + (known.sum_bound / known.sum_exp)[:, None]
    off = upstream.abs() * (p * relative + 3 * UNIT * (p + hit))
    (rows, _), (vocab, _) = x.shape, w.shape
    return Backward(
        input_grad=g @ w,
        weight_grad=g.T @ x,
        input_bound=(off + (vocab + 1) * UNIT * g.abs()) @ w.abs(),
        weight_bound=(off + (rows + 1) * UNIT * g.abs()).T @ x.abs(),
    )


def assert_close(name: str, found: Tensor, exact: Tensor, bound: Tensor | None = None) -> None:
    """Every value is within a tenth of the vendor's tolerance, or with a bound where fp32 can't be: within that.

    That is where values cancel: a logit near 0 that is a sum of large terms has their rounding errors, in any fp32
    computation, the vendor's included.
    """
    allowed = (RTOL * exact.abs() + ATOL) / STRICTER
    if bound is not None:
        allowed = torch.maximum(allowed, bound)
    error = (found.double() - exact).abs()
    assert found.shape == exact.shape, name
    if error.numel() > 0:
        worst = (error - allowed).argmax()
        wrong = not bool((error <= allowed).all())
        assert not wrong, (
            f"{name}: {found.flatten()[worst]:.9g} differs from {exact.flatten()[worst]:.9g} by "
            f"{error.flatten()[worst]:.3g}, allowed {allowed.flatten()[worst]:.3g}"
        )


# ---- problems ----------------------------------------------------------------------------------------------------

DTYPES: Final = (torch.bfloat16, torch.float16, torch.float32)
STARTS: Final = st.one_of(st.just(0), st.integers(0, 700), st.integers(2**24 - 5, 2**24 + 5), st.just(2**31 - 700))


@st.composite
def problems(draw: st.DrawFn, dtypes: tuple[torch.dtype, ...] = DTYPES) -> Problem:
    """BT 0 to 300, H 1 to 200, V 1 to 600; ranges of ids that end before, at or beyond the weight; any targets."""
    rows, hidden, vocab = draw(st.integers(0, 300)), draw(st.integers(1, 200)), draw(st.integers(1, 600))
    start = draw(STARTS)
    end = start + draw(st.one_of(st.just(vocab), st.integers(0, vocab + 100)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    dtype = draw(st.sampled_from(dtypes))
    spread = draw(st.sampled_from((0.1, 1.0, 8.0)))  # of the logits
    input = torch.randn(rows, hidden, generator=generator) * spread
    weight = torch.randn(vocab, hidden, generator=generator) / math.sqrt(hidden)
    if draw(st.booleans()):  # any strides
        weight = weight.T.contiguous().T
        input = torch.cat([input, input], dim=1)[:, :hidden]
    integers = draw(st.sampled_from((torch.int64, torch.int32)))
    least, most = max(start - 50, torch.iinfo(integers).min), min(start + vocab + 50, torch.iinfo(integers).max)
    target = torch.randint(least, most, (rows,), generator=generator)
    anywhere = torch.randint(-(2**31), 2**31 - 1, (rows,), generator=generator)
    target = torch.where(torch.rand(rows, generator=generator) < 0.1, anywhere, target)
    target[torch.rand(rows, generator=generator) < 0.05] = -100
    beyond = (target >= start + vocab) & (target < end)  # refused: there is no such logit
    return Problem(input.to(dtype), weight.to(dtype), target.masked_fill(beyond, -1).to(integers), start, end, spread)
