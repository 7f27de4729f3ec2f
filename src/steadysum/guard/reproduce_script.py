"""reproduce.py of a bundle: makes the saved call again, and says how often its result deviates.

A copy of this file lies in every bundle, with bundle_reading.py and bundle_exact.py. They need torch, safetensors, and
the function that the bundle names; or another one: --function package.module:name. Nothing of a call is written into
the copies: what to call is read from verdict.json, and must be a path of identifiers.
Not here: reading (bundle_reading.py), and what is right (bundle_exact.py).
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from steadysum.guard.bundle_exact import KNOWN, linear_in_float64
from steadysum.guard.bundle_reading import (
    ACCELERATORS,
    Part,
    RefusedError,
    Unsaved,
    build,
    is_import_path,
    printable,
    read_part,
    read_verdict,
)

# Modules that can be made from their state alone.
LINEAR, EMBEDDING = "torch.nn.modules.linear:Linear", "torch.nn.modules.sparse:Embedding"


class Difference(NamedTuple):
    """How far an output is from another one."""

    rows: int  # with an element beyond what is allowed
    largest: float  # absolute; inf where one is NaN or infinite and the other isn't, or shapes differ
    place: str  # of the largest

    def __str__(self) -> str:
        return f"{self.rows} rows deviate, largest difference {self.largest:.6g} at {self.place}"


def main(arguments: Sequence[str] | None = None, folder: Path | None = None) -> int:
    """Runs the call again: 0 no run deviates, 1 some do, 2 it could not be run or judged."""
    parser = argparse.ArgumentParser(
        description="Makes this bundle's call again. 0: right, 1: it deviates, 2: can't run."
    )
    parser.add_argument("--function", help="package.module:name to call in place of the bundle's own")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--device", help="default: as in the bundle if it is there, else cpu")
    parser.add_argument("--rtol", type=float, default=1e-3)
    parser.add_argument("--atol", type=float, default=1e-5)
    options = parser.parse_args(arguments)
    if options.runs < 1:
        parser.error("--runs must be at least 1")
    try:
        return _reproduce(folder or Path(__file__).resolve().parent, options)
    except RefusedError as error:
        print(f"can't run: {error}")
        return 2


class Judge(NamedTuple):
    """What a run's output is held against."""

    right: Any  # the saved output that passed its checks, or None
    wrong: Any  # the saved deviating output, or None
    exact: Sequence[tuple[Tensor, Tensor]] | None  # float64 values with their bounds, where they are known
    rtol: float
    atol: float
    is_agreed: bool = False  # the saved "deviating" output is what every way gave: the check was wrong, or the inputs

    def deviates(self, output: Any) -> bool:
        """Whether an output is wrong."""
        if self.right is not None:
            return difference(output, self.right, self.rtol, self.atol).rows > 0
        if self.exact is not None:
            return beyond_rounding(output, self.exact).rows > 0
        is_saved = difference(output, self.wrong, self.rtol, self.atol).rows == 0
        if self.is_agreed:
            return not is_saved
        return is_saved  # the wrong one, again: all that is known


class Tally(NamedTuple):
    """What the runs showed."""

    runs: int
    deviating: int  # outputs that are wrong
    alike: int  # outputs with the very values of the saved deviating one
    raised: int
    last_error: str


def _reproduce(folder: Path, options: argparse.Namespace) -> int:
    verdict = read_verdict(folder)
    _show(folder, verdict)
    inputs = read_part(folder, verdict, "inputs")
    if inputs is None:
        raise RefusedError("inputs", "none saved", "inputs", "They were left out; the reason stands above.")
    outputs = read_part(folder, verdict, "outputs")
    saved = {} if outputs is None else build(outputs)
    judge = _judge_of(verdict, saved, _exact_of(verdict, folder, inputs), options)
    accelerator = options.device or _accelerator(inputs)
    function = _function(verdict, folder, options.function, accelerator)
    tally = _run(function, inputs, accelerator, judge, options.runs)
    if tally.raised:
        print(f"raised      {tally.raised} of {tally.runs} runs, the last one {tally.last_error}")
    if tally.raised == tally.runs:
        return 2
    count = tally.deviating + tally.raised
    low, high = (100 * end for end in interval(count, tally.runs))
    share = 100 * count / tally.runs
    print(f"runs        {count} of {tally.runs} deviate: {share:.3g} % (95 %: {low:.3g} to {high:.3g} %)")
    if judge.wrong is not None:
        print(f"            {tally.alike} have the values of the saved deviating output")
    print("FAIL" if count else "PASS")
    return 1 if count else 0


def _show(folder: Path, verdict: Mapping[str, Any]) -> None:
    """What the guard found."""
    print("bundle     ", printable(folder.name))
    print("operator   ", printable(verdict.get("operator")))
    print("function   ", printable(verdict.get("function") or "none that can be imported by name"))
    print("attribution", printable(verdict.get("attribution")))
    for finding in verdict.get("findings", []):
        if isinstance(finding, dict) and finding.get("passed") is False:
            print("check      ", printable(f"{finding.get('check')}: {finding.get('summary')}"))
    for what in verdict.get("as_after") or ():
        print("as after   ", printable(f"{what}: the call left it so, and how it was before isn't known"))
    for what, why in verdict["left_out"].items():
        print("left out   ", printable(f"{what}: {why}"))


def _judge_of(
    verdict: Mapping[str, Any],
    saved: Mapping[str, Any],
    exact: Sequence[tuple[Tensor, Tensor]] | None,
    options: argparse.Namespace,
) -> Judge:
    """What runs are held against; and shows how the saved outputs stand to it."""
    right, wrong = saved.get(str(verdict.get("right"))), saved.get("deviating")
    rtol, atol = options.rtol, options.atol
    if right is None and wrong is None and exact is None:
        allowed = "outputs, or an operator whose values in float64 are known"
        raise RefusedError("outputs", "none saved", allowed, "They were left out; the reason stands above.")
    if right is not None and wrong is not None:
        if difference(wrong, right, rtol, atol).rows == 0:  # they differ by less than the tolerance: bits decide
            rtol, atol = 0.0, 0.0
        print(f"saved       deviating against {printable(verdict['right'])}: {difference(wrong, right, rtol, atol)}")
    if exact is not None:
        for name, output in saved.items():
            print(f"float64     saved {printable(name)}: {beyond_rounding(output, exact)}")
    is_agreed = right is None and verdict.get("attribution") == "application"
    is_right = exact is not None and wrong is not None and beyond_rounding(wrong, exact).rows == 0
    if is_right and right is None:
        print("not at fault the operator: the saved output is right up to rounding, and what objected to it is wrong")
    elif is_agreed and exact is None:
        print("not at fault the operator: every way gave the saved output; look at the check, and at the inputs")
    return Judge(right, wrong, exact, rtol, atol, is_agreed)


def _run(function: Callable[..., Any], inputs: Part, accelerator: str, judge: Judge, runs: int) -> Tally:
    """Calls again and again."""
    deviating = alike = raised = 0
    last = ""
    with torch.no_grad():
        for _ in range(runs):
            call = build(inputs, accelerator)  # fresh in each run: the function may write into its operands
            try:
                output = function(*call["args"], **call["kwargs"])
            except Exception as error:
                raised += 1
                last = printable(f"{type(error).__name__}: {error}", 500)
                continue
            deviating += judge.deviates(output)
            alike += judge.wrong is not None and difference(output, judge.wrong, 0.0, 0.0).rows == 0
    return Tally(runs, deviating, alike, raised, last)


def difference(actual: Any, expected: Any, rtol: float, atol: float) -> Difference:
    """How far two nested outputs are apart, row by row; NaN equals NaN."""
    rows, largest, place = 0, 0.0, "-"
    one, other = list(_tensors(actual)), list(_tensors(expected))
    if len(one) != len(other):
        return Difference(1, math.inf, f"{len(one)} tensors, not {len(other)}")
    for (name, left), (_, right) in zip(one, other, strict=True):
        if left.shape != right.shape or left.dtype != right.dtype:
            return Difference(
                1, math.inf, f"{name}, {left.dtype}{list(left.shape)}, not {right.dtype}{list(right.shape)}"
            )
        left, right = _wide(left), _wide(right)
        apart = (left - right).abs()
        apart = torch.where((left == right) | (left.isnan() & right.isnan()), 0.0, apart).nan_to_num(
            nan=math.inf, posinf=math.inf
        )
        allowed = atol + rtol * right.abs().nan_to_num(nan=0.0, posinf=0.0)
        count, worst, where = _worst(apart, apart > allowed)
        rows += count
        if worst > largest:
            largest, place = worst, f"{name}{where}"
    return Difference(rows, largest, place)


def beyond_rounding(output: Any, exact: Sequence[tuple[Tensor, Tensor]]) -> Difference:
    """How far an output is from the float64 values, where that is more than rounding explains."""
    rows, largest, place = 0, 0.0, "-"
    for (name, actual), (value, bound) in zip(_tensors(output), exact, strict=False):
        if actual.shape != value.shape:
            return Difference(1, math.inf, f"{name}, shape {list(actual.shape)}, not {list(value.shape)}")
        apart = (_wide(actual) - value).abs().nan_to_num(nan=math.inf, posinf=math.inf)
        apart = torch.where(value.isfinite(), apart, 0.0)  # what overflows in float64 says nothing
        count, worst, where = _worst(apart, apart > bound)
        rows += count
        if worst > largest:
            largest, place = worst, f"{name}{where}"
    return Difference(rows, largest, place)


def interval(count: int, runs: int) -> tuple[float, float]:
    """The exact (Clopper-Pearson) 95 % interval of a rate."""

    def tail(share: float, most: int) -> float:  # probability of at most `most`
        logs = math.log(share), math.log1p(-share)
        ways = (math.lgamma(runs + 1) - math.lgamma(k + 1) - math.lgamma(runs - k + 1) for k in range(most + 1))
        return sum(math.exp(way + k * logs[0] + (runs - k) * logs[1]) for k, way in enumerate(ways))

    def solve(most: int, target: float) -> float:
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if tail(middle, most) > target else (low, middle)
        return (low + high) / 2

    lowest = 0.0 if count == 0 else solve(count - 1, 0.975)
    return lowest, 1.0 if count == runs else solve(count, 0.025)


def _exact_of(verdict: Mapping[str, Any], folder: Path, inputs: Part) -> list[tuple[Tensor, Tensor]] | None:
    """The float64 values of the saved call, where they are known."""
    call = build(inputs)
    module, path = verdict.get("module"), verdict.get("function")
    try:
        if isinstance(module, dict):
            state = read_part(folder, verdict, "module")
            if state is None or module.get("class") != LINEAR:
                return None
            values = build(state)
            operands = [*call["args"], *call["kwargs"].values()]
            return linear_in_float64(operands[0], values["weight"], values.get("bias"))
        if isinstance(path, str) and is_import_path(path):
            names = path.replace(":", ".").split(".")
            known = KNOWN.get((names[0], names[-1]))
            return None if known is None else known(*call["args"], **call["kwargs"])
    except (TypeError, AttributeError, RuntimeError, ValueError):  # a call in a form that isn't known here
        return None
    return None


def _function(verdict: Mapping[str, Any], folder: Path, named: str | None, accelerator: str) -> Callable[..., Any]:
    """What to call: what the user names, or the bundle; of a module, made with the saved state."""
    module = verdict.get("module")
    if not isinstance(module, dict):
        return _imported(named or verdict.get("function"))
    state = read_part(folder, verdict, "module")
    if state is None:
        raise RefusedError("module", "no state saved", "a state", "It was left out; the reason stands above.")
    values = build(state)
    if named is not None:
        made = _imported(named)
        made = made if isinstance(made, torch.nn.Module) else made()
    elif module.get("class") == LINEAR:
        rows, columns = values["weight"].shape
        made = torch.nn.Linear(columns, rows, bias="bias" in values, dtype=values["weight"].dtype)
    elif module.get("class") == EMBEDDING:
        made = torch.nn.Embedding(*values["weight"].shape).to(values["weight"].dtype)
    else:
        remedy = "Name a function without arguments that makes the module: --function package.module:name."
        raise RefusedError("module", printable(module.get("class")), "Linear, Embedding, or one you make", remedy)
    made.load_state_dict(values)
    return made.train(bool(module.get("training"))).to(accelerator)


def _imported(path: Any) -> Callable[..., Any]:
    if path is None:
        remedy = "Name it: --function package.module:name."
        raise RefusedError("function", "none in the bundle: it can't be imported by name", "a function", remedy)
    if not is_import_path(path):
        raise RefusedError("function", printable(path, 200), "package.module:name, of identifiers", "Use --function.")
    module, _, name = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for each in name.split("."):
            found = getattr(found, each)
    except (ImportError, AttributeError) as error:
        remedy = "Run it where the module can be imported (PYTHONPATH), or use --function."
        raise RefusedError(f"function {path}", f"{type(error).__name__}: {error}", "one that exists", remedy) from None
    found = getattr(found, "guarded", found)  # where protect is a decorator: the function itself, unguarded
    if not callable(found):
        raise RefusedError(f"function {path}", type(found).__name__, "something callable", "Use --function.")
    function: Callable[..., Any] = found
    return function


def _accelerator(inputs: Part) -> str:
    """The device type of the inputs, if there is such a device here."""
    for layout in inputs.layouts.values():
        kind = str(layout.get("device", "cpu")).partition(":")[0]
        if kind in ACCELERATORS and hasattr(torch, kind) and getattr(torch, kind).is_available():
            return kind
    return "cpu"


def _tensors(value: Any, name: str = "output") -> Iterator[tuple[str, Tensor]]:
    """Tensors of a nested output, and where they are."""
    if isinstance(value, Tensor):
        yield name, value.detach().cpu()
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tensors(item, f"{name}.{key}")
    elif isinstance(value, (tuple, list)) and not isinstance(value, Unsaved):
        for place, item in enumerate(value):
            yield from _tensors(item, f"{name}.{getattr(value, '_fields', range(len(value)))[place]}")


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _worst(apart: Tensor, beyond: Tensor) -> tuple[int, float, str]:
    """Rows beyond, and the largest difference with its place."""
    if apart.numel() == 0:
        return 0, 0.0, ""
    rows = int((beyond if beyond.ndim < 2 else beyond.flatten(0, -2).any(-1)).sum())
    place = [int(each) for each in torch.unravel_index(apart.argmax(), apart.shape)]
    return rows, float(apart.max()), str(place)


if __name__ == "__main__":
    sys.path[0] = os.getcwd()  # your modules are found from where you are, as with python -m; a bundle has none
    sys.exit(main())
