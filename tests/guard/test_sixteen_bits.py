"""O2: weights and activations in bf16, results in fp32, parameters and their gradients as they were."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from steadysum.guard.checks.checksum import Checksum
from steadysum.guard.checks.finite import Finite
from steadysum.guard.protection import protect
from steadysum.guard.tensors import same_bits


def rounded(tensor: Tensor) -> Tensor:
    return tensor.detach().to(torch.bfloat16)


def test_a_linear_layer_is_computed_in_bf16_checked_there_and_given_back_in_fp32() -> None:
    layer = nn.Linear(8, 4)
    x = torch.randn(3, 8)
    output = protect(layer, checks=[Checksum()], bundles=None, amp="O2")(x)
    expected = nn.functional.linear(rounded(x), rounded(layer.weight), rounded(layer.bias)).float()
    assert output.dtype == torch.float32
    assert same_bits(output.detach(), expected)


def test_gradients_arrive_at_fp32_parameters_which_stay_as_they_are() -> None:
    layer = nn.Linear(8, 4)
    before = layer.weight.detach().clone()
    x = torch.randn(3, 8, requires_grad=True)
    protect(layer, checks=[Finite()], bundles=None, amp="O2")(x).sum().backward()
    assert layer.weight.grad is not None
    assert (layer.weight.grad.dtype, layer.weight.dtype) == (torch.float32, torch.float32)
    assert same_bits(layer.weight.detach(), before)
    # The gradient of a sum is the sum of the rounded rows, rounded: 3 rows, each result within half a unit of bf16.
    exact = rounded(x).double().sum(0).expand(4, 8)
    allowed = rounded(x).double().abs().sum(0) * 3 * 2.0**-9
    assert bool(((layer.weight.grad.double() - exact).abs() <= allowed).all())


def test_normalisations_keep_their_parameters_and_a_model_its_own_dtype() -> None:
    class Records(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.norm = nn.LayerNorm(8)
            self.seen: dict[str, torch.dtype] = {}

        def forward(self, x: Tensor) -> Tensor:
            self.seen = {"x": x.dtype, "linear": self.linear.weight.dtype, "norm": self.norm.weight.dtype}
            return self.linear(x)  # type: ignore[no-any-return]

    model = Records()
    guarded = protect(model, checks=[Finite()], bundles=None, amp="O2")
    assert guarded(torch.randn(2, 8)).dtype == torch.float32
    assert model.seen == {"x": torch.bfloat16, "linear": torch.bfloat16, "norm": torch.float32}
    assert model.linear.weight.dtype == torch.float32
    assert isinstance(model.linear.weight, nn.Parameter)


def test_functions_get_their_fp32_arguments_rounded_and_others_as_they_are() -> None:
    seen: list[torch.dtype] = []

    def look(x: Tensor, *, ids: Tensor, half: Tensor) -> Tensor:
        seen.extend([x.dtype, ids.dtype, half.dtype])
        return x

    guarded = protect(look, checks=[Finite()], bundles=None, amp="O2")
    output = guarded(torch.ones(2), ids=torch.ones(2, dtype=torch.int64), half=torch.ones(2, dtype=torch.float16))
    assert seen == [torch.bfloat16, torch.int64, torch.float16]
    assert output.dtype == torch.float32
