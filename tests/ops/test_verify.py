"""verify=: no bit changes; the wish goes wherever the kernel's name goes; what is wrong heals or raises."""

from __future__ import annotations

import inspect
import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.library import opcheck

import steadysum
from steadysum import (
    Call,
    kernels,
    linear_cross_entropy,
    linear_logprobs,
    linear_max_sum,
    linear_softmax,
    nn,
    regroup,
)
from steadysum.compat import torch_npu, transformers
from steadysum.errors import AccuracyError
from steadysum.kernels import eager, native_checked, registry, sampled
from steadysum.kernels.problem import Operands, Problem, Statistics
from steadysum.kernels.sampled import Sampled

from .verified_calls import BIAS, FUNCTIONS, HEAD, IGNORING, TARGET, X, assert_same, loss, with_gradients


@pytest.fixture
def all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows and columns are drawn."""
    monkeypatch.setattr(sampled, "ROWS", 10**9)


# ---- every public function -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("function", FUNCTIONS)
def test_sampled_results_have_the_bits_of_unverified_ones(kernel: str, function: str, all_rows: None) -> None:
    run = FUNCTIONS[function]
    assert_same(run(kernel=kernel, verify="sampled"), run(kernel=kernel, verify="off"))


def public_functions() -> dict[str, Callable[..., Any]]:
    """Those that take a kernel's name."""
    found = {
        f"{place.__name__}.{name}": value
        for place in (steadysum, nn, torch_npu, transformers)
        for name, value in vars(place).items()
        if name[0] != "_" and callable(value) and getattr(value, "__module__", "").startswith("steadysum")
    }
    taking = {name: value for name, value in found.items() if "kernel" in inspect.signature(value).parameters}
    assert {"steadysum.linear_max_sum", "steadysum.nn.LinearCrossEntropyLoss"} <= taking.keys()
    return taking


@pytest.mark.parametrize("function", public_functions().values(), ids=public_functions())
def test_whatever_takes_a_kernel_takes_a_verification_and_has_none_by_default(function: Callable[..., Any]) -> None:
    verify = inspect.signature(function).parameters["verify"]
    assert (verify.default, verify.kind) == ("off", inspect.Parameter.KEYWORD_ONLY)


# Where the results of each part of a kernel are, from what it returns and what it was given.
RESULTS: dict[str, Callable[[Any, tuple[Any, ...]], Tensor]] = {
    "statistics": lambda found, _: found[0].sum_exp,
    "chunk_statistics": lambda found, _: found.sum_exp,
    "logits": lambda _, given: given[1],
    "softmax": lambda _, given: given[1],
    "gradients": lambda found, _: found.weight if found.input is None else found.input,
    "logprobs": lambda found, _: found,
    "entropy": lambda found, _: found,
    "log": lambda found, _: found,
}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_fault_is_seen_in_every_function(function: str, all_rows: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoiled(part: str) -> Callable[..., Any]:
        compute, results = getattr(eager, part), RESULTS[part]

        def call(*given: Any) -> Any:
            found = compute(*given)
            results(found, given)[2] += 1.0
            return found

        return call

    for part in RESULTS:
        monkeypatch.setattr(eager, part, spoiled(part))
    FUNCTIONS[function](kernel="eager", verify="off")  # nobody sees it
    with pytest.raises(AccuracyError, match=r"^[a-z_ -]+ of (row|position) \d, by kernel 'eager': got "):
        FUNCTIONS[function](kernel="eager", verify="sampled")


NOT_FINITE: dict[str, Callable[[Tensor, Tensor, Tensor], object]] = {
    "a row with a NaN": lambda x, _, __: x[1, 3:4].fill_(math.nan),
    "an infinite row": lambda x, _, __: x[1].fill_(math.inf),
    "an infinite row of weight": lambda _, head, __: head[5].fill_(-math.inf),
    "columns of -inf": lambda _, __, bias: bias[5:300].fill_(-math.inf),
    "nothing but -inf": lambda _, __, bias: bias.fill_(-math.inf),
    "logits that overflow": lambda x, head, _: (x.mul_(1e20), head.mul_(1e20)),
}


@pytest.mark.parametrize("what", NOT_FINITE)
def test_clean_results_that_are_not_finite_are_no_faults(kernel: str, what: str, all_rows: None) -> None:
    def run(**how: str) -> list[Tensor]:
        results: list[Tensor] = []
        for reduction in ("mean", "none"):
            operands = [each.clone() for each in (X, HEAD, BIAS)]
            NOT_FINITE[what](*operands)
            function = with_gradients(lambda *these, r=reduction, **how: loss(*these, reduction=r, **how), operands)
            results += function(kernel=kernel, **how)
        return [each.nan_to_num(123.0) for each in results]

    assert_same(run(verify="sampled"), run())


@contextmanager
def by_default(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


CIRCUMSTANCES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "fp64 by default": lambda: by_default(torch.float64),
    "bf16 by default": lambda: by_default(torch.bfloat16),
    "another device by default": lambda: torch.device("meta"),
}


@pytest.mark.parametrize("circumstance", CIRCUMSTANCES)
@pytest.mark.parametrize("verify", ["sampled", "checksum"])
def test_verification_works_wherever_the_function_does(
    circumstance: str, verify: str, all_rows: None, request: pytest.FixtureRequest
) -> None:
    if verify == "checksum":
        request.getfixturevalue("needs_native")

    def run(verify: str) -> Sequence[Tensor | None]:
        found = linear_logprobs(X, HEAD, TARGET, bias=BIAS, softcap=9.0, return_entropy=True, verify=verify)
        return [*found, linear_softmax(X, HEAD, verify=verify), *FUNCTIONS["linear_cross_entropy"](verify=verify)]

    with CIRCUMSTANCES[circumstance]():
        verified, plain = run(verify), run("off")
    assert_same(verified, plain)


def test_inference_mode_verifies() -> None:
    with torch.inference_mode():
        assert_same(linear_max_sum(X, HEAD, verify="sampled"), linear_max_sum(X, HEAD))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_random_states_are_left_alone(function: str) -> None:
    before = torch.get_rng_state(), random.getstate()
    FUNCTIONS[function](verify="sampled")
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_unverified_calls_draw_and_compare_nothing(function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> Sampled:
        raise AssertionError("it was asked for")

    monkeypatch.setattr(registry, "_verified", never)
    FUNCTIONS[function]()


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
@pytest.mark.parametrize("function", FUNCTIONS)
def test_checksums_are_asked_of_native_in_every_function(
    function: str, needs_native: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = FUNCTIONS[function]
    clean = run()
    ran: list[str] = []

    def watched(name: str) -> Callable[..., Any]:
        compute = getattr(native_checked, name)

        def call(*values: Any) -> Any:
            ran.append(name)
            return compute(*values)

        return call

    for name in ("statistics", "chunk_statistics", "logits", "softmax", "gradients"):
        monkeypatch.setattr(native_checked, name, watched(name))
    assert_same(run(verify="checksum"), clean)
    assert ran
