"""The module that stands in for the vendor's: its spellings, both forms of the operator, gradients, compiled code.

Not here: numbers (test_torch_npu_golden.py), errors (test_torch_npu_errors.py), settings (test_torch_npu_stopgaps.py).
"""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.library import opcheck

import steadysum.compat.torch_npu as torch_npu
from steadysum import kernels, linear_softmax, ops
from steadysum.errors import GradientError, OperandTypeError

FORWARD = ("npu_fused_linear_online_max_sum", "fused_linear_online_max_sum")
LOSS = ("npu_fused_cross_entropy_loss_with_max_sum", "fused_cross_entropy_loss_with_max_sum")
BACKWARD = tuple(
    f"{prefix}fused_linear_cross_entropy_loss_with_max_sum_{suffix}"
    for prefix in ("npu_", "")
    for suffix in ("backward", "grad")
)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X, HEAD, GRAD = draw(11, 20), draw(300, 20, seed=1), draw(11, seed=2)
TARGET = torch.tensor([-100, 5, 200, 201, 250, 499, 500, 700, 300, 300, 2**40])
CARD = (X, HEAD, TARGET, 200, 500)


def equal(found: Any, expected: Any) -> bool:
    """Tuples of tensors and None."""
    return all(
        (one is None and other is None) or torch.equal(one, other) for one, other in zip(found, expected, strict=True)
    )


# ---- spellings ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORWARD)
@pytest.mark.parametrize("return_logits", [False, True])
def test_every_spelling_of_the_first_operator(name: str, return_logits: bool) -> None:
    found = getattr(torch_npu, name)(*CARD, return_logits)
    assert equal(found, ops.fused_linear_online_max_sum(*CARD, return_logits))
    by_name = getattr(torch_npu, name)(
        input=X, weight=HEAD, target=TARGET, vocab_start_index=200, vocab_end_index=500, return_logits=return_logits
    )
    assert equal(by_name, found)


@pytest.mark.parametrize("name", LOSS)
def test_every_spelling_of_the_second_operator(name: str) -> None:
    found = ops.fused_linear_online_max_sum(*CARD, True)
    loss, softmax = getattr(torch_npu, name)(
        *found[:3], label_smoothing=0.0, input=None, weight=None, vocab_parallel_logits=found[5]
    )
    assert equal((loss, softmax), ops.fused_cross_entropy_loss_with_max_sum(*found[:3], vocab_parallel_logits=found[5]))
    assert equal(getattr(torch_npu, name)(*found[:3]), (loss, None))


@pytest.mark.parametrize("name", BACKWARD)
def test_every_spelling_of_the_third_operator(name: str) -> None:
    found = ops.fused_linear_online_max_sum(*CARD)
    gradients = getattr(torch_npu, name)(GRAD, X, HEAD, *found[3:5], 0.0, found.logits_max, found.sum_exp_logits, None)
    by_name = getattr(torch_npu, name)(
        GRAD, X, HEAD, *found[3:5], label_smoothing=0.0, logits_max=found[0], sum_exp_logits=found[1], softmax=None
    )
    assert equal(gradients, by_name)


def test_the_module_lists_what_it_offers_and_says_so() -> None:
    assert {*FORWARD, *LOSS, *BACKWARD} <= set(torch_npu.__all__)
    for name in torch_npu.__all__:
        assert getattr(torch_npu, name) is not None
    with pytest.raises(
        AttributeError, match=r"torch_npu has no 'npu_swiglu'; it offers SafeNPUModule, config, contrib, fused"
    ):
        torch_npu.npu_swiglu  # noqa: B018
    assert not hasattr(torch_npu, "npu_grouped_matmul")  # getattr with a default, as scripts resolve spellings


def test_the_registered_operators_begin_with_the_vendors_parameters() -> None:
    schemas = {
        "npu_fused_linear_online_max_sum": "(Tensor input, Tensor weight, Tensor target, int vocab_start_index, "
        "int vocab_end_index, bool return_logits=False, *, ",
        "npu_fused_cross_entropy_loss_with_max_sum": "(Tensor logits_max, Tensor sum_exp_logits, "
        "Tensor predicted_logits, *, float? label_smoothing=0., Tensor? input=None, Tensor? weight=None, "
        "Tensor? vocab_parallel_logits=None, ",
        "npu_fused_linear_cross_entropy_loss_with_max_sum_backward": "(Tensor grad, Tensor input, Tensor weight, "
        "Tensor target_mask, Tensor masked_target, float label_smoothing=0., Tensor? logits_max=None, "
        "Tensor? sum_exp_logits=None, Tensor? softmax=None, *, ",
    }
    for name, parameters in schemas.items():
        schema = getattr(torch.ops.steadysum, name).default._schema
        assert str(schema).startswith(f"steadysum::{name}{parameters}")
        vendors = parameters.count(",") - 1  # one comma is that of the star
        ours = schema.arguments[vendors:]
        assert ours
        assert all(each.has_default_value() and each.kwarg_only for each in ours)


def test_extensions_are_by_keyword_and_have_defaults() -> None:
    extensions = {
        torch_npu.npu_fused_linear_online_max_sum: ("round_logits", "vocab_size", "kernel", "verify"),
        torch_npu.npu_fused_cross_entropy_loss_with_max_sum: ("kernel", "verify"),
        torch_npu.npu_fused_linear_cross_entropy_loss_with_max_sum_backward: (
            "vocab_start_index",
            "vocab_size",
            "grad_dtype",
            "round_logits",
            "kernel",
            "verify",
        ),
    }
    for function, names in extensions.items():
        parameters = inspect.signature(function).parameters
        assert tuple(parameters)[-len(names) :] == names
        for name in names:
            assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
            assert parameters[name].default is not inspect.Parameter.empty


# ---- the report's form -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_two_arguments_give_the_softmax_of_the_report(dtype: torch.dtype) -> None:
    x, weight = draw(2, 5, 20).to(dtype), draw(20, 70, seed=1).to(dtype)
    found = torch_npu.fused_linear_online_max_sum(x, weight)
    assert (found.dtype, found.shape) == (torch.float32, (2, 5, 70))
    assert torch.equal(found, linear_softmax(x, weight.T))
    exact = torch.softmax(x.double() @ weight.double(), dim=-1)
    plain = torch.softmax(x.float() @ weight.float(), dim=-1)
    assert (found - exact).abs().max() <= 2 * (plain - exact).abs().max()


def test_the_softmax_of_the_report_has_gradients() -> None:
    x, weight = X.clone().requires_grad_(), HEAD.T.clone().requires_grad_()
    torch_npu.fused_linear_online_max_sum(x, weight)[:, 3].sum().backward()
    expected = torch.autograd.grad(torch.softmax(x @ weight, dim=1)[:, 3].sum(), (x, weight))
    for one, other in zip((x.grad, weight.grad), expected, strict=True):
        torch.testing.assert_close(one, other)


# ---- results -----------------------------------------------------------------------------------------------------


def test_the_first_result_is_a_tuple_of_six_with_one_attribute_beside() -> None:
    found = torch_npu.npu_fused_linear_online_max_sum(*CARD)
    logits_max, _, _, _, masked_target, vocab_parallel_logits = found
    assert vocab_parallel_logits is None
    assert logits_max is found.logits_max
    assert masked_target is found.masked_target
    assert "target_logits" not in found._fields
    copied = pickle.loads(pickle.dumps(found))
    assert torch.equal(copied.target_logits, found.target_logits)


@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("return_logits", [False, True])
def test_no_rows_give_empty_results_and_gradients_of_zero(rows: int, return_logits: bool) -> None:
    for kernel in ("auto", "eager", "reference"):
        for round_logits in (False, True):
            x = X[:rows].bfloat16()
            found = torch_npu.npu_fused_linear_online_max_sum(
                x, HEAD.bfloat16(), TARGET[:rows], 200, 500, return_logits, round_logits=round_logits, kernel=kernel
            )
            assert [len(each) for each in found[:5]] == [rows] * 5  # the mask, too: 0 or 1 byte
            loss, softmax = torch_npu.npu_fused_cross_entropy_loss_with_max_sum(
                *found[:3], vocab_parallel_logits=found[5], kernel=kernel
            )
            assert loss.shape == (rows,)
            input_grad, weight_grad = torch_npu.npu_fused_linear_cross_entropy_loss_with_max_sum_backward(
                GRAD[:rows],
                x,
                HEAD.bfloat16(),
                *found[3:5],
                0.0,
                *found[:2],
                softmax=softmax,
                round_logits=round_logits,
                kernel=kernel,
            )
            assert input_grad.shape == (rows, 20)
            assert weight_grad.shape == (300, 20)
            assert bool(weight_grad.any()) == (rows > 0)


def test_integers_may_be_numpys() -> None:
    start, end, size = np.int64(200), np.int32(500), np.uint16(900)
    found = torch_npu.npu_fused_linear_online_max_sum(*CARD[:3], start, end, vocab_size=size)  # type: ignore[arg-type]
    assert equal(found, torch_npu.npu_fused_linear_online_max_sum(*CARD, vocab_size=900))
    gradients = [
        torch_npu.npu_fused_linear_cross_entropy_loss_with_max_sum_backward(
            GRAD, X, HEAD, *found[3:5], 0.0, *found[:2], vocab_start_index=at, vocab_size=of
        )
        for at, of in ((start, size), (200, 900))
    ]
    assert equal(*gradients)
    assert equal(
        [torch_npu.safe_fused_linear(X, HEAD.T, np.int8(0))],  # type: ignore[arg-type]
        [torch_npu.safe_fused_linear(X, HEAD.T, 0)],
    )
    with pytest.raises(OperandTypeError, match="type of vocab_end_index: got bool"):
        torch_npu.npu_fused_linear_online_max_sum(*CARD[:4], np.True_)  # type: ignore[arg-type]


def test_strides_change_nothing() -> None:
    x = torch.cat([X, X], dim=1).T.contiguous().T[:, :20]
    w = HEAD.T.contiguous().T
    target = torch.stack([TARGET, TARGET], dim=1)[:, 1]
    found = torch_npu.npu_fused_linear_online_max_sum(x, w, target, 200, 500, True)
    assert equal(found, torch_npu.npu_fused_linear_online_max_sum(*CARD, True))
    assert all(each.is_contiguous() for each in found if each is not None)
    grad = torch.stack([GRAD, GRAD], dim=1)[:, 0]
    backward = torch_npu.npu_fused_linear_cross_entropy_loss_with_max_sum_backward
    mask = torch.stack([found[3], found[3]], dim=1)[:, 0]
    expected = backward(GRAD, X, HEAD, *found[3:5], 0.0, *found[:2])
    assert equal(backward(grad, x, w, mask, found[4], 0.0, *found[:2]), expected)


# ---- gradients ---------------------------------------------------------------------------------------------------


class FusedLoss(torch.autograd.Function):
    """As scripts written for the chip call the operators."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
        largest, total, predicted, mask, masked_target, _ = torch_npu.npu_fused_linear_online_max_sum(
            x, weight, target, 0, weight.shape[0], return_logits=False
        )
        loss, _ = torch_npu.npu_fused_cross_entropy_loss_with_max_sum(largest, total, predicted)
        ctx.save_for_backward(x, weight, mask, masked_target, largest, total)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight, mask, masked_target, largest, total = ctx.saved_tensors
        return *torch_npu.npu_fused_linear_cross_entropy_loss_with_max_sum_backward(
            grad, x, weight, mask, masked_target, logits_max=largest, sum_exp_logits=total
        ), None


def test_a_script_of_the_chip_trains_as_cross_entropy_does() -> None:
    x, weight, target = X.clone().requires_grad_(), HEAD.clone().requires_grad_(), torch.arange(11)
    FusedLoss.apply(x, weight, target).mean().backward()
    loss = torch.nn.functional.cross_entropy(x @ weight.T, target)
    for one, other in zip((x.grad, weight.grad), torch.autograd.grad(loss, (x, weight)), strict=True):
        torch.testing.assert_close(one, other)


def test_operands_that_require_grad_are_taken_as_detached() -> None:
    x, weight = X.clone().requires_grad_(), HEAD.clone().requires_grad_()
    found = torch_npu.npu_fused_linear_online_max_sum(x, weight, *CARD[2:], True)
    assert not any(each.requires_grad for each in found if each is not None)
    assert equal(found, torch_npu.npu_fused_linear_online_max_sum(*CARD, True))


def test_the_registered_operator_says_that_it_has_no_gradients() -> None:
    with pytest.raises(GradientError, match="input with requires_grad in grad mode"):
        torch.ops.steadysum.npu_fused_linear_online_max_sum(X.clone().requires_grad_(), *CARD[1:])


# ---- torch.library, torch.compile --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("options", [{"round_logits": True}, {"vocab_size": 900, "kernel_name": "eager"}])
def test_opcheck_passes_with_our_options(dtype: torch.dtype, options: dict[str, object]) -> None:
    card = (X.to(dtype), HEAD.to(dtype), *CARD[2:])
    for return_logits in (False, True):
        opcheck(torch.ops.steadysum.npu_fused_linear_online_max_sum, (*card, return_logits), options)
    found = torch_npu.npu_fused_linear_online_max_sum(*card, True)
    opcheck(
        torch.ops.steadysum.npu_fused_cross_entropy_loss_with_max_sum,
        found[:3],
        {"vocab_parallel_logits": found.vocab_parallel_logits},
    )
    opcheck(
        torch.ops.steadysum.npu_fused_linear_cross_entropy_loss_with_max_sum_backward,
        (GRAD, card[0], card[1], *found[3:5], 0.0, *found[:2]),
        {**options, "grad_dtype": torch.float32},
    )


def everything(x: Tensor, weight: Tensor, target: Tensor, grad: Tensor, return_logits: bool) -> list[Tensor | None]:
    found = torch_npu.npu_fused_linear_online_max_sum(x, weight, target, 200, 500, return_logits)
    loss, softmax = torch_npu.npu_fused_cross_entropy_loss_with_max_sum(*found[:3], vocab_parallel_logits=found[5])
    gradients = torch_npu.npu_fused_linear_cross_entropy_loss_with_max_sum_backward(
        grad, x, weight, *found[3:5], logits_max=found.logits_max, sum_exp_logits=found[1], grad_dtype=torch.float32
    )
    return [*found, found.target_logits, loss, softmax, *gradients, torch_npu.fused_linear_online_max_sum(x, weight.T)]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("return_logits", [False, True])
def test_compiled_code_has_the_bits_of_eager_code(backend: str, return_logits: bool) -> None:
    torch.compiler.reset()
    compiled = torch.compile(everything, fullgraph=True, backend=backend)
    for rows in (11, 7, 3) if backend != "inductor" else (11,):  # the second one with a symbolic size
        arguments = (X[:rows].bfloat16(), HEAD.bfloat16(), TARGET[:rows], GRAD[:rows], return_logits)
        assert equal(compiled(*arguments), everything(*arguments))


def test_the_attribute_comes_out_of_compiled_code() -> None:
    torch.compiler.reset()
    compiled = torch.compile(torch_npu.npu_fused_linear_online_max_sum, fullgraph=True, backend="aot_eager")
    found, expected = compiled(*CARD), torch_npu.npu_fused_linear_online_max_sum(*CARD)
    assert type(found) is type(expected)
    assert torch.equal(found.target_logits, expected.target_logits)


def test_a_context_names_the_kernel_of_all_three() -> None:
    with kernels.use("reference"):
        found = torch_npu.npu_fused_linear_online_max_sum(*CARD)
        loss, _ = torch_npu.npu_fused_cross_entropy_loss_with_max_sum(*found[:3])
    assert equal(found, torch_npu.npu_fused_linear_online_max_sum(*CARD, kernel="reference"))
    assert torch.equal(loss, found.sum_exp_logits.log() - found.predicted_logits)
