"""One operator under suspicion: plain reruns until their question is answered, then the probes, within a budget.

Each probe's evidence is given as soon as it is there. A crash or a hang is evidence, and the next probe gets a new
process. Not here: what the evidence means (causes/).
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, Protocol

from steadysum.diagnosis.isolation.arranged import Condition
from steadysum.diagnosis.isolation.inputs import Source
from steadysum.diagnosis.isolation.kept import Outputs, read_outputs
from steadysum.diagnosis.isolation.supervisor import Limits, Supervisor
from steadysum.diagnosis.probing import comparing
from steadysum.diagnosis.probing.catalogue import (
    EXACT_INPUTS,
    FLOAT64,
    FRESH_PROCESS,
    PROBES,
    REFERENCE,
    RERUN,
    SAME_RANDOM_STATE,
    Probe,
)
from steadysum.diagnosis.probing.evidence import Control, evidence_of, first_calls, judged
from steadysum.diagnosis.probing.outline import outline
from steadysum.diagnosis.probing.tally import Tally
from steadysum.diagnosis.records import Evidence, Outcome
from steadysum.diagnosis.statistics.planning import RunPlan, plan_runs
from steadysum.diagnosis.statistics.question import Question
from steadysum.diagnosis.statistics.sequential import Decision, SequentialTest
from steadysum.errors import DiagnosisTargetNotFoundError

__all__ = ["Session", "Watcher", "Wish", "hang_limit"]

_FIRST_RUNS: Final = 3  # the time of a run is measured on them
_CHUNK_S: Final = 1.0  # of plain runs, between two looks at what they gave
_PLAIN_SHARE: Final = 0.4  # of the budget, for plain reruns
_LEAST_PLAIN_S: Final = 2.0  # even where starting the process took the budget
_ENOUGH: Final = 8  # deviating runs: their pattern and rate are told well enough to go on with the probes
_MOST_RUNS: Final = 120  # of a probe
_LEAST_S: Final = 0.5  # for a probe; with less left none begins
_SLOWER: Final = 4.0  # times as long as the first process took to start, others may take
_LEAST_LOAD_S: Final = 10.0
_HANG_RUNS: Final = 50.0  # times as long as a run takes, where hangs have been seen: they must not eat up the budget
_LEAST_HANG_S: Final = 1.0
_SET_UP_S: Final = 10.0  # after its time is over a probe whose first run hasn't ended is stopped all the same
_COSTLY: Final = frozenset({"hang", "signal", "exit", "out_of_memory"})  # each takes a new process
_MOST_COSTLY: Final = 2  # of plain runs; one of a probe's


class Wish(NamedTuple):
    """What the user asks for."""

    rate: float = 0.01  # of the fault that must not be missed
    confidence: float = 0.95
    budget_s: float = 60.0
    runs: int | None = None  # plain reruns; None: until their question is answered
    reference: str = "float64"  # or "none", or what names a callable


class Watcher(Protocol):
    """Is told what goes on."""

    def planned(self, plan: RunPlan, budget_s: float) -> None:
        """Before the plain runs, but for the few that measured the time of one."""

    def begun(self, probe: Probe, runs: int) -> None:
        """A probe begins."""

    def progressed(self, runs: int) -> None:
        """So many runs of it have ended."""

    def found(self, evidence: Evidence) -> None:
        """It is over."""


def hang_limit(budget_s: float) -> float:
    """After how many seconds a run counts as a hang: an operator that takes longer can't be probed in the budget.

    >>> hang_limit(60.0)
    6.0
    """
    return min(60.0, max(2.0, budget_s / 10.0))


class Session:
    """The processes, the plain runs and the time that is left; to be used in a with statement.

    Args:
        target, source: as a Supervisor takes them.
        wish: what is asked for.
        watcher: is told what goes on.

    Raises:
        SteadySumError: the target, its inputs or the named reference can't be used; nothing was run.
    """

    def __init__(self, target: str, source: Source, wish: Wish, watcher: Watcher) -> None:
        self._start = time.monotonic()
        self._target, self._source, self._wish, self._watcher = target, source, wish, watcher
        self._limits = Limits(hang_s=hang_limit(wish.budget_s))
        self._question = Question(wish.rate, confidence=wish.confidence)
        self._stack = contextlib.ExitStack()
        self._supervisor = self._stack.enter_context(Supervisor(target, source, self._limits))
        self._start_s = time.monotonic() - self._start  # of a process
        self._limits = self._limits._replace(load_s=max(_LEAST_LOAD_S, _SLOWER * self._start_s))
        self._plain = Tally()
        self._control = Control(self._plain, None, None)
        self._base: tuple[Condition, ...] = ()  # of all probes: the random state, where the operator draws from it
        self._referee: Supervisor | None = None  # runs the reference
        self.is_partial = False

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def inputs(self) -> dict[str, Any]:
        """ "source" in words, "tensors": dtype, shape, device of each."""
        return self._supervisor.inputs

    @property
    def reruns(self) -> Tally:
        """The plain runs."""
        return self._plain

    @property
    def right(self) -> str | None:
        """The digest of the plain result."""
        return self._control.right

    def evidence(self) -> Iterator[Evidence]:
        """Runs everything, once; after Ctrl-C what is known comes all the same, and `is_partial` says so."""
        try:
            for one in self._all():
                self._watcher.found(one)
                yield one
                if self.is_partial:
                    return
        except KeyboardInterrupt:
            self.is_partial = True

    def plan(self) -> RunPlan:
        """The plain runs that the question takes, from the time of a few."""
        if self._plain.runs == 0:
            self._run(self._plain, _FIRST_RUNS, ())
        return plan_runs(self._question, self._plain.seconds)

    def _all(self) -> Iterator[Evidence]:
        self._watcher.begun(RERUN, _FIRST_RUNS)
        plan = self.plan()
        self._watcher.planned(plan, self._wish.budget_s)
        self._rerun(self._wish.runs or plan.most_runs)
        self._settle(self._plain.most_frequent())
        if self._plain.ending.kind == "hang":
            self._lose_patience()
        if self._control.right is None or self.is_partial:
            yield self._of_plain()
            return
        references = list(self._compare())
        yield self._of_plain()
        yield from references
        yield from self._same_random_state()
        if (is_first := 1 in self._plain.unlike(self._control.right)) and self._left() > 0.0:
            yield self._fresh()
        yield from self._exact()
        for place, probe in enumerate(PROBES):
            left = self._left()
            if left < _LEAST_S:
                yield self._not_asked(probe)
            else:
                yield self._probe(probe, left * min(1.0, 3.0 / (len(PROBES) - place)))
        if not is_first:  # last, since it takes a new process, and little speaks for it
            yield self._fresh() if self._left() > self._start_s else self._not_asked(FRESH_PROCESS)

    def _not_asked(self, probe: Probe) -> Evidence:
        made = evidence_of(probe, Tally(), probe.runs, self._control, self._wish.confidence)
        return replace(made, note="the time was used up before it")

    def _left(self) -> float:
        return self._wish.budget_s - (time.monotonic() - self._start)

    def _lose_patience(self) -> None:
        """Runs that take much longer than others count as hangs from now on, in the processes to come."""
        hang_s = min(self._limits.hang_s, max(_LEAST_HANG_S, _HANG_RUNS * self._plain.seconds))
        self._limits = self._limits._replace(hang_s=hang_s)
        self._supervisor = self._stack.enter_context(Supervisor(self._target, self._source, self._limits))

    def _rerun(self, most: int) -> None:
        """Plain runs until the question is answered, or the share of the budget is used up."""
        share = _PLAIN_SHARE if self._wish.runs is None else 1.0
        deadline = time.monotonic() + max(_LEAST_PLAIN_S, share * self._left())
        costly = int(self._plain.ending.kind in _COSTLY)
        while self._plain.runs < most and time.monotonic() < deadline and not self.is_partial:
            if costly >= _MOST_COSTLY or (self._plain.failed == self._plain.runs >= _FIRST_RUNS):
                return
            if self._wish.runs is None and self._is_answered():
                return
            chunk = max(_FIRST_RUNS, int(_CHUNK_S / max(1e-4, self._plain.seconds)))
            chunk = min(chunk, most - self._plain.runs, max(16, self._plain.runs))
            costly += self._run(self._plain, chunk, (), deadline) in _COSTLY

    def _is_answered(self) -> bool:
        right = self._plain.most_frequent()
        test = SequentialTest(self._question)
        for digest in self._plain.digests:
            test.observe(digest != right)
        return test.decision is Decision.BELOW or len(self._plain.unlike(right)) >= _ENOUGH

    def _settle(self, right: str | None) -> None:
        path = self._plain.kept.get(right or "")
        self._control = Control(self._plain, right, read_outputs(path) if path is not None else None)

    def _of_plain(self) -> Evidence:
        made = evidence_of(RERUN, self._plain, self._plain.runs, self._control, self._wish.confidence)
        outputs = self._control.outputs
        tensors = outputs.tensors.values() if outputs is not None else ()
        holds_nan = any(one.is_floating_point() and bool(one.isnan().any()) for one in tensors)
        facts = made.facts | {"holds_nan"} if holds_nan else made.facts
        return replace(made, facts=facts, control_runs=0, control_deviating=0)

    def _compare(self) -> Iterator[Evidence]:
        """The plain result against the reference and against float64; it may turn out that a rarer output is right."""
        if self._wish.reference == "none":
            return
        made = [self._by_reference(), self._by_float64()]
        for probe, tally, outputs in made:
            if outputs is None:
                if tally is not None:
                    yield replace(
                        evidence_of(probe, tally, probe.runs, self._control, self._wish.confidence),
                        outcome=Outcome.VOID,
                        note="the reference can't be had: " + tally.ending.detail.strip().rpartition("\n")[2],
                        facts=frozenset(),
                        pattern=None,
                        deviating=0,
                    )
                continue
            assert tally is not None
            yield self._against(probe, tally, outputs)

    def _against(self, probe: Probe, tally: Tally, reference: Outputs) -> Evidence:
        right = self._control.outputs
        assert right is not None
        allowed = comparing.bound(right, self._supervisor.inputs["tensors"])
        found = comparing.error(right, reference)
        more = frozenset[str]()
        if found > allowed and self._plain.unlike(self._control.right):
            digests = [digest for digest in self._plain.kept if digest != self._control.right][:_MOST_RUNS]
            candidates = comparing.read_all([self._plain.kept[digest] for digest in digests])
            if candidates:
                place, least = comparing.nearest(candidates, reference)
                if least <= allowed:
                    self._settle(digests[place])
                    more = frozenset({"another_output_is_right"})
                    found = least
        right = self._control.outputs
        assert right is not None
        pattern = outline(comparing.rounded_like(reference, right), [right]) if found > allowed else None
        made = judged(probe, tally, found, allowed, pattern)
        return replace(made, facts=made.facts | more)

    def _by_reference(self) -> tuple[Probe, Tally | None, Outputs | None]:
        """The callable that the user names, or else the one called reference beside the operator."""
        self._referee = self._reference()
        if self._referee is None:
            return REFERENCE, None, None
        return self._outputs_of(REFERENCE, self._referee)

    def _reference(self) -> Supervisor | None:
        named = self._wish.reference
        place = self._target.rpartition(":")[0]
        if named != "float64":
            return self._stack.enter_context(Supervisor(named, self._source, self._limits))
        try:
            return self._stack.enter_context(Supervisor(f"{place}:reference", self._source, self._limits))
        except DiagnosisTargetNotFoundError:
            return None

    def _by_float64(self) -> tuple[Probe, Tally, Outputs | None]:
        return self._outputs_of(FLOAT64, self._supervisor)

    def _outputs_of(self, probe: Probe, supervisor: Supervisor) -> tuple[Probe, Tally, Outputs | None]:
        tally = Tally()
        tally.add(supervisor.run(probe.runs, probe.conditions))
        digest = tally.most_frequent()
        path = tally.kept.get(digest or "")
        return probe, tally, None if path is None or tally.ending.kind == "void" else read_outputs(path)

    def _same_random_state(self) -> Iterator[Evidence]:
        if not (self._plain.draws or self._plain.unlike(self._control.right)):
            return
        made = self._probe(SAME_RANDOM_STATE, self._left() * 0.1)
        yield made
        if made.outcome is Outcome.SAME and "less_often_than_control" in made.facts:
            self._base = SAME_RANDOM_STATE.conditions
            tally = Tally()
            self._run(tally, SAME_RANDOM_STATE.runs, self._base)
            right = tally.most_frequent()
            path = tally.kept.get(right or "")
            self._control = Control(tally, right, read_outputs(path) if path is not None else None)

    def _fresh(self) -> Evidence:
        """First and later calls of new processes."""
        processes = FRESH_PROCESS.runs if 1 in self._plain.unlike(self._control.right) else 1
        self._watcher.begun(FRESH_PROCESS, processes)
        firsts, later = Tally(), Tally()
        with contextlib.ExitStack() as stack:  # the kept outputs go with their process's folder
            for _ in range(processes):
                supervisor = stack.enter_context(Supervisor(self._target, self._source, self._limits))
                first = supervisor.run(1, self._base)
                firsts.add(first)
                if first.ending.kind == "complete":
                    later.add(supervisor.run(_FIRST_RUNS, self._base))
            return first_calls(firsts, later, FRESH_PROCESS, processes, self._control, self._wish.confidence)

    def _exact(self) -> Iterator[Evidence]:
        """Reruns on small integers, and whether they give what the reference does."""
        made, tally = self._made(EXACT_INPUTS, self._left() * 0.2)
        facts = made.facts
        path = tally.kept.get(tally.most_frequent() or "")
        if made.outcome in (Outcome.SAME, Outcome.DEVIATES) and path is not None and self._wish.reference != "none":
            in_float64 = () if self._referee is not None else FLOAT64.conditions
            ways = Probe(REFERENCE.name, "", (*EXACT_INPUTS.conditions, *in_float64), 1)
            _, _, reference = self._outputs_of(ways, self._referee or self._supervisor)
            if reference is not None:
                own = read_outputs(path)
                is_exact = comparing.error(own, comparing.rounded_like(reference, own)) == 0.0
                facts |= {"exact" if is_exact else "not_exact"}
        yield replace(made, facts=facts)

    def _probe(self, probe: Probe, seconds: float) -> Evidence:
        return self._made(probe, seconds)[0]

    def _made(self, probe: Probe, seconds: float) -> tuple[Evidence, Tally]:
        """One probe's runs, no longer than so many seconds."""
        rate = len(self._plain.unlike(self._control.right)) / max(1, self._plain.runs)
        planned = max(probe.runs, min(_MOST_RUNS, math.ceil(4.0 / rate))) if 0.0 < rate < 0.5 else probe.runs
        self._watcher.begun(probe, planned)
        deadline = time.monotonic() + min(max(_LEAST_S, seconds), max(_LEAST_S, self._left()))
        tally = Tally()
        conditions = (*(one for one in self._base if one not in probe.conditions), *probe.conditions)
        while tally.runs < planned and time.monotonic() < deadline and not self.is_partial:
            ending = self._run(tally, planned - tally.runs, conditions, deadline)
            if ending in _COSTLY or ending == "void" or (tally.failed == tally.runs >= _FIRST_RUNS):
                break
        own = tally.most_frequent() if probe.compared_with == EXACT_INPUTS.compared_with else None
        made = evidence_of(probe, tally, planned, self._control, self._wish.confidence, own)
        return replace(made, conditions=conditions), tally

    def _run(self, tally: Tally, runs: int, conditions: Sequence[Condition], deadline: float = math.inf) -> str:
        """Counts one more batch; how it ended."""
        if self._supervisor.pid is None:  # a probe's time begins when its process runs
            deadline += self._start_s
        ended = 0

        def is_over() -> bool:
            over = time.monotonic() - deadline
            return over > (0.0 if ended else _SET_UP_S)

        def progressed(runs: int) -> None:
            nonlocal ended
            ended = runs
            self._watcher.progressed(runs)

        batch = self._supervisor.run(runs, conditions, is_over, progressed)
        tally.add(batch)
        self.is_partial |= batch.ending.kind == "interrupted"
        return batch.ending.kind
