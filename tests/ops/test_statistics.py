"""linear_max_sum: shapes, dtypes, and what it doesn't copy."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from steadysum import MaxSum, linear_max_sum


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])  # the fixture holds no state
@given(leading=st.lists(st.integers(0, 3), max_size=4))
def test_results_have_the_leading_shape_of_input(kernel: str, leading: list[int]) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-3, 4, (*leading, 8), generator=generator).float()
    head = torch.randint(-3, 4, (600, 8), generator=generator).float()
    found = linear_max_sum(x, head, kernel=kernel)
    assert isinstance(found, MaxSum)
    assert found.max.shape == found.sum_exp.shape == torch.Size(leading)
    assert torch.equal(found.max, (x @ head.T).amax(-1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_statistics_are_fp32_and_fp64_for_fp64(dtype: torch.dtype) -> None:
    found = linear_max_sum(torch.ones(2, 8, dtype=dtype), torch.ones(9, 8, dtype=dtype))
    wanted = torch.float64 if dtype == torch.float64 else torch.float32
    assert found.max.dtype == found.sum_exp.dtype == wanted
    assert found.sum_exp.tolist() == [9, 9]


def test_a_16_bit_head_takes_a_bias_in_its_dtype_or_in_fp32(kernel: str) -> None:
    x, head = torch.zeros(1, 8, dtype=torch.bfloat16), torch.zeros(2, 8, dtype=torch.bfloat16)
    bias = torch.tensor([1 + 2.0**-20, 0.0])
    assert linear_max_sum(x, head, bias=bias, kernel=kernel).max.item() == 1 + 2.0**-20
    assert linear_max_sum(x, head, bias=bias.bfloat16(), kernel=kernel).max.item() == 1


@pytest.mark.parametrize(
    "temperature",
    [2, 2.0, torch.tensor(2.0), torch.tensor([2.0]), torch.full((3, 2), 2.0), torch.full((3, 2), 2).double()],
)
def test_temperature_is_a_number_or_one_per_row(kernel: str, temperature: float | torch.Tensor) -> None:
    x, head = torch.full((3, 2, 4), 1.0), torch.full((5, 4), 1.0)
    found = linear_max_sum(x, head, temperature=temperature, kernel=kernel)
    assert torch.equal(found.max, torch.full((3, 2), 2.0))


def test_temperatures_belong_to_their_rows(kernel: str) -> None:
    temperature = 2.0 ** torch.arange(6).view(2, 3)
    found = linear_max_sum(torch.ones(2, 3, 4), torch.ones(5, 4), temperature=temperature, kernel=kernel)
    assert torch.equal(found.max, 4 / temperature)


def test_temperature_divides_after_softcap_and_scale_goes_before_it() -> None:
    x, head = torch.tensor([[100.0]], dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
    found = linear_max_sum(x, head, scale=0.02, softcap=2.0, temperature=0.5)
    assert found.max.item() == pytest.approx(2 * torch.tanh(torch.tensor(1.0, dtype=torch.float64)).item() / 0.5)


def test_operands_are_left_as_they_are(kernel: str) -> None:
    x, head, bias = torch.ones(3, 8), torch.ones(700, 8), torch.ones(700)
    versions = [tensor._version for tensor in (x, head, bias)]
    linear_max_sum(x, head, bias=bias, scale=2.0, softcap=1.0, valid_vocab=5, kernel=kernel)
    assert [tensor._version for tensor in (x, head, bias)] == versions
    assert x.eq(1).all()
    assert head.eq(1).all()
    assert bias.eq(1).all()


@pytest.mark.parametrize("kernel", ["native", "eager"], indirect=True)  # reference copies it to float64, by definition
def test_a_transposed_head_is_not_copied(kernel: str) -> None:
    stored = torch.randn(16, 40_000, generator=torch.Generator().manual_seed(0))  # [H, V], 2.4 MiB
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            if (
                isinstance(out, torch.Tensor)
                and out.untyped_storage().data_ptr() != stored.untyped_storage().data_ptr()
            ):
                largest = max(largest, out.untyped_storage().nbytes())
            return out

    with Watch():
        linear_max_sum(torch.ones(2, 16), stored.T, kernel=kernel)
    assert largest < stored.untyped_storage().nbytes() / 10


def test_parameters_are_taken_without_grad() -> None:
    layer = torch.nn.Linear(8, 9)
    with torch.no_grad():
        found = linear_max_sum(torch.ones(2, 8), layer.weight, bias=layer.bias)
    assert not found.max.requires_grad
    with torch.inference_mode():
        assert torch.equal(linear_max_sum(torch.ones(2, 8), layer.weight, bias=layer.bias).max, found.max)
