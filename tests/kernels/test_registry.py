"""Which kernel runs: the one named by the call, by the context, or the first that can; never another in silence."""

from __future__ import annotations

import threading

import pytest
import torch

from steadysum import kernels, linear_max_sum
from steadysum.errors import KernelUnavailableError, UnknownKernelError
from steadysum.kernels import Problem
from steadysum.kernels.registry import select

ONE = Problem(rows=4, hidden=8, vocab=100)
DOUBLE = Problem(rows=4, hidden=8, vocab=100, dtype=torch.float64)


def test_every_kernel_is_listed_and_eager_and_reference_are_always_available() -> None:
    assert kernels.names() == ("native", "triton", "ascend", "eager", "reference")
    assert {"eager", "reference"} <= set(kernels.available())
    assert [kernels.get(name).name for name in kernels.names()] == list(kernels.names())


def test_every_kernel_promises_at_least_run_to_run(kernel: str) -> None:
    assert "run-to-run" in kernels.get(kernel).promises
    assert str(kernels.Promise.RUN_TO_RUN) == "run-to-run"


def test_auto_never_chooses_the_reference() -> None:
    choice = kernels.explain(DOUBLE)
    assert choice.kernel == select(DOUBLE).name == "eager"
    assert choice.reasons["reference"] == "it runs only when it is named"


def test_auto_prefers_native(needs_native: object) -> None:
    assert select(ONE).name == "native"
    assert kernels.explain(ONE).reasons["eager"] == "native comes first"
    assert str(kernels.explain(ONE)).splitlines()[0] == "native would run"


def test_explain_says_why_a_kernel_cannot_run(needs_native: object) -> None:
    assert kernels.explain(DOUBLE).reasons["native"] == (
        "native computes float32, bfloat16 and float16, not torch.float64"
    )
    cuda = Problem(rows=4, hidden=8, vocab=100, device=torch.device("cuda", 0))
    assert kernels.explain(cuda).reasons["native"] == "native runs on the CPU, not on cuda:0"


def test_explain_when_no_kernel_can_run() -> None:
    whole = Problem(rows=4, hidden=8, vocab=100, dtype=torch.int32)
    choice = kernels.explain(whole)
    assert choice.kernel is None
    assert str(choice).startswith("no kernel would run")
    assert choice.reasons["eager"] == "eager computes floating-point operands, not torch.int32"
    with pytest.raises(KernelUnavailableError, match=r"eager computes .* not torch\.int32"):
        select(whole)


def test_a_context_decides_for_auto_and_a_call_goes_before_it() -> None:
    with kernels.use("reference"):
        assert select(ONE).name == "reference"
        assert select(ONE, "eager").name == "eager"
        assert kernels.explain(ONE).reasons["eager"] == "kernels.use('reference') is in force"
        with kernels.use("eager"):
            assert select(ONE).name == "eager"
        assert select(ONE).name == "reference"
    assert select(ONE).name == kernels.explain(ONE).kernel != "reference"


def test_a_context_ends_with_an_exception() -> None:
    with pytest.raises(ZeroDivisionError), kernels.use("reference"):
        raise ZeroDivisionError
    assert select(ONE).name != "reference"


def test_a_context_belongs_to_its_thread() -> None:
    seen: list[str] = []
    with kernels.use("reference"):
        other = threading.Thread(target=lambda: seen.append(select(ONE).name))
        other.start()
        other.join()
    assert seen != ["reference"]


def test_a_named_kernel_that_cannot_run_raises_and_is_not_replaced(needs_native: object) -> None:
    x = torch.ones(2, 8, dtype=torch.float64)
    with pytest.raises(KernelUnavailableError, match=r"kernel='native' can't run this call: got .*not torch\.float64"):
        linear_max_sum(x, x, kernel="native")
    with kernels.use("native"), pytest.raises(KernelUnavailableError, match="a named kernel is never replaced"):
        linear_max_sum(x, x)


def test_an_unknown_kernel_is_named_with_those_that_exist() -> None:
    for refused in (lambda: kernels.use("fast").__enter__(), lambda: kernels.get("fast"), lambda: select(ONE, "fast")):
        with pytest.raises(UnknownKernelError, match=r"kernel: got 'fast'; allowed: .*'triton', 'ascend', 'eager'"):
            refused()
    with pytest.raises(UnknownKernelError, match="got 'auto'"):
        kernels.get("auto")


def test_a_problem_is_described_by_the_operands() -> None:
    described = Problem.of(torch.ones(2, 3, 8, dtype=torch.bfloat16), torch.ones(100, 8, dtype=torch.bfloat16))
    assert described == Problem(rows=6, hidden=8, vocab=100, dtype=torch.bfloat16)
