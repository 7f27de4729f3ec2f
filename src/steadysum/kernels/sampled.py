"""verify="sampled": any kernel, some of whose results are computed once more, in float64 on the CPU, and compared.

After each part of a call a few rows are drawn at random, and a few columns for the gradients of weight and bias. Where
one of them is beyond the bound of rounding errors, the kernel computes that part again, once; if it is wrong again,
the call raises. A fault in one row of N is seen with the chance ROWS / N, one in all rows always.
Not here: the bounds (bounds.py, gradient_bounds.py), or the definition in float64 (reference.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import SystemRandom
from time import perf_counter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import torch
from torch import Tensor

from steadysum import notices
from steadysum.errors import AccuracyError
from steadysum.kernels import bounds, gradient_bounds
from steadysum.kernels.bounds import Exact, Roundings, wide
from steadysum.kernels.gradients import Gradients, LogitGradient, PullBack, Wanted
from steadysum.kernels.problem import Operands, Problem, Statistics
from steadysum.kernels.promise import Promise
from steadysum.kernels.verification import SAMPLED
from steadysum.tiling import tiles

if TYPE_CHECKING:
    from steadysum.kernels.registry import Kernel

__all__ = ["ROWS", "Sampled"]

# What costs time is to read the weight and widen it, once for the logits and once for gradients. Four rows add little
# to that, and see a fault in a tenth of the rows with a chance of a third; with many more the products would cost more.
ROWS: Final = 4

LISTED: Final = 16  # places that an error names

# Seeded by the operating system at each draw: the random states of torch and Python stay as they are, and processes
# after a fork draw different rows.
_random = SystemRandom()

T = TypeVar("T")


class Fault(NamedTuple):
    """Results that no rounding explains."""

    what: str  # "max", "gradient of weight", ...
    places: str  # "row 3", "rows 3, 7"
    found: float
    exact: float
    bound: float

    def error(self, kernel: str) -> AccuracyError:
        """What is raised where the fault persists."""
        return AccuracyError(
            f"{self.what} of {self.places}, by kernel {kernel!r}",
            seen=f"{self.found:.9g} where float64 on the CPU gives {self.exact:.9g}, and again when computed once more",
            allowed=f"a difference of up to {self.bound:.3g}, the bound of its rounding errors",
            remedy="Save the operands; `steadysum check` says how often the operator deviates on this machine.",
        )


@dataclass(frozen=True)
class Sampled:
    """A kernel whose results are verified; itself a kernel, with the same bits."""

    kernel: Kernel

    @property
    def name(self) -> str:
        """The kernel's."""
        return self.kernel.name

    @property
    def promises(self) -> frozenset[Promise]:
        """The kernel's."""
        return self.kernel.promises

    def missing(self) -> str | None:
        """The kernel's."""
        return self.kernel.missing()

    def supports(self, problem: Problem) -> str | None:
        """What the kernel supports."""
        return self.kernel.supports(problem)

    def statistics(self, calls: Sequence[Operands]) -> list[Statistics]:
        """The kernel's, of which some rows of each call are verified."""
        results = self.kernel.statistics(calls)
        return [
            self._statistics(call, found, lambda call=call: self.kernel.statistics([call])[0])  # type: ignore[misc]
            for call, found in zip(calls, results, strict=True)
        ]

    def chunk_statistics(self, call: Operands) -> Statistics:
        """The kernel's, of which some rows are verified."""
        return self._statistics(call, self.kernel.chunk_statistics(call), lambda: self.kernel.chunk_statistics(call))

    def _statistics(self, call: Operands, found: Statistics, again: Callable[[], Statistics]) -> Statistics:
        rows = _Rows.draw(call, self.name)
        return self._settled("statistics", call, found, again, rows.fault_in_statistics)

    def logits(self, call: Operands, out: Tensor) -> Statistics:
        """The kernel's, of which some rows are verified."""
        rows = _Rows.draw(call, self.name)

        def look(found: Statistics) -> Fault | None:
            return _fault("logit", out[rows.index], rows.logits, rows.numbers) or rows.fault_in_statistics(found)

        return self._settled("logits", call, self.kernel.logits(call, out), lambda: self.kernel.logits(call, out), look)

    def softmax(self, call: Operands, out: Tensor) -> None:
        """The kernel's, of which some rows are verified."""
        rows = _Rows.draw(call, self.name)
        exact = bounds.softmax(rows.logits, rows.roundings)

        def look(_: None) -> Fault | None:
            return _fault("softmax", out[rows.index], exact, rows.numbers)

        self.kernel.softmax(call, out)
        self._settled("softmax", call, None, lambda: self.kernel.softmax(call, out), look)

    def gradients(
        self, call: Operands, pull_back: PullBack, wanted: Wanted, known: Statistics | None = None
    ) -> Gradients:
        """The kernel's, of which some rows are verified, and without `known` their statistics.

        What `pull_back` makes of the statistics is taken as it is.
        """
        if call.size == 0:
            return self.kernel.gradients(call, pull_back, wanted, known)
        parts: list[tuple[Statistics, LogitGradient]] = []

        def recorded(found: Statistics, start: int, stop: int) -> LogitGradient:
            if start == 0:
                parts.clear()
            terms = pull_back(found, start, stop)
            parts.append((found, terms))
            return terms

        def compute() -> Gradients:
            return self.kernel.gradients(call, recorded, wanted, known)

        rows, columns = _Rows.draw(call, self.name), _Columns.draw(call, self.name)

        def look(results: Gradients) -> Fault | None:
            found = Statistics(*_joined([each for each, _ in parts]))  # type: ignore[arg-type]  # max is there
            terms = _joined([each for _, each in parts])
            coefficients = LogitGradient(*terms)
            fault = rows.fault_in_statistics(found) if known is None else None
            if fault is None and results.input is not None:
                fault = rows.fault_in_gradient(results.input, found.max, coefficients)
            if fault is None and (results.weight is not None or results.bias is not None):
                fault = columns.fault_in_gradients(results, found.max, coefficients)
            return fault

        return self._settled("gradients", call, compute(), compute, look)

    def logprobs(self, found: Statistics) -> Tensor:
        """The kernel's, all of them verified: no product is needed for it."""
        return self._elementwise("log-probability", lambda: self.kernel.logprobs(found), bounds.logprobs(found))

    def entropy(self, found: Statistics) -> Tensor:
        """The kernel's, all of them verified."""
        return self._elementwise("entropy", lambda: self.kernel.entropy(found), bounds.entropy(found))

    def log(self, sum_exp: Tensor) -> Tensor:
        """The kernel's, all of them verified."""
        return self._elementwise("logarithm", lambda: self.kernel.log(sum_exp), bounds.log(sum_exp))

    def _elementwise(self, what: str, compute: Callable[[], Tensor], exact: Exact) -> Tensor:
        def look(found: Tensor) -> Fault | None:
            return _fault(what, found, exact, range(len(found)), "position")

        return self._settled(what, None, compute(), compute, look)

    def _settled(
        self,
        part: str,
        call: Operands | None,
        result: T,
        again: Callable[[], T],
        look: Callable[[T], Fault | None],
    ) -> T:
        """The result, or that of a second computation, of which `look` finds nothing wrong. Raises where it does."""
        if self._look(part, look, result) is None:
            return result
        operator = f"{self.name} {part}"
        notices.post("retry", operator=operator)
        result = again()
        fault = self._look(part, look, result)
        attribution = "transient" if fault is None else "persistent"
        notices.post("anomaly", operator=operator, check=SAMPLED, attribution=attribution)
        if fault is not None:
            raise fault.error(self.name)
        if call is not None:
            notices.post("healed_tile", float(len(tiles(call.weight.shape[0], call.shard))), operator=operator)
        return result

    def _look(self, part: str, look: Callable[[T], Fault | None], result: T) -> Fault | None:
        if not notices.heard():
            return look(result)
        start = perf_counter()
        fault = look(result)
        outcome = "passed" if fault is None else "failed"
        seconds = perf_counter() - start
        notices.post("check", seconds, operator=f"{self.name} {part}", check=SAMPLED, outcome=outcome)
        return fault


# ---- what is drawn -----------------------------------------------------------------------------------------------


def _drawn(count: int) -> list[int]:
    """Some of the numbers below `count`, ascending, each as likely as the others."""
    return sorted(_random.sample(range(count), min(ROWS, count)))


@dataclass(frozen=True)
class _Rows:
    """Some rows of a call in float64."""

    index: Tensor  # [k], among the rows that take part, on the call's device
    place: Tensor  # [k], among the rows of input
    numbers: Sequence[int]  # as the caller counts them
    call: Operands  # these rows, on the CPU
    roundings: Roundings
    logits: Exact  # [k, V]

    @classmethod
    def draw(cls, call: Operands, kernel: str) -> _Rows:
        """Draw some rows, and compute their logits."""
        index = torch.tensor(_drawn(call.size), dtype=torch.int64, device=call.input.device)
        place = index if call.kept is None else call.kept[index]
        rows = replace(
            call,
            input=_on_cpu(call.input[place]),
            weight=_on_cpu(call.weight),
            bias=None if call.bias is None else _on_cpu(call.bias),
            temperature=_of_rows(call, index),
            target=None if call.target is None else _on_cpu(call.target[index]),
            column_weight=None if call.column_weight is None else _on_cpu(call.column_weight),
            dense=None if call.dense is None else _on_cpu(call.dense[index]),
            kept=None,
        )
        numbers = place.tolist() if call.numbers is None else [int(call.numbers[row]) for row in index.tolist()]
        roundings = Roundings.of(kernel, call)
        return cls(index, place, numbers, rows, roundings, bounds.logits(rows, roundings))

    def fault_in_statistics(self, found: Statistics) -> Fault | None:
        """Among those statistics that the kernel returned."""
        for name, exact in bounds.statistics(self.call, self.logits, self.roundings).items():
            values = getattr(found, name)
            if values is not None:
                fault = _fault(name, values[self.index], exact, self.numbers)
                if fault is not None:
                    return fault
        return None

    def fault_in_gradient(self, of_input: Tensor, largest: Tensor, terms: LogitGradient) -> Fault | None:
        """In the gradient of input [M, H], from the max [N] and the coefficients of all rows."""
        some = LogitGradient(*(None if each is None else _on_cpu(each[self.index]) for each in terms))
        largest = _on_cpu(largest[self.index])
        exact = gradient_bounds.input_gradient(self.call, self.logits, largest, some, self.roundings)
        return _fault("gradient of input", of_input[self.place], exact, self.numbers)


@dataclass(frozen=True)
class _Columns:
    """Some columns of a call; its rows of weight."""

    index: Tensor  # [k], on the call's device
    call: Operands  # these columns, on the CPU
    has_target: Tensor | None  # [N], whose target is one of these columns
    roundings: Roundings

    @classmethod
    def draw(cls, call: Operands, kernel: str) -> _Columns:
        """Draw some columns that aren't masked."""
        index = torch.tensor(_drawn(call.valid_vocab), dtype=torch.int64, device=call.input.device)
        target = has_target = None
        if call.target is not None:
            is_target = _on_cpu(call.target)[:, None] == _on_cpu(index)
            has_target, target = is_target.any(dim=1), is_target.to(torch.int8).argmax(dim=1)
        columns = replace(
            call,
            input=_on_cpu(call.input),
            weight=_on_cpu(call.weight[index]),
            bias=None if call.bias is None else _on_cpu(call.bias[index]),
            temperature=None if call.temperature is None else _on_cpu(call.temperature),
            valid_vocab=len(index),
            target=target,
            column_weight=None if call.column_weight is None else _on_cpu(call.column_weight[index]),
            dense=None if call.dense is None else _on_cpu(call.dense[:, index]),
            kept=None if call.kept is None else _on_cpu(call.kept),
        )
        return cls(index, columns, has_target, Roundings.of(kernel, call))

    def fault_in_gradients(self, results: Gradients, largest: Tensor, terms: LogitGradient) -> Fault | None:
        """In those of weight [V, H] and bias [V], from the max [N] and the coefficients of all rows."""
        terms = LogitGradient(*(None if each is None else _on_cpu(each) for each in terms))
        if terms.target is not None and self.has_target is not None:
            terms = terms._replace(target=terms.target.masked_fill(~self.has_target, 0.0))
        of_weight, of_bias = gradient_bounds.column_gradients(self.call, _on_cpu(largest), terms, self.roundings)
        fault = None
        if results.weight is not None:
            fault = _fault("gradient of weight", results.weight[self.index], of_weight, self.index.tolist())
        if fault is None and results.bias is not None:
            fault = _fault("gradient of bias", results.bias[self.index], of_bias, self.index.tolist(), "position")
        return fault


def _on_cpu(tensor: Tensor) -> Tensor:
    return tensor.detach().resolve_neg().cpu()


def _of_rows(call: Operands, index: Tensor) -> Tensor | None:
    if call.temperature is None:
        return None
    return _on_cpu(call.temperature[index] if call.temperature_per_row else call.temperature)


def _joined(parts: Sequence[tuple[Tensor | None, ...]]) -> list[Tensor | None]:
    """Columns of consecutive chunks as those of all rows."""
    return [None if column[0] is None else torch.cat(column) for column in zip(*parts, strict=True)]


# ---- the comparison ----------------------------------------------------------------------------------------------


def _fault(what: str, found: Tensor, exact: Exact, numbers: Sequence[int], place: str = "row") -> Fault | None:
    """Rows [k] or [k, ...] that are further from float64 than rounding takes them; None if there are none.

    Where float64 has a NaN or an infinity, the kernel's result needs to be one of them, no matter which.
    """
    values = wide(found)
    off = (values - exact.value).abs()
    wrong = torch.where(exact.value.isfinite(), ~(off <= exact.bound), values.isfinite())
    wrong &= exact.bound.isfinite()
    if not bool(wrong.any()):
        return None
    rows = wrong.reshape(len(numbers), -1).any(dim=1).nonzero()[:, 0].tolist()
    first = wrong.nonzero()[0].tolist()
    listed = ", ".join(str(numbers[row]) for row in rows[:LISTED])
    if len(rows) > LISTED:
        listed += f" and {len(rows) - LISTED} more"
    return Fault(
        what,
        places=f"{place} {listed}" if len(rows) == 1 else f"{place}s {listed}",
        found=float(values[tuple(first)]),
        exact=float(exact.value[tuple(first)]),
        bound=float(exact.bound[tuple(first)]),
    )
