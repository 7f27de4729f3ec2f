"""Every kernel computes the definition: against float64, with every option, dtype and stride, and for infinite rows."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from steadysum import kernels
from steadysum.kernels.problem import Operands, Statistics

INF, NAN = math.inf, math.nan
Check = Callable[[Tensor, Tensor, Tensor], None]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def operands(input: Tensor, weight: Tensor, **options: object) -> Operands:
    plain = {"bias": None, "scale": 1.0, "softcap": None, "temperature": None, "valid_vocab": weight.shape[0]}
    return Operands(input, weight, **{**plain, **options})  # type: ignore[arg-type]


def compute(kernel: str, call: Operands) -> Statistics:
    (found,) = kernels.get(kernel).statistics([call])
    return found


def plain_logits(call: Operands, dtype: torch.dtype) -> Tensor:
    """The definition in torch, in one precision, on the whole matrix."""
    z = call.input.to(dtype) @ call.weight.to(dtype).T
    if call.bias is not None:
        z = z + call.bias.to(dtype)
    z = z * call.scale
    if call.softcap is not None:
        z = torch.tanh(z / call.softcap) * call.softcap
    if call.temperature is not None:
        z = z / call.temperature.to(dtype)[:, None]
    z[:, call.valid_vocab :] = -INF
    return z


def plain_values(z: Tensor, target: Tensor) -> dict[str, Tensor]:
    p, logp = torch.softmax(z, 1), torch.log_softmax(z, 1)
    return {
        "max": z.amax(1),
        "log_sum_exp": torch.logsumexp(z, 1),
        "target_logit": z.gather(1, target[:, None])[:, 0],
        "entropy": -torch.where(p == 0, 0, p * logp).sum(1),
    }


def values(found: Statistics) -> dict[str, Tensor]:
    assert found.target_logit is not None
    assert found.weighted_sum is not None
    log_sum = found.sum_exp.log()
    return {
        "max": found.max,
        "log_sum_exp": found.max + log_sum,
        "target_logit": found.target_logit,
        "entropy": log_sum - found.weighted_sum / found.sum_exp,
    }


# scale and softcap are powers of two, so that fp32 and float64 use the same numbers
OPTIONS = {
    "none": {},
    "bias": {"bias": draw(1300, seed=1)},
    "scale": {"scale": 0.25},
    "softcap": {"softcap": 4.0},
    "one temperature": {"temperature": torch.tensor([0.5])},
    "temperatures": {"temperature": torch.tensor([0.5, 1, 2, 4, 0.25, 8, 16, 1]).repeat(8)},
    "padded head": {"valid_vocab": 700},
    "all": {
        "bias": draw(1300, seed=1),
        "scale": 0.5,
        "softcap": 8.0,
        "temperature": torch.tensor([0.5]),
        "valid_vocab": 1,
    },
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_statistics_are_as_good_as_a_plain_fp32_computation(
    kernel: str, options: dict[str, object], dtype: torch.dtype, assert_as_good_as: Check
) -> None:
    target = torch.arange(0, 6400, 100) % int(str(options.get("valid_vocab", 1300)))
    call = operands(
        draw(64, 300).to(dtype),
        draw(1300, 300, seed=2).to(dtype),
        target=target,
        wants_weighted_sum=True,
        **options,
    )
    found = values(compute(kernel, call))
    plain = plain_values(plain_logits(call, torch.float32), target)
    exact = plain_values(plain_logits(call, torch.float64), target)
    for name in found:
        assert_as_good_as(found[name], plain[name], exact[name])


@pytest.mark.parametrize("kind", ["peaked", "shifted", "equal", "very negative"])
def test_statistics_of_hard_rows(kernel: str, kind: str, assert_as_good_as: Check) -> None:
    x, head = draw(5, 64), draw(9000, 64, seed=2)
    bias = torch.zeros(9000)
    if kind == "peaked":
        bias[4321] = 80.0
    elif kind == "shifted":
        bias += 2.0**24
    elif kind == "very negative":
        bias -= 500.0
    else:
        head[:] = head[0]
    target = torch.tensor([4321, 0, 8999, 5, 77])
    call = operands(x, head, bias=bias, target=target, wants_weighted_sum=True)
    found = values(compute(kernel, call))
    plain = plain_values(plain_logits(call, torch.float32), target)
    exact = plain_values(plain_logits(call, torch.float64), target)
    for name in found:
        assert_as_good_as(found[name], plain[name], exact[name])


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])  # the fixture holds no state
@given(rows=st.integers(0, 5), hidden=st.integers(1, 40), vocab=st.integers(1, 9000), seed=st.integers(0, 9))
def test_integer_problems_of_any_shape_have_the_exact_max(
    kernel: str, rows: int, hidden: int, vocab: int, seed: int
) -> None:
    # small integers: every product and every order of summation is exact
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(-3, 4, (rows, hidden), generator=generator).float()
    head = torch.randint(-3, 4, (vocab, hidden), generator=generator).float()
    target = torch.randint(0, vocab, (rows,), generator=generator)
    found = compute(kernel, operands(x, head, target=target))
    z = x @ head.T
    assert torch.equal(found.max.float(), z.amax(1))
    assert found.target_logit is not None
    assert torch.equal(found.target_logit.float(), z.gather(1, target[:, None])[:, 0])
    # u per term and level of summation: 2u of exp, and fewer than `vocab` additions of positive terms
    allowed = (vocab + 4) * 2.0**-24
    exact = torch.exp(z.double() - z.double().amax(1, keepdim=True)).sum(1)
    assert (found.sum_exp.double() - exact).abs().le(allowed * exact).all()


@pytest.mark.parametrize(
    ("logits", "wanted"),
    [
        ([0.0, 0.0, -INF], (0.0, 2.0)),
        ([-INF, -INF, -INF], (-INF, 0.0)),
        ([INF, 1.0, INF], (INF, 2.0)),
        ([INF, -INF, 1.0], (INF, 1.0)),
        ([NAN, 1.0, INF], (NAN, NAN)),
        ([NAN, -INF, -INF], (NAN, NAN)),
        ([-200.0, -200.0, -400.0], (-200.0, 2.0)),
        ([3e38, -3e38, 3e38], (3e38, 2.0)),
    ],
)
@pytest.mark.parametrize("repeats", [1, 200, 4000])  # in one tile, in several tiles, in 16 segments
def test_rows_that_are_not_finite(kernel: str, logits: list[float], wanted: tuple[float, float], repeats: int) -> None:
    head = torch.tensor(logits)[:, None].repeat(repeats, 1)
    found = compute(kernel, operands(torch.ones(2, 1), head))
    largest, total = wanted[0], wanted[1] * repeats
    expected = torch.tensor([[largest] * 2, [total] * 2])
    torch.testing.assert_close(
        torch.stack([found.max, found.sum_exp]).float(), expected, rtol=0, atol=0, equal_nan=True
    )


def test_a_nan_stays_in_its_row(kernel: str) -> None:
    x = draw(4, 32)
    clean = compute(kernel, operands(x, draw(700, 32, seed=2)))
    x[2, 5] = NAN
    found = compute(kernel, operands(x, draw(700, 32, seed=2)))
    assert found.max.isnan().tolist() == found.sum_exp.isnan().tolist() == [False, False, True, False]
    keep = [0, 1, 3]
    torch.testing.assert_close(found.max[keep], clean.max[keep])


def test_tiles_of_masked_columns_alone_add_nothing(kernel: str) -> None:
    x, head = draw(4, 32), draw(9000, 32, seed=2)
    head[400:] = 100.0  # would be the largest logits by far
    padded = compute(kernel, operands(x, head, valid_vocab=400))
    real = compute(kernel, operands(x, head[:400]))
    torch.testing.assert_close(padded.max, real.max)
    torch.testing.assert_close(padded.sum_exp, real.sum_exp)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_strides_change_no_value(kernel: str, dtype: torch.dtype) -> None:
    # integers: exact in every order, so that kernels without bits across strides can be held to equality as well
    x = torch.randint(-3, 4, (6, 48), generator=torch.Generator().manual_seed(0)).to(dtype)
    head = torch.randint(-3, 4, (1100, 48), generator=torch.Generator().manual_seed(1)).to(dtype)
    wanted = compute(kernel, operands(x, head))
    wide = torch.full((1100, 97), 9.0, dtype=dtype)
    wide[:, 1:97:2] = head
    offset = torch.empty(1100 * 48 + 1, dtype=dtype)[1:].view(1100, 48).copy_(head)
    for weight in (head.T.contiguous().T, wide[:, 1:97:2], offset):
        found = compute(kernel, operands(x.T.contiguous().T, weight))
        assert torch.equal(found.max, wanted.max)
        assert torch.equal(found.sum_exp, wanted.sum_exp)


def test_a_broadcast_input_is_no_special_case(kernel: str) -> None:
    row, head = draw(1, 16), draw(600, 16, seed=2)
    found = compute(kernel, operands(row.expand(4, 16), head))
    assert torch.equal(found.max, compute(kernel, operands(row.repeat(4, 1), head)).max)


def test_a_lazily_negated_operand_is_resolved(kernel: str) -> None:
    complex_head = torch.complex(draw(600, 16), draw(600, 16, seed=2))
    head = complex_head.conj().imag  # torch sets a bit in place of negating
    assert head.is_neg()
    x = draw(3, 16)
    torch.testing.assert_close(
        compute(kernel, operands(x, head)).max, compute(kernel, operands(x, -complex_head.imag.clone())).max
    )


def test_hidden_size_zero_gives_the_bias(kernel: str) -> None:
    bias = torch.tensor([1.0, 3.0, 3.0])
    found = compute(kernel, operands(torch.ones(2, 0), torch.ones(3, 0), bias=bias))
    assert found.max.tolist() == [3.0, 3.0]


def test_max_and_target_are_logits_bit_for_bit(kernel: str) -> None:
    target = torch.tensor([7, 8999, 512])
    call = operands(draw(3, 100), draw(9000, 100, seed=2), target=target, softcap=30.0, bias=draw(9000, seed=3))
    z = torch.empty(
        3,
        9000,
    )
    found = kernels.get(kernel).logits(call, z)
    separate = compute(kernel, call)
    assert torch.equal(found.max, separate.max)
    assert torch.equal(found.sum_exp, separate.sum_exp)
    assert torch.equal(z.amax(1), found.max.float())
    assert found.target_logit is not None
    assert torch.equal(z.gather(1, target[:, None])[:, 0], found.target_logit.float())


def test_several_calls_at_once_have_the_values_of_each_alone(kernel: str) -> None:
    calls = [
        operands(draw(3, 20), draw(700, 20, seed=1)),
        operands(draw(0, 20), draw(5, 20)),
        operands(draw(1, 9), draw(9000, 9)),
    ]
    for call, found in zip(calls, kernels.get(kernel).statistics(calls), strict=True):
        assert torch.equal(found.max, compute(kernel, call).max)
        assert torch.equal(found.sum_exp, compute(kernel, call).sum_exp)
