"""Fixtures that every part's tests share. Nothing is skipped in silence: a skip says what is missing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from types import ModuleType

import hypothesis
import pytest
import torch
from torch import Tensor

from steadysum import _extension, kernels
from steadysum.kernels import ascend, triton

from . import on_gpu, trap_build

# Without a GPU the triton kernel runs in Triton's interpreter. It reads this where it is first used, and a process that
# a test starts inherits it.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# A shared machine's pauses are no failures; a failing example is printed, and repeats (the same examples in every run).
hypothesis.settings.register_profile("steadysum", deadline=None, derandomize=True)
hypothesis.settings.register_profile("soak", deadline=None, max_examples=2000)  # `make soak`; new examples each time
hypothesis.settings.load_profile("steadysum")


# Workers of pytest-xdist share the processors: more threads than processors wait for each other, and tests take ten
# times as long. Tests of threads set their number themselves.
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
torch.set_num_threads(max(1, torch.get_num_threads() // _WORKERS))


@pytest.fixture
def triton_takes_cpu_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    """The triton kernel runs on operands on the CPU: interpreted, or else on the GPU, to which they are copied."""
    if triton.missing() is None and not triton.interpreted():
        on_gpu.adapt(triton, torch.device("cuda"), monkeypatch)


# ascend takes operands on an NPU alone, which these tests don't make: tests/kernels/test_ascend.py has its own.
@pytest.fixture(params=[name for name in kernels.names() if name != ascend.name])
def kernel(request: pytest.FixtureRequest) -> str:
    """Each kernel's name in turn; all of them take operands on the CPU."""
    missing = kernels.get(request.param).missing()
    if missing is not None:
        pytest.skip(f"kernel {request.param} is missing: {missing}")
    if request.param == triton.name:
        request.getfixturevalue("triton_takes_cpu_operands")
    return str(request.param)


@pytest.fixture
def needs_native() -> ModuleType:
    """The native extension."""
    if _extension.module is None:
        pytest.skip(f"the native extension is missing: {_extension.reason}")
    return _extension.module


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """torch.set_num_threads, undone after the test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def assert_as_good_as() -> Callable[[Tensor, Tensor, Tensor], None]:
    """Assert that values are as near to the float64 result as torch's plain computation in fp32 is.

    Allowed, root-mean-square over the rows, is 3 times the plain computation's error plus one rounding of the exact
    values: the rule of Dao-AILab/quack, with the mean in place of the largest error, which is a matter of luck.
    """

    def rms(values: Tensor) -> float:
        return float(values.square().mean().sqrt())

    def check(values: Tensor, plain: Tensor, exact: Tensor) -> None:
        assert exact.dtype == torch.float64
        allowed = 3 * rms(plain.double() - exact) + torch.finfo(plain.dtype).eps * rms(exact)
        error = rms(values.double() - exact)
        assert error <= allowed, f"root-mean-square error {error:.3g}, allowed {allowed:.3g}"

    return check


@pytest.fixture(scope="session")
def built_with_traps() -> ModuleType:
    """The extension's second build, in which `arm` switches one trap on."""
    if trap_build.compiler() is None:
        pytest.skip("no C++ compiler to build the extension with traps")
    return trap_build.load()


@pytest.fixture
def traps(built_with_traps: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """That build in the place of the shipped extension, no trap armed and nothing struck."""
    monkeypatch.setattr(_extension, "module", built_with_traps)
    yield built_with_traps
    built_with_traps.arm(0)
    built_with_traps.strike(0)
