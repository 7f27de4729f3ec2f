"""Tests of steadysum.cores.device: without faults it computes the operator, with the same bits in every order."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given as drawn
from hypothesis import strategies as st

from steadysum.cores.device import Device
from steadysum.cores.grid import VENDOR, Geometry
from steadysum.errors import DeviceError, DtypeError, OperandTypeError, RangeError, ShapeError, TargetRangeError
from steadysum.ops.online_max_sum import fused_linear_online_max_sum
from steadysum.settings import Settings
from steadysum.sync.threads import ThreadRunner

from .operators import ORDERS, POLICIES, call, device, given, same_bits, whole_numbers


def assert_is_the_operator(
    on: Device, rows: int, hidden: int, vocab: int, *, start: int = 0, logits: bool = False
) -> None:
    """Integers exact; sums within 8 ulp of the columns that they add; a product of whole numbers is exact."""
    operands = whole_numbers(rows, hidden, vocab, seed=rows + vocab)
    target = operands.target + start - 1
    ours = on.fused_linear_online_max_sum(operands.input, operands.weight, target, start, start + vocab, logits)
    expected = fused_linear_online_max_sum(operands.input, operands.weight, target, start, start + vocab, logits)
    for name in ("logits_max", "predicted_logits", "target_mask", "masked_target"):
        assert torch.equal(getattr(ours, name), getattr(expected, name)), name
    bound = torch.finfo(torch.float32).eps * (8 + vocab / 2)
    assert torch.allclose(ours.sum_exp_logits, expected.sum_exp_logits, rtol=bound, atol=0)
    assert (ours.vocab_parallel_logits is None) == (expected.vocab_parallel_logits is None)
    if ours.vocab_parallel_logits is not None:
        assert torch.equal(ours.vocab_parallel_logits, expected.vocab_parallel_logits)
    assert torch.equal(ours.target_logits, expected.target_logits)


@pytest.mark.parametrize("policy", POLICIES)
@drawn(
    rows=st.integers(0, 40),
    hidden=st.integers(1, 9),
    vocab=st.integers(1, 60),
    cores=st.integers(1, 6),
    geometry=st.builds(Geometry, st.integers(1, 20), st.integers(1, 30)),
    logits=st.booleans(),
    start=st.sampled_from([0, 7]),
    overlaps=st.booleans(),
)
def test_without_faults_it_is_the_operator(
    policy: str,
    rows: int,
    hidden: int,
    vocab: int,
    cores: int,
    geometry: Geometry,
    logits: bool,
    start: int,
    overlaps: bool,
) -> None:
    on = device(policy, cores, geometry=geometry, settings={"enable_async": overlaps})
    assert_is_the_operator(on, rows, hidden, vocab, start=start, logits=logits)
    assert on.check_integrity() == []


@pytest.mark.parametrize("policy", POLICIES)
def test_the_vendors_tiles_on_24_cores_are_the_operator(policy: str) -> None:
    assert_is_the_operator(device(policy, 24, geometry=VENDOR), 1024, 64, 512)


@pytest.mark.parametrize("policy", POLICIES[1:])
@pytest.mark.parametrize("order", ORDERS)
def test_bits_do_not_depend_on_the_order_of_what_happens(policy: str, order: str) -> None:
    operands = given(37, 5, 90)
    expected = call(device(policy), operands)
    for seed in range(10):
        assert same_bits(call(device(policy, order=order, seed=seed), operands), expected)


@pytest.mark.parametrize("policy", POLICIES[1:])
def test_on_real_threads_it_has_the_bits_of_the_virtual_clock(policy: str) -> None:
    operands = given(37, 5, 90)
    on = device(policy, runner=ThreadRunner())
    assert all(same_bits(call(on, operands), call(device(policy), operands)) for _ in range(3))
    assert on.trace().events


def test_bits_do_not_depend_on_the_callers_threads() -> None:
    operands = given(256, 64, 512)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(call(device("enhanced", geometry=VENDOR), operands))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert same_bits(results[0], results[1])
    assert same_bits(results[0], results[2])


def test_a_call_after_others_of_other_shapes_has_the_bits_of_a_first_call() -> None:
    on = device("legacy")
    for rows, vocab in ((20, 30), (9, 80), (40, 17)):
        call(on, given(rows, 5, vocab, seed=rows))
    operands = given(33, 5, 50)
    assert same_bits(call(on, operands), call(device("legacy"), operands))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_operands_are_widened_exactly(policy: str, dtype: torch.dtype) -> None:
    operands = given(20, 5, 40, dtype=dtype)
    wide = operands._replace(input=operands.input.float(), weight=operands.weight.float())
    assert same_bits(call(device(policy), operands), call(device(policy), wide))


def test_16_bit_logits_are_rounded_before_max_and_exp() -> None:
    operands = given(20, 5, 40, dtype=torch.bfloat16)
    found = device("enhanced", logits_dtype=torch.bfloat16).linear_max_sum(operands.input, operands.weight)
    logits = (operands.input.float() @ operands.weight.float().T).bfloat16().double()
    assert torch.equal(found.max.double(), logits.amax(1))
    expected = (logits - logits.amax(1, keepdim=True)).exp().sum(1)
    assert torch.allclose(found.sum_exp.double(), expected, rtol=1e-5)


@pytest.mark.parametrize("policy", POLICIES)
def test_rows_of_infinities_and_nan_are_the_operators(policy: str) -> None:
    input = torch.eye(4)
    weight = torch.zeros(40, 4)
    weight[3, 0], weight[:, 1], weight[5:7, 2], weight[9, 3] = -torch.inf, -torch.inf, torch.inf, torch.nan
    input[0, 1:] = input[1, 2:] = 0.0
    # Each row of logits is one column of the weight but for 0 x inf: use rows one by one.
    for row in range(4):
        one, column = torch.ones(1, 1), weight[:, row : row + 1].contiguous()
        found = device(policy).linear_max_sum(one, column)
        expected = fused_linear_online_max_sum(one, column, torch.tensor([-1]), 0, 40, kernel="reference")
        assert torch.equal(found.max.nan_to_num(7.0, 8.0, 9.0), expected.logits_max.nan_to_num(7.0, 8.0, 9.0))
        assert torch.allclose(found.sum_exp, expected.sum_exp_logits, rtol=1e-6, equal_nan=True)


def test_the_loss_and_its_gradients_are_those_of_the_operators() -> None:
    on, operands = device("enhanced"), given(12, 6, 130)
    found = on.fused_linear_online_max_sum(*operands, 0, 130, True)
    loss, softmax = on.fused_cross_entropy_loss_with_max_sum(
        found.logits_max,
        found.sum_exp_logits,
        found.predicted_logits,
        vocab_parallel_logits=found.vocab_parallel_logits,
    )
    inside = operands.target < 130
    logits = operands.input.double() @ operands.weight.double().T
    expected = torch.nn.functional.cross_entropy(logits[inside], operands.target[inside], reduction="none")
    assert torch.allclose(loss[inside].double(), expected, rtol=1e-5, atol=1e-5)
    input_grad, weight_grad = on.fused_linear_cross_entropy_loss_with_max_sum_backward(
        torch.ones(12), operands.input, operands.weight, found.target_mask, found.masked_target, softmax=softmax
    )
    assert input_grad.shape == operands.input.shape
    assert weight_grad.shape == operands.weight.shape


def test_the_operands_are_left_alone() -> None:
    operands = given(20, 5, 40)
    copies = [operand.clone() for operand in operands]
    call(device("legacy"), operands)
    assert all(torch.equal(operand, copy) for operand, copy in zip(operands, copies, strict=True))


def test_a_call_tells_what_became_of_it() -> None:
    on = device("enhanced")
    call(on, given(20, 5, 40))
    call(on, given(20, 5, 40))
    assert on.last is not None
    assert (on.last.number, on.last.retries, on.last.error, on.last.noticed) == (2, 0, None, False)
    assert on.trace().events
    assert not on.hazards()


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((torch.zeros(3, 4).double(), torch.zeros(5, 4).double(), torch.zeros(3).long(), 0, 5), DtypeError, "float64"),
        ((torch.zeros(3), torch.zeros(5, 4), torch.zeros(3).long(), 0, 5), ShapeError, "rank of input"),
        ((torch.zeros(3, 4), torch.zeros(5, 3), torch.zeros(3).long(), 0, 5), ShapeError, "allowed"),
        ((torch.zeros(3, 4), torch.zeros(5, 4), torch.full((3,), 5), 0, 6), TargetRangeError, "position [0]"),
        ((torch.zeros(3, 4), torch.zeros(5, 4), torch.zeros(3).long(), 5, 0), RangeError, "vocab_end_index"),
        (([0.0], torch.zeros(5, 4), torch.zeros(3).long(), 0, 5), OperandTypeError, "input"),
    ],
)
def test_bad_operands_are_refused_before_any_work(
    arguments: tuple[object, ...], error: type[Exception], text: str
) -> None:
    on = device("enhanced")
    with pytest.raises(error) as caught:
        on.fused_linear_online_max_sum(*arguments)  # type: ignore[arg-type]
    assert text in str(caught.value)
    assert on.calls == 0


def test_operands_elsewhere_are_refused() -> None:
    operands = given(3, 4, 5)
    with pytest.raises((DeviceError, RuntimeError)):
        call(device("enhanced"), operands._replace(input=operands.input.to("meta"), weight=operands.weight.to("meta")))


@pytest.mark.parametrize("bad", [{"cores": 0}, {"cores": True}, {"cores": 1.5}])
def test_a_device_needs_a_core(bad: dict[str, object]) -> None:
    with pytest.raises(RangeError, match="cores"):
        Device(settings=Settings(), **bad)  # type: ignore[arg-type]
