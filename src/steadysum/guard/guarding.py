"""Guarding: the happy path of a guarded call, and the state that a guard holds over time.

Not here: what happens when a check objects (healing.py), and how callables and modules come by a guard (protection.py).
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from steadysum.guard.as_it_was import made_as_found
from steadysum.guard.attempt import Target, failed, is_unguarded, judge, unguardable
from steadysum.guard.checks.protocol import Check
from steadysum.guard.failure import mention
from steadysum.guard.gradient import watch_gradients
from steadysum.guard.healing import Before, Healing, Held, anywhere, heal
from steadysum.guard.options import Options
from steadysum.guard.refusal import runs_python, watch
from steadysum.guard.restore import Contents, ambient
from steadysum.guard.sampling import Sampler
from steadysum.notices import post

__all__ = ["Guard"]

_REMEMBERED: Final = 100  # healings that a guard can tell of; bundles have the rest


class Guard:
    """Runs calls and checks their results; any number of threads may use one guard."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.healings: deque[Healing] = deque(maxlen=_REMEMBERED)  # the newest last
        self._sampler = Sampler(options.checks, options.every, options.escalate)
        self._said: set[str] = set()

    def call(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        shown: Callable[..., Any] | None = None,
    ) -> Any:
        """A result that has passed its checks, at once or in the end. Raises AccuracyError."""
        if is_unguarded():
            return function(*args, **kwargs)
        reason = unguardable()
        if reason is not None:
            self._say_unchecked(reason)
            return function(*args, **kwargs)
        checks = self._sampler.next()
        if not checks:
            return function(*args, **kwargs)
        target = Target(function, args, kwargs, shown)
        before = self._before(target)
        output = target.run()
        made = made_as_found(target, before.watched, before.contents, output)
        findings = judge(checks, made, self.options.operator)
        if not findings:
            self._say_unchecked("no check fits the call")
        del made  # it holds the output, and with it the graph
        objections = failed(findings)
        if not anywhere(self.options, bool(objections)):
            post("call", operator=self.options.operator, outcome="clean")
        else:
            self._strike()
            held = Held(output)
            del output
            output = heal(self.options, checks, target, before, held, objections, self.healings.append)
        reason = watch_gradients(self.options, checks, target, output, self.healings.append)
        if reason is not None:
            self._say_unchecked(reason, "the gradient of a call")
        return output

    def with_check(self, check: Check) -> Guard:
        """A guard with one more check, the last."""
        return Guard(dataclasses.replace(self.options, checks=(*self.options.checks, check)))

    def _before(self, target: Target) -> Before:
        watched = watch(target.callee, target.args, target.kwargs)
        saved = ambient(watched.devices, target.args, target.kwargs, runs_python=runs_python(target.callee))
        return Before(saved, watched, Contents.of(watched.writable()) if self.options.restore else None)

    def _strike(self) -> None:
        if self._sampler.strike():
            escalate = self.options.escalate
            assert escalate is not None
            mention(
                f"{self.options.operator} failed its checks {escalate.strikes} times within {escalate.window} calls: "
                "from here on every call has the strong checks, too"
            )

    def _say_unchecked(self, reason: str, what: str = "a call") -> None:
        if what not in self._said:
            self._said.add(what)
            mention(f"{what} of {self.options.operator} wasn't checked: {reason}. This is said once.")
