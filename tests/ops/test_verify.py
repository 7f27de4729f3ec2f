"""verify=: no bit changes; the wish goes wherever the kernel's name goes; faults heal or raise; mistakes are told."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.library import opcheck

from steadysum import (
    Call,
    fused_cross_entropy_loss_with_max_sum,
    fused_linear_cross_entropy_loss_with_max_sum_backward,
    fused_linear_online_max_sum,
    kernels,
    linear_cross_entropy,
    linear_logprobs,
    linear_max_sum,
    linear_softmax,
    nn,
    regroup,
)
from steadysum.compat import torch_npu
from steadysum.errors import AccuracyError, KernelUnavailableError, OperandTypeError, RangeError, UnknownKernelError
from steadysum.kernels import eager, registry, sampled, verification
from steadysum.kernels.problem import Operands, Problem, Statistics
from steadysum.kernels.sampled import Sampled


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X, HEAD, BIAS, TARGET = draw(6, 32), draw(700, 32, seed=1), draw(700, seed=2), torch.arange(6)
IGNORING = torch.tensor([3, -100, 5, -100, 7, 9])
OPTIONS: dict[str, Any] = {"bias": BIAS, "scale": 0.5, "softcap": 30.0, "temperature": 0.7, "valid_vocab": 600}


@pytest.fixture
def all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows and columns are drawn."""
    monkeypatch.setattr(sampled, "ROWS", 10**9)


# ---- every public function, with and without gradients ---------------------------------------------------------------
def with_gradients(function: Callable[..., Any]) -> Callable[..., list[Tensor]]:
    """The function's results, and the gradients of what in them is differentiable."""

    def run(**how: str) -> list[Tensor]:
        operands = [each.clone().requires_grad_() for each in (X, HEAD, BIAS)]
        found = function(*operands, **how)
        results = [found] if isinstance(found, Tensor) else [*found]
        sources = [each for each in results if each.requires_grad]
        upstream = [torch.linspace(-1, 2, each.numel()).view_as(each).to(each.dtype) for each in sources]
        return [*results, *torch.autograd.grad(sources, operands, upstream)]

    return run


def loss(x: Tensor, head: Tensor, bias: Tensor, **how: Any) -> list[Tensor]:
    target = how.pop("target", IGNORING)
    value, stats = linear_cross_entropy(x, head, target, linear_bias=bias, return_stats=True, **how)
    return [value, *stats.max_sum, stats.token_loss, stats.correct]


def of_cards(**how: str) -> list[Tensor | None]:
    """The vendor's three operators, one after the other."""
    found = fused_linear_online_max_sum(X, HEAD, TARGET, 2, 702, True, **how)  # type: ignore[arg-type]
    losses = fused_cross_entropy_loss_with_max_sum(*found[:3], vocab_parallel_logits=found[5], **how)  # type: ignore[arg-type]
    rest = (torch.ones(6), X, HEAD, found.target_mask, found.masked_target)
    gradients = fused_linear_cross_entropy_loss_with_max_sum_backward(*rest, 0.0, *found[:2], **how)  # type: ignore[arg-type]
    from_softmax = fused_linear_cross_entropy_loss_with_max_sum_backward(*rest, softmax=losses.softmax, **how)  # type: ignore[arg-type]
    return [*found, *losses, *gradients, *from_softmax]


def rounding_cards(**how: str) -> list[Tensor | None]:
    x, head = X.bfloat16(), HEAD.bfloat16()
    found = fused_linear_online_max_sum(x, head, TARGET, 0, 700, round_logits=True, **how)  # type: ignore[arg-type]
    gradients = fused_linear_cross_entropy_loss_with_max_sum_backward(
        torch.ones(6),
        x,
        head,
        found.target_mask,
        found.masked_target,
        logits_max=found.logits_max,
        sum_exp_logits=found.sum_exp_logits,
        round_logits=True,
        **how,  # type: ignore[arg-type]
    )
    return [*found, *gradients]


def of_each_row(*operands: Tensor, **how: Any) -> list[Tensor]:
    return loss(*operands, reduction="none", **how)


def filtered(*operands: Tensor, **how: Any) -> list[Tensor]:
    return loss(*operands, gradient_filter=1e-3, **how)


def module(x: Tensor, head: Tensor, bias: Tensor, **how: str) -> Tensor:
    made = nn.LinearCrossEntropyLoss(32, 700, bias=True, **how)  # type: ignore[arg-type]
    state = {"linear.weight": head, "linear.bias": bias}
    value: Tensor = torch.func.functional_call(made, state, (x, IGNORING))
    return value


FUNCTIONS: dict[str, Callable[..., Sequence[Tensor | None]]] = {
    "linear_max_sum": with_gradients(lambda x, w, b, **how: linear_max_sum(x, w, **{**OPTIONS, "bias": b}, **how)),
    "linear_softmax": with_gradients(lambda x, w, b, **how: linear_softmax(x, w, **{**OPTIONS, "bias": b}, **how)),
    "linear_softmax in 16 bits": with_gradients(
        lambda x, w, b, **how: linear_softmax(x, w, bias=b, dtype=torch.bfloat16, **how)
    ),
    "linear_logprobs": with_gradients(lambda x, w, b, **how: linear_logprobs(x, w, TARGET, bias=b, **how)),
    "linear_logprobs and entropy": with_gradients(
        lambda x, w, b, **how: linear_logprobs(x, w, TARGET, **{**OPTIONS, "bias": b}, return_entropy=True, **how)
    ),
    "linear_cross_entropy": with_gradients(loss),
    "linear_cross_entropy of each row": with_gradients(of_each_row),
    "linear_cross_entropy, smoothed": with_gradients(
        lambda *operands, **how: loss(*operands, label_smoothing=0.1, z_loss=1e-3, weight=HEAD[:, 0].exp(), **how)
    ),
    "linear_cross_entropy of probabilities": with_gradients(
        lambda *operands, **how: loss(*operands, target=draw(6, 700).softmax(1), reduction="none", **how)
    ),
    "linear_cross_entropy, filtered": with_gradients(filtered),
    "nn.LinearCrossEntropyLoss": with_gradients(module),
    "regroup": lambda **how: [
        each
        for pair in regroup([Call(X, HEAD), Call(X[:2], HEAD[:9], softcap=2.0)], **how)
        for each in pair  # type: ignore[arg-type]
    ],
    "the vendor's three": of_cards,
    "the vendor's, logits rounded": rounding_cards,
    "compat.torch_npu": lambda **how: [torch_npu.fused_linear_online_max_sum(X, HEAD.T, **how)],  # type: ignore[arg-type]
}


def assert_same(results: Sequence[Tensor | None], others: Sequence[Tensor | None]) -> None:
    for one, other in zip(results, others, strict=True):
        assert (one is None) == (other is None)
        assert one is None or other is None or torch.equal(one, other)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_sampled_results_have_the_bits_of_unverified_ones(kernel: str, function: str, all_rows: None) -> None:
    run = FUNCTIONS[function]
    assert_same(run(kernel=kernel, verify="sampled"), run(kernel=kernel, verify="off"))


def test_results_without_rows_are_verified_too() -> None:
    assert linear_max_sum(X[:0], HEAD, verify="sampled").max.shape == (0,)
    everything_ignored = torch.full((6,), -100)
    assert linear_cross_entropy(X, HEAD, everything_ignored, reduction="sum", verify="sampled") == 0


# ---- the wish is carried ---------------------------------------------------------------------------------------------
@pytest.fixture
def spoiled(monkeypatch: pytest.MonkeyPatch, all_rows: None) -> list[str]:
    """Kernel eager gives row 4 a wrong sum, and the last input gradient of row 2; the parts that ran are listed."""
    parts: list[str] = []
    statistics, gradients = eager.statistics, eager.gradients

    def spoil_statistics(calls: Sequence[Operands]) -> list[Statistics]:
        parts.append("statistics")
        found = statistics(calls)
        for each in found:
            each.sum_exp[4] *= 2
        return found

    def spoil_gradients(*values: Any) -> Any:
        parts.append("gradients")
        found = gradients(*values)
        assert found.input is not None
        found.input[2, 0] += 1.0
        return found

    monkeypatch.setattr(eager, "statistics", spoil_statistics)
    monkeypatch.setattr(eager, "gradients", spoil_gradients)
    return parts


def test_a_fault_that_stays_raises_and_names_the_row(spoiled: list[str]) -> None:
    assert linear_max_sum(X, HEAD, kernel="eager").sum_exp.isfinite().all()  # nobody sees it
    with pytest.raises(AccuracyError, match=r"^sum_exp of row 4, by kernel 'eager': got "):
        linear_max_sum(X, HEAD, kernel="eager", verify="sampled")
    assert spoiled == ["statistics"] * 3  # it was computed once more
    with pytest.raises(AccuracyError, match=r"^sum_exp of row 4"):
        linear_max_sum(X[:, None], HEAD, kernel="eager", verify="sampled")


def test_a_context_names_the_kernel_that_is_verified(spoiled: list[str]) -> None:
    with kernels.use("eager"), pytest.raises(AccuracyError, match="kernel 'eager'"):
        linear_max_sum(X, HEAD, verify="sampled")


def test_regrouped_calls_are_verified_one_by_one(spoiled: list[str]) -> None:
    with pytest.raises(AccuracyError, match=r"^sum_exp of row 4"):
        regroup([Call(X, HEAD), Call(X, HEAD[:50])], kernel="eager", verify="sampled")
    assert spoiled == ["statistics"] * 2  # both calls, then the first alone


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_code_verifies(spoiled: list[str], backend: str) -> None:
    torch.compiler.reset()

    def sums(x: Tensor) -> Tensor:
        return linear_max_sum(x, HEAD, kernel="eager", verify="sampled").sum_exp

    compiled = torch.compile(sums, fullgraph=True, backend=backend)
    with pytest.raises(AccuracyError, match=r"^sum_exp of row 4"):
        compiled(X)


def test_compiled_code_has_the_same_bits() -> None:
    torch.compiler.reset()

    def everything(x: Tensor) -> list[Tensor]:
        how: dict[str, Any] = {"verify": "sampled"}
        probabilities = linear_softmax(x, HEAD, **how)
        loss = linear_cross_entropy(x, HEAD, TARGET, **how)
        return [*linear_max_sum(x, HEAD, **how), probabilities, linear_logprobs(x, HEAD, TARGET, **how), loss]

    compiled = torch.compile(everything, fullgraph=True, backend="aot_eager")
    assert_same(compiled(X), everything(X))
    x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
    for source, run in ((x, compiled), (y, everything)):
        torch.stack([each.sum() for each in run(source)]).sum().backward()
    assert x.grad is not None
    assert y.grad is not None
    assert torch.equal(x.grad, y.grad)


@pytest.mark.parametrize("how", ["plain", "torch.func", "compiled"])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_backward_verifies(spoiled: list[str], reduction: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eager, "statistics", lambda calls: [eager._by_row_blocks(call, None) for call in calls])

    def value(x: Tensor) -> Tensor:
        total: Tensor = linear_cross_entropy(
            x, HEAD, TARGET, reduction=reduction, kernel="eager", verify="sampled"
        ).sum()
        return total

    torch.compiler.reset()

    def gradient() -> None:
        if how == "torch.func":
            torch.func.grad(value)(X)
        else:
            run = torch.compile(value, backend="aot_eager") if how == "compiled" else value
            run(X.clone().requires_grad_()).backward()

    with pytest.raises(AccuracyError, match=r"^gradient of input of row 2, by kernel 'eager': got "):
        gradient()


def test_backward_verifies_in_another_context_and_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel of the forward pass is kept for backward, and with it that it is to be verified."""
    seen: list[tuple[str, type]] = []
    select = registry.select

    def watched(problem: Problem, chosen: str = "auto") -> Any:
        found = select(problem, chosen)
        seen.append((chosen, type(found)))
        return found

    for name in ("statistics", "derivative"):
        monkeypatch.setattr(sys.modules[f"steadysum.ops.{name}"], "select", watched)
    x = X.clone().requires_grad_()
    with kernels.use("eager"):
        total = linear_max_sum(x, HEAD, verify="sampled").sum_exp.sum()
    total.backward()
    assert seen[-1] == ("eager+sampled", Sampled)
    assert {chosen for chosen, _ in seen} == {"auto+sampled", "eager+sampled"}


def test_vmap_verifies(spoiled: list[str]) -> None:
    with pytest.raises(AccuracyError, match=r"^sum_exp of row 4"):
        torch.vmap(lambda x: linear_max_sum(x, HEAD, kernel="eager", verify="sampled").sum_exp)(X.repeat(2, 1, 1))


def test_operators_pass_opcheck_with_a_verification() -> None:
    common = (X, HEAD, BIAS, 0.5, None, None, 600, "auto+sampled")
    opcheck(torch.ops.steadysum.linear_max_sum, common)
    opcheck(torch.ops.steadysum.linear_logprobs, (*common, TARGET))
    rest = (TARGET, None, "mean", -100, 0.0, 0.0, 0.0, None, False)
    opcheck(torch.ops.steadysum.linear_cross_entropy, (*common, *rest))


# ---- healing ---------------------------------------------------------------------------------------------------------
def test_a_transient_fault_within_a_loss_heals_to_the_clean_bits(
    monkeypatch: pytest.MonkeyPatch, all_rows: None
) -> None:
    """What a faulty first computation told the loss of each chunk is forgotten, statistics included."""
    run = FUNCTIONS["linear_cross_entropy"]
    clean = run(kernel="eager")
    stored, faults = eager._stored_statistics, iter([True])

    def spoil(call: Operands, z: Tensor) -> Statistics:
        found = stored(call, z)
        if next(faults, False):
            found.max[1] += 1.0
        return found

    monkeypatch.setattr(eager, "_stored_statistics", spoil)
    assert_same(run(kernel="eager", verify="sampled"), clean)
    assert next(faults, None) is None


def test_rows_at_fault_are_counted_among_all_rows_also_where_some_are_ignored(
    monkeypatch: pytest.MonkeyPatch, all_rows: None
) -> None:
    fold = eager._fold_tiles

    def spoil(call: Operands, out: Tensor | None) -> Statistics:
        found = fold(call, out)
        found.sum_exp[1] *= 2
        return found

    monkeypatch.setattr(eager, "_fold_tiles", spoil)
    with pytest.raises(AccuracyError, match=r"^sum_exp of row 2,"):  # row 1 of those that aren't ignored: 0, 2, 4, 5
        linear_cross_entropy(X, HEAD, IGNORING, kernel="eager", verify="sampled")
    x = X.clone().requires_grad_()
    with pytest.raises(AccuracyError, match=r"^sum_exp of row 2,"):
        linear_cross_entropy(x, HEAD, IGNORING, kernel="eager", verify="sampled")


# ---- checksum --------------------------------------------------------------------------------------------------------
@pytest.fixture
def with_checksums(monkeypatch: pytest.MonkeyPatch, needs_native: ModuleType) -> ModuleType:
    """What runs in the place of native with checksums: native by another identity, without any."""
    stand_in = ModuleType("steadysum.kernels.native_checked")
    vars(stand_in).update({name: value for name, value in vars(kernels.get("native")).items() if name[:1] != "_"})
    monkeypatch.setattr(registry, "_with_checksums", lambda: stand_in)
    return stand_in


@pytest.mark.parametrize("function", FUNCTIONS)
def test_checksums_are_asked_of_native_in_every_function(
    with_checksums: ModuleType, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = FUNCTIONS[function]
    clean = run()
    ran: list[str] = []

    def watched(name: str, inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(*values: Any) -> Any:
            ran.append(name)
            return inner(*values)

        return call

    for name in ("statistics", "chunk_statistics", "logits", "softmax", "gradients"):
        setattr(with_checksums, name, watched(name, getattr(with_checksums, name)))
    assert_same(run(verify="checksum"), clean)
    assert ran


def test_checksums_need_native(needs_native: ModuleType) -> None:
    for name in ("eager", "reference"):
        text = (
            f"verify='checksum' with kernel='{name}': got kernel {name}, which forms products in ways that leave no "
            "room for checksums; allowed: kernel native, which takes them as it computes. Pass verify='sampled', "
            "which every kernel has."
        )
        with pytest.raises(KernelUnavailableError, match=r"^" + re.escape(text)):
            linear_max_sum(X, HEAD, kernel=name, verify="checksum")
        with kernels.use(name), pytest.raises(KernelUnavailableError, match=r"^" + re.escape(text)):
            linear_max_sum(X, HEAD, verify="checksum")


def test_a_call_that_native_cannot_run_cannot_have_checksums(needs_native: ModuleType) -> None:
    text = (
        "verify='checksum': got native computes float32, bfloat16 and float16, not torch.float64; allowed: a call that "
        "kernel native supports: checksums are taken as it computes. Pass verify='sampled', which every kernel has."
    )
    for kernel in ("auto", "native"):
        with pytest.raises(KernelUnavailableError, match=r"^" + re.escape(text)):
            linear_max_sum(X.double(), HEAD.double(), kernel=kernel, verify="checksum")


def test_a_build_without_checksums_says_so(needs_native: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "find_spec", lambda _: None)
    text = (
        "verify='checksum': got a build of steadysum without checksums; allowed: one whose kernel native takes them as "
        "it computes. Pass verify='sampled', which every kernel has."
    )
    with pytest.raises(KernelUnavailableError, match=r"^" + re.escape(text)):
        linear_max_sum(X, HEAD, verify="checksum")


# ---- mistakes --------------------------------------------------------------------------------------------------------
CALLS: dict[str, Callable[..., object]] = {
    "linear_max_sum": lambda **how: linear_max_sum(X, HEAD, **how),
    "linear_softmax": lambda **how: linear_softmax(X, HEAD, **how),
    "linear_logprobs": lambda **how: linear_logprobs(X, HEAD, TARGET, **how),
    "linear_cross_entropy": lambda **how: linear_cross_entropy(X, HEAD, TARGET, **how),
    "nn.LinearCrossEntropyLoss": lambda **how: nn.LinearCrossEntropyLoss(32, 700, **how)(X, TARGET),
    "regroup": lambda **how: regroup([], **how),
    "fused_linear_online_max_sum": lambda **how: fused_linear_online_max_sum(X, HEAD, TARGET, 0, 700, **how),
    "fused_cross_entropy_loss_with_max_sum": lambda **how: fused_cross_entropy_loss_with_max_sum(
        torch.ones(1), torch.ones(1), torch.zeros(1), **how
    ),
    "fused_linear_cross_entropy_loss_with_max_sum_backward": lambda **how: (
        fused_linear_cross_entropy_loss_with_max_sum_backward(
            torch.ones(6), X, HEAD, torch.zeros(1, dtype=torch.uint8), TARGET, softmax=draw(6, 700), **how
        )
    ),
    "compat.torch_npu": lambda **how: torch_npu.fused_linear_online_max_sum(X, HEAD.T, **how),
}
TOLD = "'off', 'checksum', 'sampled'"


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_wish_that_does_not_exist_is_refused(call: Callable[..., object]) -> None:
    text = f"verify: got 'twice'; allowed: {TOLD}. 'checksum' needs kernel native; every kernel has 'sampled'."
    with pytest.raises(RangeError, match=r"^" + re.escape(text) + "$"):
        call(verify="twice")
    for value, name in ((True, "bool"), (None, "NoneType"), (torch.ones(2), "Tensor")):
        text = f"type of verify: got {name}; allowed: str, {TOLD}. Pass 'off' for none."
        with pytest.raises(OperandTypeError, match=r"^" + re.escape(text) + "$"):
            call(verify=value)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_kernel_and_a_wish_in_one_text_are_refused(call: Callable[..., object]) -> None:
    with pytest.raises(UnknownKernelError, match=r"^kernel: got 'eager\+sampled'; allowed: 'auto', "):
        call(kernel="eager+sampled")
    with pytest.raises(UnknownKernelError):
        kernels.use("auto+sampled").__enter__()


def test_operators_called_by_their_torch_name_check_as_well() -> None:
    run = torch.ops.steadysum.linear_max_sum
    with pytest.raises(RangeError, match=r"^verify: got 'twice'"):
        run(X, HEAD, None, 1.0, None, None, None, "auto+twice")
    with pytest.raises(UnknownKernelError, match=r"^kernel: got 'cuda'"):
        run(X, HEAD, None, 1.0, None, None, None, "cuda+sampled")
    with pytest.raises(UnknownKernelError, match=r"^kernel: got 'cuda'"):
        run(X, HEAD, None, 1.0, None, None, None, "cuda+checksum")
    assert torch.equal(run(X, HEAD, None, 1.0, None, None, None, "auto+off")[0], linear_max_sum(X, HEAD).max)


@pytest.mark.parametrize("verify", ["checksum", "sampled"])
def test_heads_of_more_dimensions_are_not_verified(verify: str) -> None:
    text = f"verify='{verify}' can't verify this call: got linear_weight [5, 2, 32]; allowed: linear_weight [V, H], or "
    with pytest.raises(KernelUnavailableError, match=r"^" + re.escape(text)):
        linear_cross_entropy(X, draw(5, 2, 32), torch.zeros(6, 2, dtype=torch.int64), verify=verify)


def test_a_kernel_that_is_not_verified_is_the_plain_one() -> None:
    problem = Problem.of(X, HEAD)
    assert registry.select(problem, verification.choice("eager", "off")) is eager
    chosen = registry.select(replace(problem, dtype=torch.float64), "auto+sampled")
    assert isinstance(chosen, Sampled)
    assert chosen.kernel is eager
