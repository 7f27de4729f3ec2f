"""Every operator is a good citizen of torch.library: opcheck passes, and compiled code has eager code's bits."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.library import opcheck

from steadysum import Call, MaxSum, kernels, linear_logprobs, linear_max_sum, linear_softmax, regroup
from steadysum.maxsum import merge


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X, HEAD, BIAS = draw(2, 3, 32), draw(700, 32, seed=1), draw(700, seed=2)
TARGET = torch.arange(6).view(2, 3)
PLAIN = (X, HEAD, None, 1.0, None, None, None, "auto")
FULL = (X, HEAD, BIAS, 0.5, 30.0, 2.0 ** torch.arange(6).view(2, 3), 600, "auto")
NARROW = (X.bfloat16(), HEAD.T.contiguous().T.bfloat16(), BIAS.bfloat16(), *FULL[3:])  # [H, V] in memory
ROWS = (draw(4), draw(4).exp(), draw(4, seed=1), draw(4, seed=1).exp())
ALL = [True, True, True]
ROW = draw(2, 3, seed=3)
# ignore_index, label_smoothing, z_loss, gradient_filter, precision, return_stats
LOSS = (-100, 0.0, 0.0, 0.0, None, False)
FULL_LOSS = (3, 0.1, 1e-2, 1e-3, None, True)
PLAIN_LOSS = (*PLAIN, TARGET, None, "mean", *LOSS)
LOSSES = [
    PLAIN_LOSS,
    (*FULL[:5], None, *FULL[6:], TARGET, HEAD[:, 0].exp(), "mean", *FULL_LOSS),
    (*NARROW[:5], None, *NARROW[6:], draw(2, 3, 700).softmax(-1), None, "sum", *FULL_LOSS),
    (*PLAIN, TARGET, None, "mean", *LOSS[:4], torch.bfloat16, False),
]
STATISTICS = tuple(linear_max_sum(X, HEAD))
# The vendor's operators: [BT, H], target, vocab_start_index, vocab_end_index, return_logits; not by keyword here
MATRIX, PER_ROW = X.flatten(0, 1), [each.flatten() for each in STATISTICS]
CARD = (MATRIX, HEAD, TARGET.flatten().int() + 100, 103, 803)
MASK, MASKED = torch.tensor([0b000111], dtype=torch.uint8), torch.tensor([0, 0, 0, 0, 1, 2])
SAMPLES = {
    "linear_max_sum": [PLAIN, FULL, NARROW],
    "linear_softmax": [(*PLAIN, torch.float32), (*FULL, torch.bfloat16), (*NARROW, torch.float32)],
    "linear_logprobs": [(*PLAIN, TARGET), (*FULL, TARGET), (*NARROW, TARGET)],
    "linear_logprobs_and_entropy": [(*PLAIN, TARGET), (*FULL, TARGET), (*NARROW, TARGET)],
    "regroup": [([X, X[0]], [HEAD, HEAD], [BIAS, None], [1.0, 2.0], [0.0, 30.0], [None, FULL[5][0]], [700, 9], "auto")],
    "merge": [ROWS],
    "linear_token_loss": LOSSES,
    "linear_cross_entropy": LOSSES,
    "linear_cross_entropy_and_gradients": [(*sample, [True, False, sample[2] is not None]) for sample in LOSSES],
    "linear_max_sum_and_ties": [PLAIN, FULL, NARROW],
    "linear_max_sum_backward": [
        (*PLAIN, *STATISTICS, torch.ones(2, 3), None, ROW, [True, True, False]),
        (*FULL, *linear_max_sum(X, HEAD, bias=BIAS), torch.ones(2, 3), ROW, ROW, ALL),
    ],
    "linear_softmax_backward": [(*FULL, torch.float32, draw(2, 3, 700), ALL)],
    "linear_logprobs_backward": [(*PLAIN, TARGET, *STATISTICS, ROW, [False, True, False])],
    "linear_logprobs_and_entropy_backward": [(*PLAIN, TARGET, ROW, *STATISTICS, ROW, ROW, [True, True, False])],
    "linear_token_loss_backward": [(*PLAIN_LOSS, *STATISTICS, ROW, [True, True, False])],
    "npu_fused_linear_online_max_sum": [CARD, (*CARD, True), (NARROW[0].flatten(0, 1), NARROW[1], *CARD[2:], True)],
    "shard_max_sum": [CARD, (*CARD, True), (NARROW[0].flatten(0, 1), NARROW[1], *CARD[2:], True)],
    "npu_fused_cross_entropy_loss_with_max_sum": [(*PER_ROW, -PER_ROW[1])],
    "npu_fused_linear_cross_entropy_loss_with_max_sum_backward": [
        (ROW.flatten(), MATRIX, HEAD, MASK, MASKED, 0.0, *PER_ROW),
        (ROW.flatten(), MATRIX, HEAD, MASK, MASKED, 0.0, None, None, draw(6, 700).softmax(-1)),
    ],
    "linear_cross_entropy_backward": [(*PLAIN_LOSS, [X, HEAD], torch.tensor(2.0), [True, True, False])],
}


def registered() -> list[str]:
    program = (
        "import torch, steadysum; print(*(n for n in torch._C._dispatch_get_all_op_names() if 'steadysum::' in n))"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}; {program}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return [name.removeprefix("steadysum::") for name in done.stdout.split()]


def test_every_registered_operator_has_samples() -> None:
    assert sorted(registered()) == sorted(SAMPLES)


@pytest.mark.parametrize(
    ("name", "arguments"), [(name, arguments) for name, samples in SAMPLES.items() for arguments in samples]
)
def test_opcheck_passes(name: str, arguments: tuple[object, ...]) -> None:
    opcheck(getattr(torch.ops.steadysum, name), arguments)


@pytest.mark.parametrize("name", SAMPLES)
def test_shape_functions_work_without_values(name: str) -> None:
    operator = getattr(torch.ops.steadysum, name)
    for arguments in SAMPLES[name]:
        with FakeTensorMode(allow_non_fake_inputs=True):
            fake = operator(*arguments)
        real = operator(*arguments)
        for one, other in zip(
            *(each if isinstance(each, (tuple, list)) else [each] for each in (fake, real)), strict=True
        ):
            if one is None or other is None:
                assert one is other
            else:
                assert (one.shape, one.dtype, one.stride()) == (other.shape, other.dtype, other.stride())


def everything(x: Tensor, head: Tensor, bias: Tensor, target: Tensor) -> list[Tensor]:
    options = {"bias": bias, "scale": 0.5, "softcap": 30.0, "temperature": 0.7, "valid_vocab": 600}
    pair = regroup([Call(x, head), Call(x, head[:100], softcap=2.0, temperature=torch.ones(1))])
    return [
        *linear_max_sum(x, head, **options),
        linear_max_sum(x, head.T.contiguous().T).log_sum_exp,
        linear_softmax(x, head, **options, dtype=torch.bfloat16),
        linear_softmax(x, head),
        *linear_logprobs(x, head, target, **options, return_entropy=True),
        linear_logprobs(x, head, target),
        *pair[0],
        *merge(pair[0], pair[1]),
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compiled_code_has_the_bits_of_eager_code(kernel: str, backend: str, dtype: torch.dtype) -> None:
    operands = (X.to(dtype), HEAD.to(dtype), BIAS, TARGET)
    torch.compiler.reset()  # torch limits how often one function is compiled
    compiled = torch.compile(everything, fullgraph=True, backend=backend)
    with kernels.use(kernel):
        for one, other in zip(compiled(*operands), everything(*operands), strict=True):
            assert (one.dtype, one.shape) == (other.dtype, other.shape)
            assert torch.equal(one, other)


def test_compiled_code_takes_new_shapes_and_numbers() -> None:
    def log_sum_exp(x: Tensor, scale: float, temperature: float) -> MaxSum:
        return linear_max_sum(x, HEAD, scale=scale, temperature=temperature)

    compiled = torch.compile(log_sum_exp, fullgraph=True, backend="aot_eager")
    for rows, scale, temperature in ((2, 1.0, 1.0), (5, 0.3, 0.9), (7, 0.7, 1.1), (1, 1.0, 2.0), (0, 1.0, 1.0)):
        x = draw(rows, 3, 32)
        assert torch.equal(compiled(x, scale, temperature).sum_exp, log_sum_exp(x, scale, temperature).sum_exp)


def test_a_context_decides_for_compiled_code_when_it_runs(triton_takes_cpu_operands: None) -> None:
    compiled = torch.compile(lambda x: linear_max_sum(x, HEAD).sum_exp, fullgraph=True, backend="eager")
    x = draw(50, 32)
    for name in kernels.available():
        with kernels.use(name):
            assert torch.equal(compiled(x), linear_max_sum(x, HEAD, kernel=name).sum_exp)


def test_a_target_out_of_range_is_told_by_compiled_code_too() -> None:
    compiled = torch.compile(lambda x, target: linear_logprobs(x, HEAD, target), fullgraph=True, backend="aot_eager")
    with pytest.raises(IndexError, match=r"target: got 700 at position \[1, 0\]; allowed: 0 to 699"):
        compiled(X, TARGET.clone().index_put_((torch.tensor(1), torch.tensor(0)), torch.tensor(700)))
