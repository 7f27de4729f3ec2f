"""Healing: from a result that failed its checks to a right one: reruns, then the fallback; and what is told of it.

Not here: whether a call is checked (guarding.py), whose fault it was (attribution.py), what follows if nothing helped
(failure.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from steadysum.guard.as_it_was import apart, left_changed, made_as_found, state_before
from steadysum.guard.attempt import Target, failed, judge, unguarded
from steadysum.guard.attribution import RANDOM, Result, Verdict, agree, agree_where_right, attribute
from steadysum.guard.bundle import Evidence, import_path_of
from steadysum.guard.checks.protocol import Check, Finding, Made
from steadysum.guard.failure import Failure, end, mention
from steadysum.guard.options import Options
from steadysum.guard.refusal import Watched, rehearse, runs_python
from steadysum.guard.restore import Ambient, Contents, ambient, put, synchronise, within
from steadysum.guard.tensors import map_tensors, why_unlike
from steadysum.notices import post

__all__ = ["Before", "Healing", "Held", "anywhere", "heal"]


class Before(NamedTuple):
    """What was saved before a call that is checked."""

    ambient: Ambient
    watched: Watched
    contents: Contents | None  # copies, where the guard was told to restore


Outcome = Literal["healed", "fallback", "raised"]


class Healing(NamedTuple):
    """What was done about one result that failed its checks."""

    outcome: Outcome  # "raised" also where on_failure asks for something else
    findings: tuple[Finding, ...]  # those that objected; none: another rank's did
    verdict: Verdict
    reruns: int
    fallback: str | None  # its name, if it was run
    bundle: Path | None


class Held:
    """A result that is let go of before a rerun: with it goes its graph, and the memory that the graph holds."""

    def __init__(self, output: Any) -> None:
        self.output = output
        self.values = map_tensors(lambda tensor: tensor.detach(), output)  # the same memory, without the graph

    def release(self) -> None:
        """Lets go of the graph."""
        self.output = None


def heal(
    options: Options,
    checks: tuple[Check, ...],
    target: Target,
    before: Before,
    held: Held,
    findings: tuple[Finding, ...],
    remember: Callable[[Healing], None],
) -> Any:
    """A right result, if there is a way to it; else what the options say.

    Args:
        options: the guard's.
        checks: those that the call is under.
        target: the call.
        before: what was saved before it.
        held: its result; nobody else may hold it.
        findings: those that object; none, if only other ranks' results have failed.
        remember: is told what was done, in any case.

    Returns:
        The result of a rerun or of the fallback, or what the user's on_failure gave back.

    Raises:
        AccuracyError; whatever the callable raises in a rerun.
    """
    course = _Course(options, checks, target, before, held, findings)
    after = _ambient_again(before, target)
    try:
        return course.run()
    finally:
        put(after)  # whatever reruns have drawn: the random state is that of one unguarded run
        course.save()
        remember(course.healing())


class _Course:
    """What has happened so far in one healing."""

    def __init__(
        self,
        options: Options,
        checks: tuple[Check, ...],
        target: Target,
        before: Before,
        held: Held,
        findings: tuple[Finding, ...],
    ) -> None:
        self.options = options
        self.checks = checks
        self.target = target
        self.before = before
        self.held = held
        self.first = Result(apart(held.values, before.watched), findings)
        self.reruns: list[Result] = []
        self.fallback: Result | None = None
        self.unconfirmed: list[Result] = []  # a rerun that passed, and that another one must agree with
        self.refusal: str | None = None
        self.ended: str | None = None  # what a rerun raised
        self.no_fallback = "there is no fallback to compare with"
        self.outcome: Outcome = "raised"
        self.bundle: Path | None = None
        self.is_saved = False

    def run(self) -> Any:
        """Reruns, fallback, end."""
        self.refusal = self.why_refused()
        if self.refusal is None and self.rerun_up_to_limit():
            return self.finish("healed")
        if self.has_fallback() and self.fall_back():
            return self.finish("fallback")
        return self.fail()

    def rerun_up_to_limit(self) -> bool:
        """Reruns, and one beyond their number if it is to confirm another; whether there is a result to take."""
        for number in range(self.options.max_retries + 1):
            if number == self.options.max_retries and not self.unconfirmed:
                break
            if self.rerun():
                return True
            if self.refusal is not None:
                break
        return False

    def rerun(self) -> bool:
        """Once more, and whether the result can be taken.

        It can if it passes, and is the first result but for the rows at fault. If it differs elsewhere too, another
        rerun must agree with it: what draws numbers that can't be put back passes its checks by luck.
        """
        post("retry", operator=self.options.operator)
        self.held.release()
        try:
            has_failed = self.attempt(self.target.run, self.reruns)
        except BaseException as error:
            self.ended = f"it raised {error!r}"
            raise
        if has_failed:
            return False
        passing = self.reruns[-1]
        if self.unconfirmed:
            if not anywhere(self.options, not agree(self.unconfirmed[-1].output, passing.output)):
                return True
            self.refusal = RANDOM
            return False
        doubtful = runs_python(self.target.callee) and not agree_where_right(self.first, passing)
        if not anywhere(self.options, doubtful):
            return True
        self.unconfirmed.append(passing)
        return False

    def fall_back(self) -> bool:
        """Another way, and whether its result can be taken."""
        fallback, results = self.options.fallback, list[Result]()
        assert fallback is not None
        with unguarded():
            try:
                has_failed = self.attempt(lambda: fallback.run(self.target), results)
            except Exception as error:
                self.no_fallback = f"the fallback {fallback.name} failed itself: {error!r}"
                mention(f"the fallback {fallback.name} of {self.options.operator} failed itself: {error!r}")
                return False
        self.fallback = results[0]
        if not has_failed:
            post("fallback", operator=self.options.operator, to=fallback.name)
            mention(
                f"{self.options.operator} stayed wrong, and its fallback {fallback.name} was right; its bits may differ"
            )
        return not has_failed

    def why_refused(self) -> str | None:
        """Why the call must not be run again, or None."""
        watched, options = self.before.watched, self.options
        if options.max_retries == 0 and options.fallback is None:
            return None
        written = watched.why_written()
        if written is not None:
            if self.before.contents is None:
                return f"{written}; protect(..., restore=True) takes copies that a rerun starts from"
            return watched.why_not_restorable()
        may_talk = options.all_ranks_decide is None and _has_ranks()
        may_write = watched.has_unversioned() and self.before.contents is None
        if not (may_talk or may_write):
            return None
        with self.surroundings(), torch.no_grad(), unguarded():
            found = rehearse(self.target.function, watched)
        if found is not None and "collective" in found:
            return f"{found}: other ranks wouldn't take part; protect(..., all_ranks_decide=...) reruns on all of them"
        return found

    def attempt(self, run: Callable[[], Any], results: list[Result]) -> bool:
        """One more run, and whether it has failed, here or on another rank."""
        if self.options.synchronize:
            synchronise(self.before.watched.devices)
        with self.surroundings():
            output = run()
        findings = failed(judge(self.checks, self.made(output), self.options.operator)) or self.unlike(output)
        self.held.output = output
        results.append(Result(apart(output, self.before.watched), findings))
        return anywhere(self.options, bool(findings))

    def unlike(self, output: Any) -> tuple[Finding, ...]:
        """What is wrong with a result that no check objects to: it isn't of the first's kind, or can't be judged."""
        reason = why_unlike(self.first.output, output)
        if reason is None:
            now = self.made(output)
            first = now._replace(output=self.first.output)
            lost = [check.name for check in self.checks if check.fits(first) is None and check.fits(now) is not None]
            reason = f"nothing that {lost[0]} can judge, as it could the first result" if lost else None
        if reason is None:
            return ()
        return (Finding("same_kind", passed=False, summary=f"it gave {reason}"),)

    def made(self, output: Any) -> Made:
        """What checks look at."""
        return made_as_found(self.target, self.before.watched, self.before.contents, output)

    def surroundings(self) -> contextlib.AbstractContextManager[None]:
        """Everything as it was before the first run."""
        if self.before.contents is not None:
            self.before.contents.put()
        return within(self.before.ambient)

    def has_fallback(self) -> bool:
        """Whether there is another way, for this call; what must not be run again must not be run another way."""
        fallback = self.options.fallback
        if fallback is None or self.refusal is not None:
            return False
        reason = fallback.fits(self.target)
        if reason is not None:
            mention(f"the fallback {fallback.name} of {self.options.operator} is no other way: {reason}")
        return reason is None

    def finish(self, outcome: Outcome) -> Any:
        """A right result."""
        self.outcome = outcome
        self.save()
        post("call", operator=self.options.operator, outcome=outcome)
        return self.held.output

    def fail(self) -> Any:
        """No right result."""
        self.save()
        post("call", operator=self.options.operator, outcome="raised")
        args, kwargs = self.inputs()
        findings, output = self.first.findings, self.held.output
        failure = Failure(self.options.operator, findings, self.verdict(), output, args, kwargs, self.bundle)
        return end(failure, self.options.on_failure)

    def verdict(self) -> Verdict:
        """Whose fault it was, from what there is by now."""
        return attribute(self.first, self.reruns, self.fallback, self.refusal, self.ended, self.no_fallback)

    def inputs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What the call was given: as it was, where there are copies."""
        contents = self.before.contents
        args, kwargs = self.target.args, dict(self.target.kwargs)
        if contents is None:
            return args, kwargs
        changed = contents.changed()  # the others are left where they are: they may share memory
        return changed.swapped(args), changed.swapped(kwargs)

    def save(self) -> None:
        """Tells of the verdict, and writes the bundle; once, also where a rerun was interrupted."""
        if self.is_saved or not self.first.findings:
            return
        self.is_saved = True
        options, verdict = self.options, self.verdict()
        for finding in self.first.findings:
            post("anomaly", operator=options.operator, check=finding.check, attribution=verdict.attribution)
        if options.bundles is not None:
            self.bundle = options.bundles.write(self.evidence(verdict))

    def evidence(self, verdict: Verdict) -> Evidence:
        """For the bundle."""
        options, owner, contents = self.options, self.before.watched.owner, self.before.contents
        outputs = {"deviating": self.first.output}
        if self.reruns:
            outputs["rerun"] = self.reruns[-1].output
        if self.fallback is not None:
            outputs["fallback"] = self.fallback.output
        args, kwargs = self.inputs()
        told = {
            "outcome": self.outcome,
            "reason": verdict.reason,
            "rows": list(verdict.rows),
            "reruns": len(self.reruns),
        }
        return Evidence(
            options.operator,
            import_path_of(self.target.callee),
            args,
            kwargs,
            outputs,
            self.first.findings,
            verdict.attribution,
            {**options.shown(), **told},
            owner,
            state=None if owner is None else lambda: state_before(owner, contents),
            as_after=left_changed(self.target, self.before.watched, contents),
        )

    def healing(self) -> Healing:
        """For whoever looks back."""
        fallback = self.options.fallback
        name = fallback.name if self.fallback is not None and fallback is not None else None
        return Healing(self.outcome, self.first.findings, self.verdict(), len(self.reruns), name, self.bundle)


def anywhere(options: Options, has_failed: bool) -> bool:
    """Whether a result has failed, here or, where ranks decide together, on any of them."""
    return has_failed if options.all_ranks_decide is None else bool(options.all_ranks_decide(has_failed))


def _ambient_again(before: Before, target: Target) -> Ambient:
    saved = before.ambient
    return ambient(
        before.watched.devices,
        target.args,
        target.kwargs,
        runs_python=saved.python is not None or saved.numpy is not None,
    )


def _has_ranks() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
