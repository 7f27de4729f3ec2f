"""The native kernel computes the bits that docs/bits.md publishes: it equals a second implementation of that page.

Every comparison is of bits. Only where the page says so (NaN among logits, softmax outputs and weighted sums, "Where no
bits are promised") is a NaN equal to any other NaN. Not here: the elementary functions and the merge alone
(test_published_functions.py), or promises about threads and batches (tests/kernels/).
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings

from steadysum import linear_logprobs, linear_softmax

from .drawing import check_until_all_kinds_are_drawn
from .floats import assert_same_bits, f32, widened
from .published_problems import DTYPES, LAYOUTS, Operands, Problem, operands, problems
from .scalar_bits import WHOLE, Floats, Partial, Scalar, canonical, exact_product


# --- Problems ---------------------------------------------------------------------------------------------------------
def test_every_drawn_problem_has_the_published_bits(native: ModuleType, scalar: Scalar) -> None:
    slow = native.isa() == "portable"
    # hypothesis repeats itself: about a quarter of the examples have been there before
    wanted = 100 if slow else max(350, settings().max_examples)
    few = 1 if slow else 5
    ran: set[Problem] = set()

    def check(problem: Problem) -> None:
        assert_published(native, scalar, problem, operands(problem))
        ran.add(problem)

    kinds: dict[str, Callable[[Problem], bool]] = {
        "wide": lambda p: p.V >= 8192 and p.N > 0,
        "a shard": lambda p: p.beyond is not None and sum(p.beyond) > 0 and p.N > 0,
        "a long reduction": lambda p: p.V <= 1500 and p.H > 512 and p.N > 0,
    }
    check_until_all_kinds_are_drawn(
        problems(), check, wanted, lambda: [kind for kind, holds in kinds.items() if sum(map(holds, ran)) < few]
    )
    assert len(ran) >= (50 if slow else 200)
    assert {problem.dtype for problem in ran} == set(DTYPES)
    assert {problem.input_layout for problem in ran} == set(LAYOUTS)
    assert {problem.weight_layout for problem in ran} == set(LAYOUTS)


def assert_published(native: ModuleType, scalar: Scalar, problem: Problem, given: Operands) -> None:
    """Every output of the kernel for this problem has the bits of the page."""
    N, V = problem.N, problem.V
    logits = scalar.logits(
        widened(given.input),
        widened(given.weight),
        None if given.bias is None else widened(given.bias),
        problem.scale,
        problem.softcap,
        None if given.temperature is None else widened(given.temperature),
    )
    expected = scalar.statistics(logits, problem.valid_vocab, problem.beyond or WHOLE)
    target_logit = logits[np.arange(N), given.target.numpy()]
    logits[:, problem.valid_vocab :] = -np.inf

    found = Partial(*(np.full(N, 12345.0, dtype=np.float32) for _ in Partial._fields))
    found_target = np.full(N, 12345.0, dtype=np.float32)
    found_logits = np.full((N, V), 12345.0, dtype=np.float32)
    call = native.Call(
        input=given.input,
        weight=given.weight,
        bias=given.bias,
        scale=problem.scale,
        softcap=problem.softcap,
        temperature=given.temperature,
        valid_vocab=problem.valid_vocab,
        shard=problem.shard,
        max=found.max,
        sum_exp=found.sum_exp,
        target=given.target,
        target_logit=found_target,
        weighted_sum=found.weighted_sum,
        logits=found_logits,
    )
    native.run([call], problem.threads)
    assert_same_bits(canonical(found_logits), canonical(logits), "logits")
    assert_same_bits(found.max, expected.max, "max")
    assert_same_bits(found.sum_exp, expected.sum_exp, "sum_exp")
    assert_same_bits(canonical(found.weighted_sum), expected.weighted_sum, "weighted_sum")
    assert_same_bits(canonical(found_target), canonical(target_logit), "target_logit")

    logprob = np.empty(N, dtype=np.float32)
    native.logprob(found_target, found.max, found.sum_exp, logprob)
    assert_same_bits(
        canonical(logprob), canonical(scalar.logprob(target_logit, expected.max, expected.sum_exp)), "logprob"
    )
    softmax = found_logits.copy()
    native.softmax_(softmax, found.max, found.sum_exp, problem.threads)
    assert_same_bits(canonical(softmax), canonical(scalar.softmax(logits, expected.max, expected.sum_exp)), "softmax")

    # Without the optional outputs the kernel may take another path; to the same bits.
    alone = tuple(np.full(N, 12345.0, dtype=np.float32) for _ in range(2))
    call = native.Call(
        input=given.input,
        weight=given.weight,
        bias=given.bias,
        scale=problem.scale,
        softcap=problem.softcap,
        temperature=given.temperature,
        valid_vocab=problem.valid_vocab,
        shard=problem.shard,
        max=alone[0],
        sum_exp=alone[1],
    )
    native.run([call], problem.threads)
    assert_same_bits(alone[0], expected.max, "max alone")
    assert_same_bits(alone[1], expected.sum_exp, "sum_exp alone")


@pytest.mark.parametrize(("N", "H", "V"), [(2, 0, 3), (1, 1, 2), (2, 129, 2), (1, 300, 1)])
def test_products_by_exact_arithmetic_are_those_of_the_c_loops(scalar: Scalar, N: int, H: int, V: int) -> None:
    random = np.random.default_rng(H)
    input = f32(random.standard_normal((N, H)))
    weight = f32(random.standard_normal((V, H)))
    assert_same_bits(scalar.logits(input, weight), exact_product(input, weight))


# --- Values that chance seldom draws ----------------------------------------------------------------------------------
FACTORS = (1.0, 0.0, -0.0, -1.0, 1e-45, 1e-40, 0.3, 3e38, float("inf"), float("nan"))


@pytest.mark.parametrize("name", ["scale", "softcap", "temperature"])
def test_extreme_factors_have_the_published_bits(native: ModuleType, scalar: Scalar, name: str) -> None:
    weight = f32([[-np.inf], [-3e38], [-2], [-0.5], [-1e-45], [-0.0], [0.0], [1e-40], [0.5], [2], [3e38]])
    input = f32([[1], [-1], [-0.0], [1e-45]])
    for factor in FACTORS:
        if name == "softcap" and factor == 0:
            continue  # refused by the operator, and without a meaning on the page
        options: dict[str, Any] = {name: f32([factor]) if name == "temperature" else factor}
        assert_kernel_result(native, scalar, input, weight, **options)


@pytest.mark.parametrize("V", [*range(511, 8192, 512), *range(513, 8192, 512), 8192, 8193, 30522, 50257, 128256])
def test_every_shape_of_the_folds_tree_has_the_published_bits(native: ModuleType, scalar: Scalar, V: int) -> None:
    random = np.random.default_rng(V)
    assert_kernel_result(native, scalar, f32([[1], [0.1], [-8]]), f32(random.standard_normal((V, 1)) * 9))


def test_a_row_with_infinite_logits_counts_them_and_its_weighted_sum_is_nan(native: ModuleType, scalar: Scalar) -> None:
    weight = np.zeros((1200, 1), dtype=np.float32)
    weight[[3, 700, 701]] = np.inf
    found = assert_kernel_result(native, scalar, f32([[1], [-1]]), weight)
    assert found.max.tolist() == [np.inf, 0]
    assert found.sum_exp.tolist() == [3, 1197]
    assert np.isnan(found.weighted_sum[0])


def assert_kernel_result(
    native: ModuleType,
    scalar: Scalar,
    input: Floats,
    weight: Floats,
    scale: float = 1.0,
    softcap: float | None = None,
    temperature: Floats | None = None,
    threads: int = 1,
) -> Partial:
    """Logits and statistics of a fp32 problem have the bits of the page; returns the statistics."""
    found, logits = run(native, input, weight, scale, softcap, temperature, threads)
    expected_logits = scalar.logits(input, weight, None, scale, softcap, temperature)
    expected = scalar.statistics(expected_logits, weight.shape[0])
    assert_same_bits(canonical(logits), canonical(expected_logits), f"logits of {scale=} {softcap=} {temperature=}")
    for name, values, wanted in zip(Partial._fields, found, expected, strict=True):
        assert_same_bits(canonical(values) if name == "weighted_sum" else values, wanted, name)
    return found


def run(
    native: ModuleType,
    input: Floats,
    weight: Floats,
    scale: float,
    softcap: float | None,
    temperature: Floats | None,
    threads: int,
) -> tuple[Partial, Floats]:
    """Statistics and logits by the kernel."""
    (N, _), V = input.shape, weight.shape[0]
    found = Partial(*(np.full(N, 12345.0, dtype=np.float32) for _ in Partial._fields))
    logits = np.full((N, V), 12345.0, dtype=np.float32)
    call = native.Call(
        input=input,
        weight=weight,
        scale=scale,
        softcap=softcap,
        temperature=temperature,
        valid_vocab=V,
        max=found.max,
        sum_exp=found.sum_exp,
        weighted_sum=found.weighted_sum,
        logits=logits,
    )
    native.run([call], threads)
    return found, logits


# --- Derived values, as a caller gets them ----------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(12))
def test_a_callers_logprobs_entropies_and_softmax_have_the_published_bits(
    native: ModuleType, scalar: Scalar, seed: int
) -> None:
    torch.manual_seed(seed)
    N, H, V, valid = 5, 48, 700 + 300 * seed, 650 + 290 * seed
    input, weight, bias = torch.randn(N, H), torch.randn(V, H), torch.randn(V)
    input[3] = 0
    bias[:7] = -torch.inf
    target = torch.randint(0, valid, (N,))
    options = {
        "bias": bias,
        "scale": 0.3,
        "softcap": 30.0,
        "temperature": 0.7,
        "valid_vocab": valid,
        "kernel": "native",
    }
    logits = scalar.logits(widened(input), widened(weight), widened(bias), 0.3, 30.0, f32([0.7]))
    expected = scalar.statistics(logits, valid)

    logprobs, entropy = linear_logprobs(input, weight, target, return_entropy=True, **options)  # type: ignore[call-overload]
    chosen = logits[np.arange(N), target.numpy()]
    assert_same_bits(logprobs.numpy(), scalar.logprob(chosen, expected.max, expected.sum_exp), "logprobs")
    assert_same_bits(entropy.numpy(), scalar.entropy(expected), "entropy")
    softmax = linear_softmax(input, weight, **options)  # type: ignore[arg-type]
    logits[:, valid:] = -np.inf
    assert_same_bits(softmax.numpy(), scalar.softmax(logits, expected.max, expected.sum_exp), "softmax")


# --- The caller's floating-point mode ---------------------------------------------------------------------------------
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("scale", [1.0, 0.3, 0.7, 1e-40])
@pytest.mark.parametrize("mode", ["flush", "up", "down", "zero"])
def test_a_callers_floating_point_mode_changes_no_bit_and_is_kept(
    native: ModuleType, scalar: Scalar, mode: str, scale: float, threads: int
) -> None:
    random = np.random.default_rng(4)
    size = 1e-20 if mode == "flush" and scale == 1 else 1.0  # subnormal logits
    input = f32(random.standard_normal((3, 140)) * size)
    weight = f32(random.standard_normal((1100, 140)) * size)
    expected_logits = scalar.logits(input, weight, None, scale, 30.0)
    expected = scalar.statistics(expected_logits, 1100)
    small = torch.tensor([1e-39])
    if mode == "flush":
        if not torch.set_flush_denormal(True):
            pytest.skip("this processor can't flush subnormals")
    else:
        scalar.set_rounding(mode)
    try:
        found, logits = run(native, input, weight, scale, 30.0, None, threads)
        kept = float(small * 0.5) == 0 if mode == "flush" else scalar.rounding() == mode
    finally:
        torch.set_flush_denormal(False)
        scalar.set_rounding("nearest")
    assert kept
    assert_same_bits(logits, expected_logits, "logits")
    for name, values, wanted in zip(Partial._fields, found, expected, strict=True):
        assert_same_bits(values, wanted, name)
