"""Each mistake in a call of the vendor's operators has its own error: what, the value seen, what is allowed, a remedy.

Errors of operands that our own operators share (dtypes, devices, layouts) are in tests/ops/test_bad_inputs.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch._subclasses import FakeTensorMode

import steadysum.compat.torch_npu as torch_npu
from steadysum import errors

X, HEAD, TARGET = torch.ones(3, 8), torch.ones(20, 8), torch.tensor([5, 6, 7])
ROW, MASK = torch.ones(3), torch.zeros(1, dtype=torch.uint8)


class Mistake(NamedTuple):
    call: Callable[[], object]
    error: type[Exception]
    builtin: type[Exception]
    text: str  # of the error, or its start


def first(**changed: object) -> Callable[[], object]:
    arguments = {"input": X, "weight": HEAD, "target": TARGET, "vocab_start_index": 0, "vocab_end_index": 20}
    return lambda: torch_npu.npu_fused_linear_online_max_sum(**{**arguments, **changed})


def second(**changed: object) -> Callable[[], object]:
    arguments = {"logits_max": ROW, "sum_exp_logits": ROW, "predicted_logits": ROW}
    return lambda: torch_npu.npu_fused_cross_entropy_loss_with_max_sum(**{**arguments, **changed})


def third(**changed: object) -> Callable[[], object]:
    arguments = {
        "grad": ROW,
        "input": X,
        "weight": HEAD,
        "target_mask": MASK,
        "masked_target": TARGET,
        "logits_max": ROW,
        "sum_exp_logits": ROW,
    }
    return lambda: torch_npu.npu_fused_linear_cross_entropy_loss_with_max_sum_backward(**{**arguments, **changed})


def report(*arguments: object, **options: object) -> Callable[[], object]:
    return lambda: torch_npu.fused_linear_online_max_sum(*arguments, **options)  # type: ignore[call-overload]


MISTAKES = {
    # operator 1
    "input is a list": Mistake(
        first(input=[1.0]), errors.OperandTypeError, TypeError, "type of input: got list; allowed: torch.Tensor."
    ),
    "start is a float": Mistake(
        first(vocab_start_index=0.0),
        errors.OperandTypeError,
        TypeError,
        "type of vocab_start_index: got float; allowed: int. Use int(...).",
    ),
    "end is True": Mistake(
        first(vocab_end_index=True),
        errors.OperandTypeError,
        TypeError,
        "type of vocab_end_index: got bool; allowed: int",
    ),
    "vocab_size is a string": Mistake(
        first(vocab_size="20"), errors.OperandTypeError, TypeError, "type of vocab_size: got str; allowed: int or None."
    ),
    "start is a tensor": Mistake(
        first(vocab_start_index=torch.tensor(0)),
        errors.OperandTypeError,
        TypeError,
        "type of vocab_start_index: got Tensor; allowed: int. Use int(...).",
    ),
    "end beyond int64": Mistake(
        first(vocab_end_index=2**63),
        errors.RangeError,
        ValueError,
        "vocab_end_index: got an integer beyond int64; allowed: -2^63 to 2^63 - 1.",
    ),
    "vocab_size beyond int64": Mistake(
        first(vocab_size=2**100), errors.RangeError, ValueError, "vocab_size: got an integer beyond int64; allowed"
    ),
    "return_logits is a number": Mistake(
        first(return_logits=1), errors.OperandTypeError, TypeError, "type of return_logits: got int; allowed: bool."
    ),
    "round_logits is None": Mistake(
        first(round_logits=None),
        errors.OperandTypeError,
        TypeError,
        "type of round_logits: got NoneType; allowed: bool.",
    ),
    "kernel is None": Mistake(
        first(kernel=None), errors.OperandTypeError, TypeError, "type of kernel: got NoneType; allowed: str."
    ),
    "kernel is unknown": Mistake(
        first(kernel="npu"), errors.UnknownKernelError, ValueError, "kernel: got 'npu'; allowed"
    ),
    "input of rank 3": Mistake(
        first(input=torch.ones(1, 3, 8)),
        errors.ShapeError,
        RuntimeError,
        "rank of input: got [1, 3, 8]; allowed: [BT, H], rank 2. Flatten the leading dimensions: input.reshape(-1, H)",
    ),
    "hidden sizes differ": Mistake(
        first(input=torch.ones(3, 9)),
        errors.ShapeError,
        RuntimeError,
        "hidden sizes of input and weight: got input [3, 9], weight [20, 8]",
    ),
    "dtypes differ": Mistake(
        first(input=X.bfloat16()),
        errors.DtypeError,
        RuntimeError,
        "dtypes of input and weight: got input torch.bfloat16, weight torch.float32; allowed: one dtype for both.",
    ),
    "target is float": Mistake(
        first(target=ROW), errors.DtypeError, RuntimeError, "dtype of target: got torch.float32; allowed: torch.int64"
    ),
    "target is too long": Mistake(
        first(target=torch.zeros(4, dtype=torch.int64)),
        errors.TargetShapeError,
        ValueError,
        "shape of target: got [4] for input [3, 8]; allowed: [3], the leading shape of input.",
    ),
    "start is negative": Mistake(
        first(vocab_start_index=-1),
        errors.RangeError,
        ValueError,
        "vocab_start_index: got -1; allowed: >= 0. Pass the id of the weight's first row.",
    ),
    "end before start": Mistake(
        first(vocab_start_index=30),
        errors.RangeError,
        ValueError,
        "vocab_end_index: got 20, with vocab_start_index 30; allowed: >= 30, the id after the last of this card.",
    ),
    "vocab_size below the weight's end": Mistake(
        first(vocab_start_index=5, vocab_size=24),
        errors.RangeError,
        ValueError,
        "vocab_size: got 24, with vocab_start_index 5 and 20 rows of weight; allowed: >= 25. Pass the size of",
    ),
    "a target in the range but beyond the weight": Mistake(
        first(vocab_start_index=100, vocab_end_index=200, target=torch.tensor([119, 200, 120])),
        errors.TargetRangeError,
        IndexError,
        "target: got 120 at position [2]; allowed: at most 119 of those below vocab_end_index 200, for weight has 20 "
        "rows, from id 100. Pass vocab_end_index = vocab_start_index + rows of weight.",
    ),
    # operator 2
    "sum is missing": Mistake(
        second(sum_exp_logits=None),
        errors.OperandTypeError,
        TypeError,
        "type of sum_exp_logits: got NoneType; allowed: torch.Tensor.",
    ),
    "maximum is a matrix": Mistake(
        second(logits_max=ROW[None]),
        errors.ShapeError,
        RuntimeError,
        "rank of logits_max: got [1, 3]; allowed: [BT], rank 1. Flatten it with .reshape(-1).",
    ),
    "predicted is shorter": Mistake(
        second(predicted_logits=ROW[:2]),
        errors.ShapeError,
        RuntimeError,
        "shape of predicted_logits: got [2]; allowed: [3], one value per row of logits_max.",
    ),
    "statistics in 16 bits": Mistake(
        second(logits_max=ROW.bfloat16()),
        errors.DtypeError,
        RuntimeError,
        "dtype of logits_max: got torch.bfloat16; allowed: torch.float32.",
    ),
    "label smoothing in the loss": Mistake(
        second(label_smoothing=0.1),
        errors.OptionError,
        RuntimeError,
        "label_smoothing: got 0.1; allowed: 0.0 or None, as in the vendor's operator. linear_cross_entropy has label",
    ),
    "label smoothing is a string": Mistake(
        second(label_smoothing=""),
        errors.OperandTypeError,
        TypeError,
        "type of label_smoothing: got str; allowed: 0.0 or None, as in the vendor's operator. Leave it out.",
    ),
    "label smoothing is False": Mistake(
        second(label_smoothing=False), errors.OperandTypeError, TypeError, "type of label_smoothing: got bool; allowed"
    ),
    "kernel of the loss is unknown": Mistake(
        second(kernel="npu"), errors.UnknownKernelError, ValueError, "kernel: got 'npu'; allowed"
    ),
    "kernel of the loss is missing": Mistake(
        second(kernel="ascend"),
        errors.KernelUnavailableError,
        RuntimeError,
        "kernel='ascend' can't run this call: got ascend runs on NPUs, not on cpu; allowed",
    ),
    "kernel of the loss has no fp64": Mistake(
        second(**dict.fromkeys(("logits_max", "sum_exp_logits", "predicted_logits"), ROW.double()), kernel="native"),
        errors.KernelUnavailableError,
        RuntimeError,
        "kernel='native' can't run this call: got ",
    ),
    "input given to the loss": Mistake(
        second(input=X),
        errors.OptionError,
        RuntimeError,
        "input: got a tensor; allowed: None, as in the vendor's operator. The loss needs no more than the statistics.",
    ),
    "weight given to the loss": Mistake(
        second(weight=HEAD), errors.OptionError, RuntimeError, "weight: got a tensor; allowed: None, as in the vendor's"
    ),
    "logits of other rows": Mistake(
        second(vocab_parallel_logits=torch.ones(4, 20)),
        errors.ShapeError,
        RuntimeError,
        "shape of vocab_parallel_logits: got [4, 20]; allowed: [3, V], one row per row of logits_max.",
    ),
    "logits are integers": Mistake(
        second(vocab_parallel_logits=torch.ones(3, 20, dtype=torch.int64)),
        errors.DtypeError,
        RuntimeError,
        "dtype of vocab_parallel_logits: got torch.int64; allowed: torch.float32",
    ),
    # operator 3
    "label smoothing in backward": Mistake(
        third(label_smoothing=0.1), errors.OptionError, RuntimeError, "label_smoothing: got 0.1; allowed: 0.0 or None"
    ),
    "label smoothing in backward is a string": Mistake(
        third(label_smoothing="x"), errors.OperandTypeError, TypeError, "type of label_smoothing: got str; allowed"
    ),
    "the kernel can't run a given softmax": Mistake(
        third(softmax=torch.ones(3, 20), kernel="ascend"),
        errors.KernelUnavailableError,
        RuntimeError,
        "kernel='ascend' can't run this call: got ascend runs on NPUs, not on cpu; allowed",
    ),
    "neither statistics nor softmax": Mistake(
        third(logits_max=None, sum_exp_logits=None),
        errors.OptionError,
        RuntimeError,
        "logits_max, sum_exp_logits and softmax: got none of them; allowed: softmax, or both logits_max and sum_exp_",
    ),
    "half of the statistics": Mistake(
        third(sum_exp_logits=None),
        errors.OptionError,
        RuntimeError,
        "logits_max, sum_exp_logits and softmax: got logits_max alone; allowed: softmax, or both",
    ),
    "grad of other rows": Mistake(
        third(grad=torch.ones(4)),
        errors.ShapeError,
        RuntimeError,
        "shape of grad: got [4]; allowed: [3], one value per row of input.",
    ),
    "the sum isn't fp32": Mistake(
        third(sum_exp_logits=ROW.double()),
        errors.DtypeError,
        RuntimeError,
        "dtype of sum_exp_logits: got torch.float64; allowed: torch.float32.",
    ),
    "the mask is a bool per row": Mistake(
        third(target_mask=torch.zeros(3, dtype=torch.bool)),
        errors.DtypeError,
        RuntimeError,
        "dtype of target_mask: got torch.bool; allowed: torch.uint8, one bit per row.",
    ),
    "the mask is too short": Mistake(
        third(target_mask=MASK[:0]),
        errors.ShapeError,
        RuntimeError,
        "shape of target_mask: got [0]; allowed: [1] or longer, one bit per row of input, of which there are 3.",
    ),
    "masked_target is float": Mistake(
        third(masked_target=ROW),
        errors.DtypeError,
        RuntimeError,
        "dtype of masked_target: got torch.float32; allowed: torch.int64, torch.int32.",
    ),
    "masked_target beyond the weight": Mistake(
        third(masked_target=torch.tensor([0, 20, 3])),
        errors.TargetRangeError,
        IndexError,
        "masked_target: got 20 at position [1]; allowed: 0 to 19, the rows of weight, where target_mask is 0.",
    ),
    "softmax of another shape": Mistake(
        third(softmax=torch.ones(3, 19)),
        errors.ShapeError,
        RuntimeError,
        "shape of softmax: got [3, 19]; allowed: [3, 20], rows of input, rows of weight.",
    ),
    "softmax of integers": Mistake(
        third(softmax=torch.ones(3, 20, dtype=torch.int8)),
        errors.DtypeError,
        RuntimeError,
        "dtype of softmax: got torch.int8",
    ),
    "grad_dtype is a string": Mistake(
        third(grad_dtype="float32"),
        errors.OperandTypeError,
        TypeError,
        "type of grad_dtype: got str; allowed: torch.dtype or None.",
    ),
    "grad_dtype is an integer's": Mistake(
        third(grad_dtype=torch.int32),
        errors.DtypeError,
        RuntimeError,
        "grad_dtype: got torch.int32; allowed: torch.float32",
    ),
    "vocab_size below the weight's end in backward": Mistake(
        third(vocab_start_index=5, vocab_size=24),
        errors.RangeError,
        ValueError,
        "vocab_size: got 24, with vocab_start_",
    ),
    # the report's form
    "a target alone": Mistake(
        report(X, HEAD, TARGET),
        errors.OperandTypeError,
        TypeError,
        "arguments of fused_linear_online_max_sum: got input, weight, target; allowed: input, weight, target, "
        "vocab_start_index and vocab_end_index; or x and weight [in, out] alone. Pass all five",
    ),
    "logits asked for without a target": Mistake(
        report(X, HEAD.T, return_logits=True),
        errors.OperandTypeError,
        TypeError,
        "arguments of fused_linear_online_max_sum: got input, weight, return_logits; allowed",
    ),
    "the report's weight as [out, in]": Mistake(
        report(X, HEAD),
        errors.ShapeError,
        RuntimeError,
        "x and weight of fused_linear_online_max_sum(x, weight): got x [3, 8], weight [20, 8]; allowed: x [..., in], "
        "weight [in, out]. A weight laid out [out, in] is passed as weight.T.",
    ),
    "x is a list": Mistake(report([1.0], HEAD), errors.OperandTypeError, TypeError, "type of x: got list; allowed"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_has_its_own_error(name: str) -> None:
    call, error, builtin, text = MISTAKES[name]
    with pytest.raises(error, match=rf"^{re.escape(text)}") as caught:
        call()
    assert isinstance(caught.value, builtin)
    assert isinstance(caught.value, errors.SteadySumError)


def test_masked_targets_of_masked_rows_are_not_read() -> None:
    garbage = torch.tensor([0, 2**40, -7])
    mask = torch.tensor([0b110], dtype=torch.uint8)
    found = third(target_mask=mask, masked_target=garbage)()
    expected = third(target_mask=mask, masked_target=torch.zeros(3, dtype=torch.int64))()
    for one, other in zip(found, expected, strict=True):  # type: ignore[call-overload]
        assert torch.equal(one, other)


def test_a_target_beyond_the_weight_is_told_before_any_work() -> None:
    """The product alone would take minutes."""
    huge = torch.ones(1, 1).expand(200_000, 2000), torch.ones(1, 1).expand(500_000, 2000)
    target = torch.zeros(200_000, dtype=torch.int64)
    target[-1] = 500_000
    with pytest.raises(errors.TargetRangeError, match=r"got 500000 at position \[199999\]"):
        torch_npu.npu_fused_linear_online_max_sum(*huge, target, 0, 600_000)


def test_operands_on_two_devices_are_told() -> None:
    with FakeTensorMode(), pytest.raises(errors.DeviceError, match="input on cpu, target on cuda:0"):
        torch_npu.npu_fused_linear_online_max_sum(
            torch.ones(3, 8), torch.ones(20, 8), torch.zeros(3, dtype=torch.int64, device="cuda"), 0, 20
        )
    with FakeTensorMode(), pytest.raises(errors.DeviceError, match=r"grad on cpu.*softmax on cuda:0"):
        torch_npu.npu_fused_linear_cross_entropy_loss_with_max_sum_backward(
            torch.ones(3),
            torch.ones(3, 8),
            torch.ones(20, 8),
            torch.zeros(1, dtype=torch.uint8),
            torch.zeros(3, dtype=torch.int64),
            softmax=torch.ones(3, 20, device="cuda"),
        )


def test_tensors_without_values_are_told() -> None:
    with pytest.raises(errors.DeviceError, match="device of target_mask: got meta"):
        third(target_mask=MASK.to("meta"))()
