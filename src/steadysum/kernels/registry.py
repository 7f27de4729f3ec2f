"""Which kernels there are, and which one runs a problem: by name, by context, or the first that can.

Not here: any arithmetic. A kernel is a module with the members of `Kernel`, one file each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, NamedTuple, Protocol

from torch import Tensor

from steadysum import _extension
from steadysum.errors import KernelUnavailableError, UnknownKernelError
from steadysum.kernels import ascend, eager, native, native_checked, reference, triton
from steadysum.kernels.gradients import Gradients, PullBack, Wanted
from steadysum.kernels.problem import Operands, Problem, Statistics
from steadysum.kernels.promise import Promise
from steadysum.kernels.sampled import Sampled
from steadysum.kernels.verification import CHECKSUM, OFF, SEPARATOR, split

__all__ = ["AUTO", "Choice", "Kernel", "available", "check_name", "explain", "get", "names", "select", "use"]

AUTO: Final = "auto"


class Kernel(Protocol):
    """Code that computes tiles."""

    @property
    def name(self) -> str: ...

    @property
    def promises(self) -> frozenset[Promise]:
        """What holds for the bits of its results; a verdict tests this and no more."""
        ...

    def missing(self) -> str | None:
        """Why it can't run on this machine at all, or None."""
        ...

    def supports(self, problem: Problem) -> str | None:
        """None if it can run the problem, else the reason why not."""
        ...

    def statistics(self, calls: Sequence[Operands]) -> list[Statistics]:
        """max, sum_exp, and what else each call asks for; all rows take part, and no sum needs stored logits."""
        ...

    def chunk_statistics(self, call: Operands) -> Statistics:
        """The same for any call: also the column and dense sums, for which one chunk of rows' logits are stored."""
        ...

    def gradients(
        self, call: Operands, pull_back: PullBack, wanted: Wanted, known: Statistics | None = None
    ) -> Gradients:
        """The wanted gradients, in the statistics dtype; with `known` statistics, logits are computed once more.

        `pull_back` gives the coefficients of the logits' gradient chunk by chunk. Rows that take no part have an input
        gradient of 0, masked columns a weight and bias gradient of 0.
        """
        ...

    def logits(self, call: Operands, out: Tensor) -> Statistics:
        """Write the logits into out [N, V] (statistics dtype, contiguous); masked columns are -inf."""
        ...

    def softmax(self, call: Operands, out: Tensor) -> None:
        """Write the softmax into out [N, V] (statistics dtype, contiguous)."""
        ...

    def logprobs(self, found: Statistics) -> Tensor:
        """(target_logit - max) - log(sum_exp), in this order: all logits may share a large offset."""
        ...

    def entropy(self, found: Statistics) -> Tensor:
        """-sum(p log p) = log(sum_exp) - weighted_sum / sum_exp, since log p = (z - max) - log(sum_exp)."""
        ...

    def log(self, sum_exp: Tensor) -> Tensor:
        """Elementwise natural logarithm in the kernel's own bits."""
        ...


# In the order in which "auto" tries them: those made for a device, then the one for any device.
_KERNELS: Final[tuple[Kernel, ...]] = (
    native,
    triton,
    ascend,
    eager,
    reference,
)
_BY_NAME: Final = {kernel.name: kernel for kernel in _KERNELS}

_used: ContextVar[str] = ContextVar("steadysum_kernel", default=AUTO)


class Choice(NamedTuple):
    """Which kernel would run a problem, and why each of the others would not."""

    kernel: str | None
    reasons: dict[str, str]  # for every kernel but the chosen one

    def __str__(self) -> str:
        first = f"{self.kernel} would run" if self.kernel else "no kernel would run"
        return "\n".join([first, *(f"not {name}: {reason}" for name, reason in self.reasons.items())])


def names() -> tuple[str, ...]:
    """All kernels, whether or not they can run here.

    >>> names()
    ('native', 'triton', 'ascend', 'eager', 'reference')
    """
    return tuple(_BY_NAME)


def available() -> tuple[str, ...]:
    """The kernels that can run on this machine.

    >>> "eager" in available()
    True
    """
    return tuple(kernel.name for kernel in _KERNELS if kernel.missing() is None)


def get(name: str) -> Kernel:
    """The kernel of this name. Raises UnknownKernelError."""
    check_name(name)
    if name == AUTO:
        raise UnknownKernelError("kernel", "'auto'", ", ".join(map(repr, names())), "Name one kernel.")
    return _BY_NAME[name]


def check_name(name: str) -> None:
    """Raise UnknownKernelError unless `name` is "auto" or a kernel's name."""
    if name != AUTO and name not in _BY_NAME:
        allowed = ", ".join(map(repr, (AUTO, *names())))
        raise UnknownKernelError(
            "kernel", repr(name), allowed, "steadysum.kernels.available() lists those that can run on this machine."
        )


@contextmanager
def use(name: str) -> Iterator[None]:
    """Let calls with kernel="auto" run on this kernel, inside the context; a kernel named by the call goes first.

    The choice belongs to the current thread or asynchronous task (it is a context variable), so that a server's
    requests don't disturb each other; threads started inside the context don't inherit it. Compiled functions obey it.

    Raises:
        UnknownKernelError: no kernel has this name. If the kernel can't run a call, that call raises.

    >>> with use("eager"):
    ...     explain(Problem(rows=1, hidden=8, vocab=100)).kernel
    'eager'
    """
    check_name(name)
    token = _used.set(name)
    try:
        yield
    finally:
        _used.reset(token)


def select(problem: Problem, chosen: str = AUTO) -> Kernel:
    """The kernel that runs the problem, in the form that verifies its results, if they are to be verified.

    Args:
        problem: the problem.
        chosen: a kernel's name or "auto", and perhaps how to verify, as verification.choice puts them together.

    Raises:
        UnknownKernelError: no kernel has this name.
        KernelUnavailableError: the named kernel (by call or by context) can't run the problem, or no kernel can; or
            none can with checksums.
    """
    if SEPARATOR in chosen:
        return _verified(problem, *split(chosen))
    return _plain(problem, chosen)


def _verified(problem: Problem, name: str, verify: str) -> Kernel:
    if verify == OFF:  # nobody writes this, but it has a meaning
        return _plain(problem, name)
    if verify != CHECKSUM:
        return Sampled(_plain(problem, name))
    check_name(name)
    wanted = _used.get() if name == AUTO else name
    if wanted not in (AUTO, native.name):
        raise KernelUnavailableError(
            f"verify='checksum' with kernel={wanted!r}",
            seen=f"kernel {wanted}, which forms products in ways that leave no room for checksums",
            allowed=f"kernel {native.name}, which takes them as it computes",
            remedy="Pass verify='sampled', which every kernel has.",
        )
    reason = native.supports(problem)
    if reason is not None:
        raise KernelUnavailableError(
            "verify='checksum'",
            seen=reason,
            allowed=f"a call that kernel {native.name} supports: checksums are taken as it computes",
            remedy="Pass verify='sampled', which every kernel has.",
        )
    return native_checked


def _plain(problem: Problem, name: str) -> Kernel:
    check_name(name)
    wanted = _used.get() if name == AUTO else name
    if wanted == AUTO:
        if _native_is_demanded(problem):
            raise KernelUnavailableError(
                "kernel='auto'",
                seen=_extension.reason,
                allowed=f"{_extension.ISA_VARIABLE} unset, or a set of instructions that `native` can use here",
                remedy="Unset it, or name a kernel.",
            )
        for kernel in _KERNELS:
            if kernel.supports(problem) is None and _passed_over(kernel) is None:
                return kernel
        seen = "; ".join(f"{kernel.name}: {kernel.supports(problem) or _passed_over(kernel)}" for kernel in _KERNELS)
        raise KernelUnavailableError(
            "kernel='auto'", seen, "a problem that one kernel supports", "Convert the operands."
        )
    kernel = _BY_NAME[wanted]
    reason = kernel.supports(problem)
    if reason is not None:
        raise KernelUnavailableError(
            f"kernel={wanted!r} can't run this call",
            seen=reason,
            allowed="a kernel that supports the call; a named kernel is never replaced by another",
            remedy="Pass kernel='auto', or ask steadysum.kernels.explain(problem) which kernels could run it.",
        )
    return kernel


def _passed_over(kernel: Kernel) -> str | None:
    """Why "auto" never chooses a kernel that could run the problem, or None."""
    if kernel.name == reference.name:
        return "it runs only when it is named"
    if kernel.name == triton.name and triton.interpreted():
        return "it runs only when it is named, since Triton interprets it here, for tests"
    return None


def _native_is_demanded(problem: Problem) -> bool:
    """Whether the user named instructions for `native` that it can't use: no other kernel takes its place unasked."""
    return _extension.refused and problem.device.type == "cpu"


def explain(problem: Problem) -> Choice:
    """Say which kernel a call with kernel="auto" would run on, and why not on the others.

    >>> explain(Problem(rows=1, hidden=8, vocab=100)).reasons["reference"]
    'it runs only when it is named'
    """
    wanted = _used.get()
    chosen: str | None = None
    reasons: dict[str, str] = {}
    for kernel in _KERNELS:
        reason = kernel.supports(problem)
        if reason is None and wanted not in (AUTO, kernel.name):
            reason = f"kernels.use({wanted!r}) is in force"
        elif reason is None and wanted == AUTO and (passed_over := _passed_over(kernel)) is not None:
            reason = passed_over
        elif reason is None and wanted == AUTO and _native_is_demanded(problem):
            reason = f"{_extension.ISA_VARIABLE} asks for native; it runs only when it is named"
        elif reason is None and chosen is not None:
            reason = f"{chosen} comes first"
        if reason is None:
            chosen = kernel.name
        else:
            reasons[kernel.name] = reason
    return Choice(chosen, reasons)
