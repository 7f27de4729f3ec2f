"""`diagnose`: from a suspected operator to an answer that one can act on. Puts the parts together.

Not here: the runs (isolation/), the probes (probing/), and how the answer is shown (reporting/).
"""

from __future__ import annotations

import inspect
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from steadysum.diagnosis.answering import answer_of
from steadysum.diagnosis.document import created
from steadysum.diagnosis.isolation.inputs import FileInputs, MadeInputs, OwnInputs, Source
from steadysum.diagnosis.probing.catalogue import Probe
from steadysum.diagnosis.probing.session import Session, Watcher, Wish
from steadysum.diagnosis.records import Diagnosis, Evidence
from steadysum.diagnosis.statistics.anytime import anytime_interval
from steadysum.diagnosis.statistics.planning import RunPlan
from steadysum.environment.record import environment_record
from steadysum.errors import DiagnosisInputsError, DiagnosisTargetError, RangeError

__all__ = ["Silent", "diagnose", "plan_of"]

Inputs = Source | str | Sequence[Tensor] | None
_LEAST_BUDGET_S = 5.0  # a process that imports torch takes 2 of them


class Silent:
    """A watcher that says nothing; others may extend it."""

    def planned(self, plan: RunPlan, budget_s: float) -> None:
        """Before the plain runs."""

    def begun(self, probe: Probe, runs: int) -> None:
        """A probe begins."""

    def progressed(self, runs: int) -> None:
        """Runs have ended."""

    def found(self, evidence: Evidence) -> None:
        """A probe is over."""


def diagnose(
    target: str | Callable[..., Any],
    inputs: Inputs = None,
    *,
    reference: str = "float64",
    runs: int | None = None,
    rate: float = 0.01,
    confidence: float = 0.95,
    budget_s: float = 60.0,
    watcher: Watcher = Silent(),  # noqa: B008 - it holds nothing
) -> Diagnosis:
    """Runs an operator again and again in a process of its own, under one condition after the other, and says why its
    results change.

    Args:
        target: package.module:callable or path/file.py:callable; or a callable that has such a name.
        inputs: where its arguments come from: make_inputs() beside the operator (None), another callable's name, a
            source of isolation.inputs, or tensors.
        reference: what is right. "float64": what the operator gives for inputs in float64, and what a callable
            reference() beside it gives, if there is one; a callable's name: what that gives; "none": nothing.
        runs: plain reruns; None: until the question is answered whether it deviates at `rate`.
        rate: the rate of a fault that must not be missed, in (0, 1).
        confidence: of intervals and answers, in (0, 1).
        budget_s: seconds for all of it, at least 5.
        watcher: is told what goes on.

    Returns:
        The answer. After Ctrl-C: what is known until then, and `partial` says so.

    Raises:
        SteadySumError: the target, its inputs or the reference can't be used; nothing was run.

    Source: DESIGN.md 4.7.

    >>> import torch
    >>> diagnose("torch:sort", (torch.randn(64, 8),), budget_s=20.0).answer.value  # doctest: +SKIP
    'clean'
    """
    _check(runs, budget_s)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="steadysum-") as folder:
        source = _source(inputs, Path(folder))
        wish = Wish(rate, confidence, budget_s, runs, reference)
        text = _text(target)
        with Session(text, source, wish, watcher) as session:
            evidence = tuple(session.evidence())
            described, is_partial = session.inputs, session.is_partial
            plain, right = session.reruns, session.right
    answered = answer_of(evidence)
    deviating = len(plain.unlike(right))
    return Diagnosis(
        target=text,
        inputs=described,
        answer=answered.answer,
        verdict=answered.verdict,
        deviating=deviating,
        runs=plain.runs,
        interval=anytime_interval(deviating, plain.runs, confidence),
        confidence=confidence,
        wanted_rate=rate,
        evidence=evidence,
        causes=(),
        decided=False,
        environment=environment_record(),
        created=created(),
        seconds=time.monotonic() - started,
        partial=is_partial,
    )


def plan_of(
    target: str | Callable[..., Any],
    inputs: Inputs = None,
    *,
    rate: float = 0.01,
    confidence: float = 0.95,
    budget_s: float = 60.0,
) -> RunPlan:
    """How many plain runs it takes to see a fault of that rate, and how long, from the time of three runs.

    Args:
        target, inputs, rate, confidence, budget_s: as `diagnose` takes them.

    Returns:
        The plan; as text it is a sentence.

    Raises:
        SteadySumError: the target or its inputs can't be used.

    Source: statistics/planning.py.

    >>> import torch
    >>> plan_of("torch:sort", (torch.randn(64, 8),)).most_runs
    299
    """
    _check(None, budget_s)
    with tempfile.TemporaryDirectory(prefix="steadysum-") as folder:
        wish = Wish(rate, confidence, budget_s)
        with Session(_text(target), _source(inputs, Path(folder)), wish, Silent()) as session:
            return session.plan()


def _check(runs: int | None, budget_s: float) -> None:
    if runs is not None and runs < 2:
        raise RangeError("runs", f"{runs}", "at least 2", "One run can't differ from itself.")
    if not budget_s >= _LEAST_BUDGET_S:
        remedy = "Starting a process takes two of them."
        raise RangeError("budget", f"{budget_s} s", f"at least {_LEAST_BUDGET_S:g} s", remedy)


def _text(target: str | Callable[..., Any]) -> str:
    """What another process finds the callable by."""
    if isinstance(target, str):
        return target
    name = getattr(target, "__qualname__", None)
    module = inspect.getmodule(target)
    file = getattr(module, "__file__", None)
    if not name or "<" in name or module is None:
        seen = f"{target!r}, which has no name in a module"
        remedy = "Define it in a file, and pass path/file.py:name."
        raise DiagnosisTargetError("target", seen, "a callable that another process can find", remedy)
    is_script = module.__name__ == "__main__"
    return f"{file}:{name}" if is_script and file else f"{module.__name__}:{name}"


def _source(inputs: Inputs, folder: Path) -> Source:
    if inputs is None:
        return OwnInputs()
    if isinstance(inputs, str):
        return MadeInputs(inputs)
    if hasattr(inputs, "_fields"):
        return inputs  # type: ignore[return-value]  # a source is a named tuple
    if not all(isinstance(one, Tensor) for one in inputs):
        allowed = "tensors, or what makes them: a callable's name or a source of steadysum.diagnosis.isolation.inputs"
        seen = ", ".join(type(one).__name__ for one in inputs)
        raise DiagnosisInputsError("inputs", seen, allowed, "Write a function make_inputs() that returns them.")
    from safetensors.torch import save_file

    file = folder / "inputs.safetensors"
    save_file({str(place): one.detach().cpu().contiguous().clone() for place, one in enumerate(inputs)}, file)
    return FileInputs(str(file))
