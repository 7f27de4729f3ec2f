"""Kernel `ascend` without the chip: what it hands to the vendor's operators, what it falls back on, and why it refuses.

The stand-in for torch_npu restates the vendor's operators in float64 from their documentation. That the operators of a
real torch_npu keep to it can't be seen here.
"""

from __future__ import annotations

import importlib.machinery
import math
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import steadysum
import steadysum.compat.torch_npu as torch_npu
from steadysum import kernels
from steadysum.errors import KernelUnavailableError
from steadysum.kernels import Problem, ascend, eager
from steadysum.kernels.target_mask import unpack_mask

ROWS, HIDDEN, VOCAB = 11, 16, 200  # rows beside a multiple of 8, so that the mask has pad bits
FORWARD, BACKWARD = ascend.FORWARD[0], ascend.BACKWARD[0]

FITTING = Problem(rows=ROWS, hidden=HIDDEN, vocab=VOCAB, dtype=torch.bfloat16, device=torch.device("cpu"))


class Call(NamedTuple):
    """One call of an operator of the stand-in."""

    name: str
    positional: tuple[Any, ...]
    named: dict[str, Any]


def _statistics(
    input: Tensor, weight: Tensor, target: Tensor, start: int, end: int, return_logits: bool = False
) -> tuple[Tensor | None, ...]:
    assert not return_logits
    z = input.double() @ weight.double().T
    largest = z.amax(dim=1)
    elsewhere = (target < start) | (target >= end)
    local = torch.where(elsewhere, 0, target - start)
    predicted = torch.where(elsewhere, 0.0, z.gather(1, local[:, None])[:, 0] - largest)
    bits = torch.zeros(-(-len(target) // 8) * 8, dtype=torch.int64)
    bits[: len(target)] = elsewhere
    mask = (bits.reshape(-1, 8) << torch.arange(8)).sum(dim=1).to(torch.uint8)
    sum_exp = (z - largest[:, None]).exp().sum(dim=1)
    return largest.float(), sum_exp.float(), predicted.float(), mask, local, None


def _backward(
    grad: Tensor,
    input: Tensor,
    weight: Tensor,
    target_mask: Tensor,
    masked_target: Tensor,
    label_smoothing: float = 0.0,
    logits_max: Tensor | None = None,
    sum_exp_logits: Tensor | None = None,
    softmax: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    assert label_smoothing == 0.0
    assert logits_max is not None
    assert sum_exp_logits is not None
    assert softmax is None
    assert grad.dtype == logits_max.dtype == sum_exp_logits.dtype == torch.float32
    assert target_mask.dtype == torch.uint8
    rows = torch.arange(len(input))
    elsewhere = (target_mask.long()[rows // 8] >> (rows % 8)) & 1
    z = input.double() @ weight.double().T
    p = (z - logits_max.double()[:, None]).exp() / sum_exp_logits.double()[:, None]
    p[rows, masked_target] -= 1.0 - elsewhere.double()
    p *= grad.double()[:, None]
    return (p @ weight.double()).to(input.dtype), (p.T @ input.double()).to(weight.dtype)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """A torch_npu with an "NPU", which is the CPU; the calls of its operators in order."""
    made: list[Call] = []

    def recorded(name: str, operator: Callable[..., Any]) -> Callable[..., Any]:
        def call(*positional: Any, **named: Any) -> Any:
            made.append(Call(name, positional, named))
            return operator(*positional, **named)

        return call

    module = _module()
    setattr(module, FORWARD, recorded(FORWARD, _statistics))
    setattr(module, BACKWARD, recorded(BACKWARD, _backward))
    monkeypatch.setitem(sys.modules, "torch_npu", module)
    monkeypatch.setattr(torch, "npu", types.SimpleNamespace(is_available=lambda: True), raising=False)
    monkeypatch.setattr(ascend, "DEVICE", "cpu")
    return made


@pytest.fixture
def operands() -> tuple[Tensor, Tensor, Tensor]:
    """input, weight, target."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, HIDDEN, generator=generator).bfloat16()
    weight = torch.randn(VOCAB, HIDDEN, generator=generator).bfloat16()
    return x, weight, torch.randint(VOCAB, (ROWS,), generator=generator)


def _module() -> types.ModuleType:
    module = types.ModuleType("torch_npu")
    module.__spec__ = importlib.machinery.ModuleSpec("torch_npu", None)
    module.__dict__["__version__"] = "2.0.made-up"
    return module


def _same(left: Tensor, right: Tensor) -> bool:
    return left is right or (left.data_ptr() == right.data_ptr() and torch.equal(left, right))


# ---- the calls -----------------------------------------------------------------------------------------------------


def test_statistics_hand_over_the_whole_vocabulary_with_an_exclusive_end(
    calls: list[Call], operands: tuple[Tensor, ...]
) -> None:
    x, weight, _ = operands
    found = steadysum.linear_max_sum(x, weight, kernel="ascend")
    ((name, positional, named),) = calls
    assert name == FORWARD
    assert named == {}
    given_x, given_weight, given_target, start, end = positional
    assert _same(given_x, x)
    assert _same(given_weight, weight)  # never copied
    assert torch.equal(given_target, torch.zeros(ROWS, dtype=torch.int64))
    assert (start, end) == (0, VOCAB)
    expected = steadysum.linear_max_sum(x, weight, kernel="reference")
    assert torch.equal(found.max, expected.max)
    assert torch.equal(found.sum_exp, expected.sum_exp)


def test_the_targets_logit_is_measured_from_the_max(calls: list[Call], operands: tuple[Tensor, ...]) -> None:
    x, weight, target = operands
    logprobs = steadysum.linear_logprobs(x, weight, target, kernel="ascend")
    (call,) = calls
    assert torch.equal(call.positional[2], target)
    exact = steadysum.linear_logprobs(x.double(), weight.double(), target, kernel="reference")
    found = steadysum.linear_max_sum(x, weight, kernel="reference")
    # Four roundings at the size of max (two of target_logit, one of max), and of the result and log(sum_exp).
    allowed = torch.finfo(torch.float32).eps * (2 * found.max.abs() + exact.abs() + found.sum_exp.log())
    assert (logprobs.double() - exact).abs().le(allowed).all()


def test_the_gradients_of_a_loss_are_the_vendors(calls: list[Call], operands: tuple[Tensor, ...]) -> None:
    x, weight, target = (operands[0].requires_grad_(), operands[1].requires_grad_(), operands[2])
    loss = steadysum.linear_cross_entropy(x, weight, target, kernel="ascend")
    loss.backward()  # type: ignore[no-untyped-call]
    assert [call.name for call in calls] == [FORWARD, BACKWARD]
    grad, given_x, given_weight, mask, masked_target = calls[1].positional
    assert torch.equal(grad, torch.full((ROWS,), 1 / ROWS))
    assert _same(given_x, x.detach())
    assert _same(given_weight, weight.detach())
    assert torch.equal(mask, torch.zeros(2, dtype=torch.uint8))
    assert torch.equal(masked_target, target)
    assert list(calls[1].named) == ["logits_max", "sum_exp_logits"]
    expected = _statistics(x.detach(), weight.detach(), target, 0, VOCAB)
    assert torch.equal(calls[1].named["logits_max"], expected[0])
    assert torch.equal(calls[1].named["sum_exp_logits"], expected[1])
    _assert_gradients_of_a_loss((x, weight, target), (loss, x.grad, weight.grad))


def test_gradients_from_known_statistics_compute_none_anew(calls: list[Call], operands: tuple[Tensor, ...]) -> None:
    x, weight, target = (operands[0].requires_grad_(), operands[1].requires_grad_(), operands[2])
    losses = steadysum.linear_cross_entropy(x, weight, target, reduction="none", kernel="ascend")
    upstream = torch.linspace(0.5, 1.5, ROWS)
    losses.backward(upstream)
    assert [call.name for call in calls] == [FORWARD, BACKWARD]
    assert torch.equal(calls[1].positional[0], upstream)


def test_rows_that_take_no_part_are_not_handed_over(calls: list[Call], operands: tuple[Tensor, ...]) -> None:
    x, weight, target = (operands[0].requires_grad_(), operands[1].requires_grad_(), operands[2].clone())
    target[[0, 4]] = -100
    loss = steadysum.linear_cross_entropy(x, weight, target, kernel="ascend")
    loss.backward()  # type: ignore[no-untyped-call]
    assert [len(call.positional[1 if call.name == BACKWARD else 0]) for call in calls] == [ROWS - 2, ROWS - 2]
    assert x.grad is not None
    assert x.grad[[0, 4]].eq(0).all()
    _assert_gradients_of_a_loss((x, weight, target), (loss, x.grad, weight.grad))


def test_a_shards_gradients_are_the_vendors_with_rows_of_other_cards_masked(
    calls: list[Call], operands: tuple[Tensor, ...]
) -> None:
    x, weight, target = operands
    start, vocab = VOCAB, 3 * VOCAB
    target = torch.where(torch.arange(ROWS) % 3 == 0, target, target + start)  # every third is on the first card
    found = steadysum.fused_linear_online_max_sum(
        x, weight, target, start, start + VOCAB, vocab_size=vocab, kernel="ascend"
    )
    upstream = torch.linspace(0.5, 1.5, ROWS)
    of_input, of_weight = steadysum.fused_linear_cross_entropy_loss_with_max_sum_backward(
        upstream,
        x,
        weight,
        found.target_mask,
        found.masked_target,
        logits_max=found.logits_max,
        sum_exp_logits=found.sum_exp_logits,
        vocab_start_index=start,
        vocab_size=vocab,
        kernel="ascend",
    )
    assert [call.name for call in calls] == [FORWARD, BACKWARD]
    grad, _, _, mask, masked_target = calls[1].positional
    assert torch.equal(unpack_mask(mask, ROWS), torch.arange(ROWS) % 3 == 0)
    assert torch.equal(masked_target, found.masked_target.to(torch.int64))
    assert (grad - upstream).abs().max() <= 2 * torch.finfo(torch.float32).eps  # exp sum_exp, rounded twice
    right = steadysum.fused_linear_cross_entropy_loss_with_max_sum_backward(
        upstream.double(),
        x.double(),
        weight.double(),
        found.target_mask,
        found.masked_target,
        logits_max=found.logits_max.double(),
        sum_exp_logits=found.sum_exp_logits.double(),
        kernel="eager",
    )
    _assert_one_rounding(of_input, right[0])
    _assert_one_rounding(of_weight, right[1])


def test_all_three_operators_of_the_vendor_run_where_a_context_names_ascend(
    calls: list[Call], operands: tuple[Tensor, ...]
) -> None:
    x, weight, target = operands
    upstream = torch.linspace(0.5, 1.5, ROWS)
    with kernels.use("ascend"):
        found = torch_npu.npu_fused_linear_online_max_sum(x, weight, target, 0, VOCAB)
        loss, _ = torch_npu.npu_fused_cross_entropy_loss_with_max_sum(*found[:3])
        gradients = torch_npu.npu_fused_linear_cross_entropy_loss_with_max_sum_backward(
            upstream,
            x,
            weight,
            found.target_mask,
            found.masked_target,
            logits_max=found.logits_max,
            sum_exp_logits=found.sum_exp_logits,
        )
    assert [call.name for call in calls] == [FORWARD, BACKWARD]
    wide = [each.double().requires_grad_() for each in (x, weight)]
    exact = torch.nn.functional.cross_entropy(wide[0] @ wide[1].T, target, reduction="none")
    # Roundings of log(sum_exp), of the result, and of target_logit and max: two each at the size of max.
    allowed = torch.finfo(torch.float32).eps * (4 * found.logits_max.abs() + 2 * exact.abs())
    assert (loss.double() - exact).abs().le(allowed).all()
    for gradient, right in zip(gradients, torch.autograd.grad(exact, wide, upstream.double()), strict=True):
        _assert_one_rounding(gradient, right)


@pytest.mark.parametrize("options", [{"kernel": "ascend"}, {}], ids=["by call", "by context"])
def test_a_softmax_or_rounded_logits_are_not_handed_to_the_vendors_gradients(
    options: dict[str, str], calls: list[Call], operands: tuple[Tensor, ...]
) -> None:
    x, weight, target = operands
    found = torch_npu.npu_fused_linear_online_max_sum(x, weight, target, 0, VOCAB, True, kernel="eager")
    softmax = torch.softmax(found[5].float(), dim=1)  # type: ignore[union-attr]
    statistics = {"logits_max": found.logits_max, "sum_exp_logits": found.sum_exp_logits}
    for known, reason in (({"softmax": softmax}, "dense_sum"), ({**statistics, "round_logits": True}, "logits")):
        with (
            kernels.use("auto" if options else "ascend"),
            pytest.raises(KernelUnavailableError, match=f"call needs: {reason}"),
        ):
            torch_npu.npu_fused_linear_cross_entropy_loss_with_max_sum_backward(
                torch.ones(ROWS), x, weight, found.target_mask, found.masked_target, **known, **options
            )


def test_class_weights_are_an_upstream_gradient_of_each_row(calls: list[Call], operands: tuple[Tensor, ...]) -> None:
    x, weight, target = (operands[0].requires_grad_(), operands[1].requires_grad_(), operands[2])
    class_weight = torch.linspace(0.5, 2.0, VOCAB).bfloat16()
    loss = steadysum.linear_cross_entropy(x, weight, target, weight=class_weight, kernel="ascend")
    loss.backward()  # type: ignore[no-untyped-call]
    assert [call.name for call in calls] == [FORWARD, BACKWARD]
    _assert_gradients_of_a_loss((x, weight, target), (loss, x.grad, weight.grad), weight=class_weight)


def test_only_the_wanted_gradients_come_back(calls: list[Call], operands: tuple[Tensor, ...]) -> None:
    x, weight, target = (operands[0].requires_grad_(), operands[1], operands[2])
    steadysum.linear_cross_entropy(x, weight, target, kernel="ascend").backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert weight.grad is None


def test_a_transposed_head_is_made_contiguous(calls: list[Call], operands: tuple[Tensor, ...]) -> None:
    x, weight, _ = operands
    found = steadysum.linear_max_sum(x, weight.T.contiguous().T, kernel="ascend")
    assert calls[0].positional[1].is_contiguous()
    assert torch.equal(found.max, steadysum.linear_max_sum(x, weight, kernel="ascend").max)


@pytest.mark.parametrize("spelling", ascend.FORWARD)
def test_every_spelling_of_the_operator_is_found(
    spelling: str, calls: list[Call], operands: tuple[Tensor, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = _module()
    setattr(module, spelling, _statistics)
    monkeypatch.setitem(sys.modules, "torch_npu", module)
    assert ascend.missing() is None
    x, weight, _ = operands
    expected = steadysum.linear_max_sum(x, weight, kernel="reference")
    assert torch.equal(steadysum.linear_max_sum(x, weight, kernel="ascend").max, expected.max)


@pytest.mark.parametrize("spelling", ascend.BACKWARD)
def test_every_spelling_of_the_gradients_operator_is_found(
    spelling: str, calls: list[Call], operands: tuple[Tensor, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = _module()
    setattr(module, FORWARD, _statistics)
    setattr(module, spelling, _backward)
    monkeypatch.setitem(sys.modules, "torch_npu", module)
    x, weight, target = (operands[0].requires_grad_(), operands[1], operands[2])
    steadysum.linear_cross_entropy(x, weight, target, kernel="ascend").backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None


# ---- the fallback --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", [{"z_loss": 0.1}, {"gradient_filter": 1e-3}])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_other_gradients_are_eagers_from_the_vendors_statistics(
    option: dict[str, float], reduction: str, calls: list[Call], operands: tuple[Tensor, ...]
) -> None:
    def of(kernel: str) -> tuple[Tensor, ...]:
        x, weight = (each.clone().requires_grad_() for each in operands[:2])
        loss = steadysum.linear_cross_entropy(x, weight, operands[2], reduction=reduction, kernel=kernel, **option)
        loss.sum().backward()  # type: ignore[no-untyped-call]
        assert x.grad is not None
        assert weight.grad is not None
        return loss.detach(), x.grad, weight.grad

    loss, *gradients = of("ascend")
    assert [call.name for call in calls] == [FORWARD]
    expected_loss, *expected = of("reference")
    # The rows' losses are counted once, though the coefficients are asked for twice. Sums of 16 terms of fp32.
    assert torch.allclose(loss, expected_loss, rtol=16 * torch.finfo(torch.float32).eps)
    for gradient, right in zip(gradients, expected, strict=True):
        _assert_one_rounding(gradient, right)


def test_a_row_with_an_infinite_logit_is_nan_as_in_torch(calls: list[Call], operands: tuple[Tensor, ...]) -> None:
    x, weight, target = (operands[0].clone(), operands[1].clone().abs(), operands[2])
    x[3] = torch.inf
    x.requires_grad_()
    steadysum.linear_cross_entropy(x, weight, target, reduction="sum", kernel="ascend").backward()  # type: ignore[no-untyped-call]
    assert [call.name for call in calls] == [FORWARD]
    assert x.grad is not None
    assert x.grad[3].isnan().all()
    assert x.grad[[0, 1, 2, 4]].isfinite().all()


def test_no_rows_call_nothing_of_the_vendors_gradients(calls: list[Call], operands: tuple[Tensor, ...]) -> None:
    x, weight, target = (operands[0].requires_grad_(), operands[1].requires_grad_(), torch.full((ROWS,), -100))
    steadysum.linear_cross_entropy(x, weight, target, reduction="sum", kernel="ascend").backward()  # type: ignore[no-untyped-call]
    assert BACKWARD not in [call.name for call in calls]
    assert x.grad is not None
    assert x.grad.eq(0).all()


def test_what_the_operator_does_not_return_is_eagers() -> None:
    assert ascend.logits is eager.logits
    assert ascend.softmax is eager.softmax
    assert ascend.chunk_statistics is eager.chunk_statistics


# ---- the reasons ---------------------------------------------------------------------------------------------------

WITH_GRADIENTS = frozenset({"max_sum", "target_logit", "gradients"})
REFUSED = [
    ({"dtype": torch.float32}, "the vendor's operator computes bfloat16 and float16, not torch.float32"),
    ({"dtype": torch.float64}, "the vendor's operator computes bfloat16 and float16, not torch.float64"),
    ({"hidden": 65535}, "the vendor's operator takes a hidden size of at most 65534, not 65535"),
    ({"bias_dtype": torch.bfloat16}, "the vendor's operator has no bias"),
    ({"scale": 2.0}, "the vendor's operator has no scale"),
    ({"softcap": 30.0}, "the vendor's operator has no softcap"),
    ({"has_temperature": True}, "the vendor's operator has no temperature"),
    ({"valid_vocab": VOCAB - 1}, "the vendor's operator has no valid_vocab"),
    ({"scale": 2.0, "softcap": 30.0}, "the vendor's operator has no scale, softcap"),
    *(
        (
            {"wants": frozenset({"max_sum", other})},
            f"the vendor's operator doesn't return what this call needs: {other}",
        )
        for other in ("weighted_sum", "ties", "column_sum", "dense_sum", "logits")
    ),
    (
        {"wants": frozenset({"max_sum", "target_logit"}), "vocab": 2**24 + 1},
        "the vendor's operator compares targets in float32, exact up to 16777216 columns, not 16777217",
    ),
    (
        {"wants": WITH_GRADIENTS, "vocab": 127},
        "the vendor's gradients need a vocabulary of at least 128 columns, not 127",
    ),
]


@pytest.mark.parametrize(("change", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_a_problem_beyond_the_operator_is_refused_with_the_reason(
    change: dict[str, Any], reason: str, calls: list[Call]
) -> None:
    assert ascend.supports(replace(FITTING, **change)) == reason


def test_problems_at_the_limits_are_supported(calls: list[Call]) -> None:
    for change in (
        {},
        {"dtype": torch.float16},
        {"hidden": 65534},
        {"valid_vocab": VOCAB},
        {"vocab": 2**24 + 1},  # no target
        {"wants": frozenset({"max_sum", "target_logit"}), "vocab": 2**24},
        {"wants": WITH_GRADIENTS, "vocab": 128},
    ):
        assert ascend.supports(replace(FITTING, **change)) is None, change


def test_every_other_device_is_refused() -> None:
    assert ascend.supports(FITTING) == "ascend runs on NPUs, not on cpu"
    assert ascend.supports(replace(FITTING, device=torch.device("cuda", 1))) == "ascend runs on NPUs, not on cuda:1"


def test_a_torch_npu_without_the_gradients_operator_has_statistics_alone(
    calls: list[Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = _module()
    setattr(module, FORWARD, _statistics)
    monkeypatch.setitem(sys.modules, "torch_npu", module)
    assert ascend.supports(FITTING) is None
    assert ascend.supports(replace(FITTING, wants=WITH_GRADIENTS)) == (
        "torch_npu 2.0.made-up has no npu_fused_linear_cross_entropy_loss_with_max_sum_backward "
        "or npu_fused_linear_cross_entropy_loss_with_max_sum_grad "
        "or fused_linear_cross_entropy_loss_with_max_sum_grad"
    )


def test_a_torch_npu_without_the_operator_is_named_with_its_version(
    calls: list[Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch_npu", _module())
    assert ascend.missing() == (
        "torch_npu 2.0.made-up has no npu_fused_linear_online_max_sum or fused_linear_online_max_sum"
    )
    assert ascend.supports(FITTING) == ascend.missing()


def test_a_machine_without_an_npu_is_told_so(calls: list[Call], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "npu", types.SimpleNamespace(is_available=lambda: False))
    assert ascend.missing() == "torch_npu finds no NPU"
    monkeypatch.delattr(torch, "npu")
    assert ascend.missing() == "torch_npu finds no NPU"
    monkeypatch.setattr(torch, "npu", types.SimpleNamespace(), raising=False)
    assert str(ascend.missing()).startswith("torch_npu finds no NPU (AttributeError: ")


def test_our_own_module_in_the_place_of_torch_npu_is_not_the_vendors(
    calls: list[Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its operators would choose `ascend`, which would call them again."""
    monkeypatch.setitem(sys.modules, "torch_npu", steadysum.compat.torch_npu)
    assert ascend.missing() == "steadysum.compat.torch_npu stands in for torch_npu in this process"


def test_a_torch_npu_that_does_not_load_is_told_with_its_error(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch_npu", raising=False)
    (tmp_path / "torch_npu.py").write_text("raise ImportError('libhccl.so: cannot open shared object file\\nmore')")
    monkeypatch.syspath_prepend(tmp_path)
    assert ascend.missing() == ("torch_npu can't be imported (ImportError: libhccl.so: cannot open shared object file)")


def test_a_machine_without_torch_npu_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_npu", None)
    assert ascend.missing() == "torch_npu isn't installed"


# ---- in the registry -----------------------------------------------------------------------------------------------


def test_a_named_ascend_that_cannot_run_raises_and_is_not_replaced(
    calls: list[Call], operands: tuple[Tensor, ...]
) -> None:
    x, weight, _ = operands
    with pytest.raises(KernelUnavailableError, match="can't run this call: got the vendor's operator has no scale"):
        steadysum.linear_max_sum(x, weight, scale=2.0, kernel="ascend")
    with pytest.raises(KernelUnavailableError, match="doesn't return what this call needs: logits"):
        steadysum.linear_softmax(x, weight, kernel="ascend")
    assert calls == []


def test_auto_tries_ascend_before_eager_and_after_the_others() -> None:
    names = kernels.names()
    assert names.index("ascend") == names.index("eager") - 1


def test_it_promises_what_the_vendor_documents() -> None:
    assert ascend.promises == {kernels.Promise.RUN_TO_RUN}


def test_importing_steadysum_never_imports_torch_npu(tmp_path: Any) -> None:
    (tmp_path / "torch_npu.py").write_text("")
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import torch, steadysum; x = torch.ones(2, 8); "
        "steadysum.linear_max_sum(x, x); steadysum.linear_max_sum(x.double(), x.double()); "
        "print('torch_npu' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def _assert_gradients_of_a_loss(
    operands: tuple[Tensor, Tensor, Tensor], found: tuple[Tensor | None, ...], **options: Any
) -> None:
    """Against float64: the loss within the roundings of a sum of fp32 losses, gradients within one of 16 bits."""
    x, weight = (each.detach().double().requires_grad_() for each in operands[:2])
    options = {key: value.double() for key, value in options.items()}
    exact = torch.nn.functional.cross_entropy(x @ weight.T, operands[2], **options)
    exact.backward()  # type: ignore[no-untyped-call]
    loss, *gradients = found
    assert loss is not None
    assert math.isclose(loss.item(), exact.item(), rel_tol=8 * torch.finfo(torch.float32).eps)
    for gradient, right in zip(gradients, (x.grad, weight.grad), strict=True):
        assert gradient is not None
        assert right is not None
        _assert_one_rounding(gradient, right)


def _assert_one_rounding(gradient: Tensor, right: Tensor) -> None:
    """One rounding to bf16; and, in sums that cancel, those of their fp32 terms, each at most the largest result."""
    error = (gradient.double() - right.double()).abs()
    of_sums = 8 * torch.finfo(torch.float32).eps * right.double().abs().max()
    assert error.le(torch.finfo(torch.bfloat16).eps * right.double().abs() + of_sums).all()
