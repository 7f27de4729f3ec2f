"""Each mistake a user can make in a call has its own clear error: what, the value seen, what is allowed, what to do."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import NamedTuple

import numpy
import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad

from steadysum import Call, _extension, errors, linear_logprobs, linear_max_sum, linear_softmax, regroup

X, HEAD, BIAS, TARGET = torch.ones(3, 8), torch.ones(20, 8), torch.ones(20), torch.zeros(3, dtype=torch.int64)
NAN, INF = float("nan"), float("inf")


class Mistake(NamedTuple):
    call: Callable[[], object]
    error: type[Exception]
    builtin: type[Exception]  # what torch raises for it
    text: str  # the start of the error's text: what, seen, allowed


def max_sum(input: object = X, weight: object = HEAD, **options: object) -> Callable[[], object]:
    return lambda: linear_max_sum(input, weight, **options)  # type: ignore[arg-type]


def logprobs(target: object, **options: object) -> Callable[[], object]:
    return lambda: linear_logprobs(X, HEAD, target, **options)  # type: ignore[call-overload]


def on_two_devices() -> object:
    with FakeTensorMode():  # a CUDA tensor needs no GPU here
        return linear_max_sum(torch.ones(3, 8), torch.ones(20, 8, device="cuda"))


MISTAKES = {
    # Python types
    "input is no tensor": Mistake(
        max_sum([[1.0]]), errors.OperandTypeError, TypeError, "type of input: got list; allowed: torch.Tensor."
    ),
    "weight is an array": Mistake(
        max_sum(X, numpy.ones((20, 8))),
        errors.OperandTypeError,
        TypeError,
        "type of weight: got ndarray; allowed: torch.Tensor. Use torch.as_tensor(...).",
    ),
    "bias is a number": Mistake(
        max_sum(bias=1.0), errors.OperandTypeError, TypeError, "type of bias: got float; allowed: torch.Tensor."
    ),
    "target is a list": Mistake(
        logprobs([0, 1, 2]), errors.OperandTypeError, TypeError, "type of target: got list; allowed: torch.Tensor."
    ),
    "scale is a string": Mistake(
        max_sum(scale="2"), errors.OperandTypeError, TypeError, "type of scale: got str; allowed: a Python number."
    ),
    "scale is a tensor": Mistake(
        max_sum(scale=torch.tensor(2.0)), errors.OperandTypeError, TypeError, "type of scale: got Tensor; allowed:"
    ),
    "softcap is a bool": Mistake(
        max_sum(softcap=True),
        errors.OperandTypeError,
        TypeError,
        "type of softcap: got bool; allowed: a Python number.",
    ),
    "temperature is a list": Mistake(
        max_sum(temperature=[1.0]),
        errors.OperandTypeError,
        TypeError,
        "type of temperature: got list; allowed: a Python number or a tensor.",
    ),
    "valid_vocab is a float": Mistake(
        max_sum(valid_vocab=7.0),
        errors.OperandTypeError,
        TypeError,
        "type of valid_vocab: got float; allowed: int or None.",
    ),
    "kernel is None": Mistake(
        max_sum(kernel=None), errors.OperandTypeError, TypeError, "type of kernel: got NoneType; allowed: str."
    ),
    "dtype of softmax is a string": Mistake(
        lambda: linear_softmax(X, HEAD, dtype="float32"),  # type: ignore[arg-type]
        errors.OperandTypeError,
        TypeError,
        "type of dtype: got str; allowed: torch.dtype or None.",
    ),
    # ranks and sizes
    "input has no dimension": Mistake(
        max_sum(torch.tensor(1.0)),
        errors.ShapeError,
        RuntimeError,
        "rank of input: got []; allowed: [..., H], rank >= 1.",
    ),
    "weight is a vector": Mistake(
        max_sum(X, torch.ones(8)), errors.ShapeError, RuntimeError, "rank of weight: got [8]; allowed: [V, H], rank 2."
    ),
    "weight has a batch dimension": Mistake(
        max_sum(X, torch.ones(2, 20, 8)), errors.ShapeError, RuntimeError, "rank of weight: got [2, 20, 8]; allowed:"
    ),
    "weight is laid out [H, V]": Mistake(
        max_sum(X, HEAD.T),
        errors.ShapeError,
        RuntimeError,
        "hidden sizes of input and weight: got input [3, 8], weight [8, 20]; allowed: input [..., H], weight [V, H] "
        "with one H. A weight laid out [H, V] is passed as weight.T",
    ),
    "the vocabulary is empty": Mistake(
        max_sum(X, torch.ones(0, 8)),
        errors.ShapeError,
        RuntimeError,
        "vocabulary of weight: got [0, 8]; allowed: [V, H], V >= 1.",
    ),
    "bias has another length": Mistake(
        max_sum(bias=torch.ones(21)),
        errors.ShapeError,
        RuntimeError,
        "shape of bias: got [21] for weight [20, 8]; allowed: [20], one value per row of weight.",
    ),
    "bias is a matrix": Mistake(
        max_sum(bias=torch.ones(1, 20)),
        errors.ShapeError,
        RuntimeError,
        "shape of bias: got [1, 20] for weight [20, 8];",
    ),
    "temperature has another length": Mistake(
        max_sum(temperature=torch.ones(4)),
        errors.ShapeError,
        RuntimeError,
        "shape of temperature: got [4]; allowed: [], [1] or [3], the leading shape of input.",
    ),
    "target has another shape": Mistake(
        logprobs(TARGET[:2]),
        errors.TargetShapeError,
        ValueError,
        "shape of target: got [2] for input [3, 8]; allowed: [3], the leading shape of input.",
    ),
    # dtypes
    "input is of integers": Mistake(
        max_sum(X.int(), HEAD.int()),
        errors.DtypeError,
        RuntimeError,
        "dtype of input: got torch.int32; allowed: torch.float32, torch.bfloat16, torch.float16, torch.float64.",
    ),
    "input is of bools": Mistake(
        max_sum(X.bool(), HEAD.bool()), errors.DtypeError, RuntimeError, "dtype of input: got torch.bool; allowed:"
    ),
    "input is complex": Mistake(
        max_sum(X + 0j, HEAD + 0j), errors.DtypeError, RuntimeError, "dtype of input: got torch.complex64; allowed:"
    ),
    "dtypes are mixed": Mistake(
        max_sum(X, HEAD.bfloat16()),
        errors.DtypeError,
        RuntimeError,
        "dtypes of input and weight: got input torch.float32, weight torch.bfloat16; allowed: one dtype for both.",
    ),
    "bias is wider than fp32": Mistake(
        max_sum(bias=BIAS.double()),
        errors.DtypeError,
        RuntimeError,
        "dtype of bias: got torch.float64; allowed: torch.float32, as weight.",
    ),
    "bias is of the other 16 bits": Mistake(
        max_sum(X.bfloat16(), HEAD.bfloat16(), bias=BIAS.half()),
        errors.DtypeError,
        RuntimeError,
        "dtype of bias: got torch.float16; allowed: torch.bfloat16, as weight, or torch.float32.",
    ),
    "temperature is of integers": Mistake(
        max_sum(temperature=torch.ones(3, dtype=torch.int64)),
        errors.DtypeError,
        RuntimeError,
        "dtype of temperature: got torch.int64; allowed:",
    ),
    "target is of floats": Mistake(
        logprobs(TARGET.float()),
        errors.DtypeError,
        RuntimeError,
        "dtype of target: got torch.float32; allowed: torch.int64, torch.int32. A target is the index of a vocabulary",
    ),
    "target holds NaN": Mistake(
        logprobs(torch.full((3,), NAN)), errors.DtypeError, RuntimeError, "dtype of target: got torch.float32; allowed:"
    ),
    "softmax in integers": Mistake(
        lambda: linear_softmax(X, HEAD, dtype=torch.int32),
        errors.DtypeError,
        RuntimeError,
        "dtype of linear_softmax: got torch.int32; allowed: torch.float32,",
    ),
    # devices and layouts
    "input is on meta": Mistake(
        max_sum(X.to("meta"), HEAD.to("meta")),
        errors.DeviceError,
        RuntimeError,
        "device of input: got meta, which holds no values; allowed: a device that holds values. Materialise",
    ),
    "target is on meta": Mistake(
        logprobs(TARGET.to("meta")),
        errors.DeviceError,
        RuntimeError,
        "device of target: got meta, which holds no values;",
    ),
    "operands are on two devices": Mistake(
        on_two_devices,
        errors.DeviceError,
        RuntimeError,
        "devices of input, weight: got input on cpu, weight on cuda:0; allowed: one device for all.",
    ),
    "weight is sparse": Mistake(
        max_sum(X, HEAD.to_sparse()),
        errors.LayoutError,
        RuntimeError,
        "layout of weight: got torch.sparse_coo; allowed: torch.strided. Use .to_dense()",
    ),
    "input is nested": Mistake(
        max_sum(torch.nested.nested_tensor([X[:1], X])),
        errors.LayoutError,
        RuntimeError,
        "layout of input: got a nested tensor; allowed: torch.strided.",
    ),
    # ranges
    "scale is NaN": Mistake(
        max_sum(scale=NAN), errors.RangeError, ValueError, "scale: got nan; allowed: a finite number within"
    ),
    "scale is infinite": Mistake(
        max_sum(scale=INF), errors.RangeError, ValueError, "scale: got inf; allowed: a finite number within"
    ),
    "softcap is 0": Mistake(
        max_sum(softcap=0.0),
        errors.RangeError,
        ValueError,
        "softcap: got 0.0; allowed: a finite number > 0, 1.18e-38 to 3.4e+38. Pass None for no softcap.",
    ),
    "softcap rounds to 0 in fp32": Mistake(
        max_sum(softcap=1e-300),
        errors.RangeError,
        ValueError,
        "softcap: got 1e-300; allowed: a finite number > 0, 1.18e-38",
    ),
    "scale overflows fp32": Mistake(
        max_sum(scale=1e300),
        errors.RangeError,
        ValueError,
        "scale: got 1e+300; allowed: a finite number within +-3.4e+38",
    ),
    "softcap is NaN": Mistake(max_sum(softcap=NAN), errors.RangeError, ValueError, "softcap: got nan; allowed:"),
    "temperature is 0": Mistake(
        max_sum(temperature=0),
        errors.RangeError,
        ValueError,
        "temperature: got 0.0; allowed: a finite number > 0, 1.18e-38 to 3.4e+38.",
    ),
    "temperature rounds to 0 in fp32": Mistake(
        max_sum(temperature=1e-50),
        errors.RangeError,
        ValueError,
        "temperature: got 1e-50; allowed: a finite number > 0",
    ),
    "temperature overflows fp32": Mistake(
        max_sum(temperature=1e39), errors.RangeError, ValueError, "temperature: got 1e+39; allowed: a finite number > 0"
    ),
    "a temperature tensor overflows fp32": Mistake(
        max_sum(temperature=torch.tensor(1e39, dtype=torch.float64)),
        errors.RangeError,
        ValueError,
        "temperature: got 1e+39 at position []; allowed: finite numbers > 0.",
    ),
    "scale is a huge integer": Mistake(
        max_sum(scale=10**400), errors.RangeError, ValueError, "scale: got an integer beyond float64; allowed: a finite"
    ),
    "valid_vocab is a huge integer": Mistake(
        max_sum(valid_vocab=2**70),
        errors.RangeError,
        ValueError,
        "valid_vocab: got 1180591620717411303424; allowed: 1 to 20",
    ),
    "softcap of a regrouped call is 0": Mistake(
        lambda: regroup([Call(X, HEAD, softcap=0.0)]),
        errors.RangeError,
        ValueError,
        "softcap: got 0.0; allowed: a finite",
    ),
    "regroup takes a call for a list": Mistake(
        lambda: regroup(Call(X, HEAD)),  # type: ignore[arg-type]
        errors.OperandTypeError,
        TypeError,
        "type of calls: got Call; allowed: an iterable of steadysum.Call. Put the calls into a list:",
    ),
    "regroup takes a number": Mistake(
        lambda: regroup(5),  # type: ignore[arg-type]
        errors.OperandTypeError,
        TypeError,
        "type of calls: got int; allowed: an iterable",
    ),
    "a row's temperature is negative": Mistake(
        max_sum(temperature=torch.tensor([1.0, -0.5, 1.0])),
        errors.RangeError,
        ValueError,
        "temperature: got -0.5 at position [1]; allowed: finite numbers > 0.",
    ),
    "valid_vocab is 0": Mistake(
        max_sum(valid_vocab=0),
        errors.RangeError,
        ValueError,
        "valid_vocab: got 0; allowed: 1 to 20, the rows of weight.",
    ),
    "valid_vocab is more than V": Mistake(
        max_sum(valid_vocab=21), errors.RangeError, ValueError, "valid_vocab: got 21; allowed: 1 to 20"
    ),
    "target is the ignored index": Mistake(
        logprobs(torch.tensor([0, 1, -100])),
        errors.TargetRangeError,
        IndexError,
        "target: got -100 at position [2]; allowed: 0 to 19. Leave ignored rows (such as -100) out",
    ),
    "target is V": Mistake(
        logprobs(torch.tensor([0, 20, 21])),
        errors.TargetRangeError,
        IndexError,
        "target: got 20 at position [1]; allowed: 0 to 19.",
    ),
    "target is huge": Mistake(
        logprobs(torch.tensor([2**62, 0, 0])),
        errors.TargetRangeError,
        IndexError,
        "target: got 4611686018427387904 at position [0]; allowed: 0 to 19.",
    ),
    "target is a padded column": Mistake(
        logprobs(torch.tensor([0, 9, 10]), valid_vocab=10),
        errors.TargetRangeError,
        IndexError,
        "target: got 10 at position [2]; allowed: 0 to 9 (valid_vocab=10 of 20).",
    ),
    # kernels and grad
    "the kernel is unknown": Mistake(
        max_sum(kernel="cuda"),
        errors.UnknownKernelError,
        ValueError,
        "kernel: got 'cuda'; allowed: 'auto', 'native', 'triton', 'ascend', 'eager', 'reference'. steadysum.kernels.",
    ),
    "temperature requires grad": Mistake(
        max_sum(temperature=torch.ones(3).requires_grad_()),
        errors.GradientError,
        NotImplementedError,
        "gradients of linear_max_sum: got temperature with requires_grad in grad mode; allowed: gradients of input, "
        "weight, bias alone, in reverse mode. Use torch.no_grad(), or pass .detach()ed operands.",
    ),
    "a regrouped head is a parameter": Mistake(
        lambda: regroup([Call(X, torch.nn.Linear(8, 20).weight)]),
        errors.GradientError,
        NotImplementedError,
        "gradients of regroup: got weights with requires_grad in grad mode; allowed: operands without grad.",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_has_its_own_clear_error(mistake: Mistake) -> None:
    with pytest.raises(mistake.error, match="^" + re.escape(mistake.text)) as caught:
        mistake.call()
    assert type(caught.value) is mistake.error
    assert isinstance(caught.value, mistake.builtin)


def test_native_refuses_fp64(needs_native: object) -> None:
    with pytest.raises(
        errors.KernelUnavailableError, match=r"kernel='native' can't run this call: got native computes "
    ):
        linear_max_sum(X.double(), HEAD.double(), kernel="native")


def test_native_that_is_missing_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_extension, "module", None)
    monkeypatch.setattr(_extension, "reason", "the native extension wasn't built")
    with pytest.raises(errors.KernelUnavailableError, match="got the native extension wasn't built; allowed: "):
        linear_max_sum(X, HEAD, kernel="native")


@pytest.mark.parametrize("call", [linear_max_sum, linear_softmax, lambda *args: linear_logprobs(*args, TARGET)])
def test_each_function_checks_the_shared_arguments(call: Callable[[Tensor, Tensor], object]) -> None:
    with pytest.raises(errors.ShapeError, match="hidden sizes of input and weight"):
        call(X, HEAD.T)


def test_forward_mode_differentiation_is_refused_rather_than_zero() -> None:
    def log_sum_exp(x: Tensor) -> Tensor:
        return linear_max_sum(x, HEAD).sum_exp

    with pytest.raises(errors.GradientError, match="input with a tangent of forward-mode differentiation"):
        torch.func.jvp(log_sum_exp, (X,), (torch.ones_like(X),))
    with pytest.raises(errors.GradientError, match="input with a tangent"):
        torch.func.jacfwd(log_sum_exp)(X)
    with forward_ad.dual_level(), pytest.raises(errors.GradientError, match="input with a tangent"):
        log_sum_exp(forward_ad.make_dual(X, torch.ones_like(X)))


def test_operators_called_by_their_torch_name_check_as_well() -> None:
    with pytest.raises(errors.ShapeError, match="vocabulary of weight"):
        torch.ops.steadysum.linear_max_sum(X, HEAD[:0], None, 1.0, None, None, None, "auto")
    with pytest.raises(errors.UnknownKernelError, match="got 'cuda'"):
        torch.ops.steadysum.linear_max_sum(X, HEAD, None, 1.0, None, None, None, "cuda")


def test_compiled_code_tells_the_same_error() -> None:
    compiled = torch.compile(linear_max_sum, backend="eager")
    with pytest.raises(Exception, match="gradients of input, weight, bias alone, in reverse mode"):
        compiled(X, HEAD, temperature=torch.ones(3).requires_grad_())


def test_every_error_class_says_what_it_is_and_has_torchs_builtin() -> None:
    classes = [value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, Exception)]
    public = [each for each in classes if not each.__name__.startswith("_")]  # a private one is a base of some
    assert {each.__name__ for each in public} == set(errors.__all__)
    for each in public:
        assert each.__doc__
        assert each is errors.SteadySumError or len(each.__mro__) > len(errors.SteadySumError.__mro__) + 1
