"""ExhaustiveRunner: every run that programs can have over the memory model, equivalent ones once.

Breadth first over states, so that the first counterexample has as few choices as any that is explored. A state is
what the future depends on: memory, store buffers, flags, timeouts used, faults spent, and where each program stands
(a program can't be copied: program_tree.py). Equal states are explored once.

Some orders needn't be told apart. With `reduced`, where a unit's next action is one of the following, it is taken at
once, and no other choice in that state:

- Compute, Note: nobody sees when they are done.
- Write of whole lines: it puts words into the unit's own store buffer, whose drains are choices of their own. (A word
  of part of a line takes up what stands beside it, so that its moment matters.)
- Fence over an empty store buffer: it does nothing. Other fences are taken when they are; each order in which their
  words could drain is explored by separate drains.
- Signal of a value that the flag has reached: it does nothing.
- Await, once its flags are there: flags only grow, so that it ends in the same way now and later. Await before: the
  unit blocks, from where it can do all that it could by starting to wait later, since being woken is the same as not
  having waited. Not if waits can be cut short by a fault: then what is missing depends on the moment.
- Barrier whose own flag is set, because the unit was woken or tries again: as Await. Its first arrival is a signal, and
  so a choice.

Each such action commutes with every choice of the others (neither changes what the other finds, nor whether the other
can be chosen), it stays possible whatever they do, and it needs none of them; a run in which it comes later is a run
in which it comes now, with the same results, errors and ends. Programs are finite, so none is put off for ever. So
each result returned, error raised and unit stuck in some run is so in some run explored: S, A and L of properties.py
keep their answers. That a write happens as early as it can is what the property "named before any slot was written"
needs, too. A fault that may act on the action is tried there, and not; one that ends the unit is tried before each of
its actions, so nothing is lost there.

Not here: what must hold in a run (properties.py), and what is explored (exchange_lines.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from steadysum.errors import OptionError
from steadysum.sync.actions import Action, Await, Barrier, Compute, Fence, Flag, Note, Signal, Write
from steadysum.sync.exploration_faults import ChosenFaults, Spent
from steadysum.sync.machine import Choice, Machine, Saved, State
from steadysum.sync.program_tree import Cursor, Tree
from steadysum.sync.schedule import Schedule
from steadysum.sync.virtual import Launch

__all__ = ["Counterexample", "ExhaustiveRunner", "Exploration", "Outcome", "Step", "Violation", "Watch"]

Script = frozenset[tuple[int, int]]


class Violation(NamedTuple):
    """A property that a run has broken."""

    name: str  # of the property
    what: str  # for people


class Counterexample(NamedTuple):
    """A run that breaks a property."""

    violation: Violation
    schedule: Schedule  # up to the choice that breaks it; VirtualRunner.replay takes it

    @property
    def choices(self) -> int:
        """Its length, without the faults' tokens."""
        return sum(choice.kind != "f" for choice in self.schedule.choices)


class Outcome(NamedTuple):
    """How a run ended, by unit."""

    units: tuple[str, ...]  # "returned [3, 12]", "raised SyncTimeout naming (1,)", "dead", "waits for ever", "stopped"


class Step(NamedTuple):
    """What a watch is shown: a unit's action was done, or a fault did something to it instead."""

    machine: Machine  # after it
    unit: int
    action: Action
    done: bool  # False: the unit died before it, or blocks in it
    error: Exception | None  # that ended the unit's program after it
    acted: tuple[str, ...]  # kinds of the faults that acted


class Watch(Protocol):
    """Looks at every run for broken properties. What it remembers is part of the state, so let it be little."""

    def begin(self) -> Hashable:
        """What it remembers at the start."""
        ...

    def after(self, memory: Any, step: Step) -> tuple[Hashable, Iterable[Violation]]:
        """What it remembers after a step, and what the step has broken."""
        ...

    def at_end(self, memory: Any, machine: Machine) -> Iterable[Violation]:
        """What is broken by a run that can't go on."""
        ...


class Exploration(NamedTuple):
    """What was found. Where it isn't complete, that is in the first `states` states, and proves nothing of others."""

    complete: bool
    states: int
    outcomes: frozenset[Outcome]
    counterexamples: dict[str, Counterexample]  # by property: the first, so one of the fewest choices
    most_actions: int | None  # K: of one unit in one call; None: a call without an end
    deadlocks: int  # states in which a unit waits for ever

    def holds(self, name: str) -> bool:
        """Whether the property held in every state that was explored."""
        return name not in self.counterexamples

    def __str__(self) -> str:
        broken = ", ".join(sorted(self.counterexamples)) or "nothing"
        if self.complete:
            return f"{self.states} states, all there are: {broken} broken"
        return f"stopped after {self.states} states, {broken} broken in them: not a proof"


@dataclass(frozen=True)
class ExhaustiveRunner:
    """Explores every run.

    Args:
        limit: of states; more are not explored. Ctrl-C ends an exploration in the same way.
        reduced: whether orders that nobody can tell apart are explored once.
        merges: whether a program's histories that leave it in the same state are one.
        stops_at: properties; the exploration ends when each of them is broken. (): never.
    """

    limit: int = 1_000_000
    reduced: bool = True
    merges: bool = True
    stops_at: tuple[str, ...] = ()

    def explore(self, launch: Launch, watch: Watch | None = None) -> Exploration:
        """Every run of what is launched; its interference must be ChosenFaults, or none.

        Raises:
            OptionError: an interference that draws what it does.
        """
        if launch.interference is not None and not isinstance(launch.interference, ChosenFaults):
            raise OptionError(
                "interference of an exploration",
                seen=type(launch.interference).__name__,
                allowed="ChosenFaults, or None",
                remedy="Explore with faults whose acting is a choice: exploration_faults.py.",
            )
        return _Explorer(self, launch, watch or _NoWatch()).run()


class _NoWatch:
    """Looks for nothing."""

    def begin(self) -> Hashable:
        return None

    def after(self, memory: Any, step: Step) -> tuple[Hashable, Iterable[Violation]]:  # noqa: ARG002 - Watch's signature
        return None, ()

    def at_end(self, memory: Any, machine: Machine) -> Iterable[Violation]:  # noqa: ARG002 - Watch's signature
        return ()


class _Full(NamedTuple):
    """A state, whole."""

    saved: Saved
    nodes: tuple[int, ...]  # where each program stands
    spent: Spent
    memory: Hashable  # of the watch


class _Edge(NamedTuple):
    """From a state to the one that a choice leads to."""

    to: int
    unit: int = -1  # whose action was done; -1: nobody's
    epoch: int = 0  # of that action


class _Way(NamedTuple):
    """What a choice leads to, with certain faults acting."""

    taken: tuple[Choice, ...]
    found: _Full
    done: tuple[int, int] | tuple[()]  # unit and epoch of the action that was done
    violations: list[Violation]


class _Explorer:
    """One exploration."""

    def __init__(self, runner: ExhaustiveRunner, launch: Launch, watch: Watch) -> None:
        self._runner = runner
        self._watch = watch
        self._stops_at_error = launch.stops_at_error
        self._faults = launch.interference if isinstance(launch.interference, ChosenFaults) else ChosenFaults()
        units = tuple(launch.programs())
        self._trees = [Tree(lambda unit=unit: launch.programs()[unit], runner.merges) for unit in units]  # type: ignore[misc]
        self._cursors = [Cursor(tree) for tree in self._trees]
        self._machine = Machine(
            launch.memory,
            dict(zip(units, self._cursors, strict=True)),  # type: ignore[arg-type]
            launch.interference,
            retries=launch.retries,
            log=False,
        )
        self._numbers: dict[Hashable, int] = {}  # parts of states, as small numbers
        self._seen: dict[Hashable, int] = {}  # state -> its number
        self._came_from: list[tuple[int, tuple[Choice, ...]]] = []  # by number: the state before it, and the choice
        self._edges: list[list[_Edge]] = []  # by number
        self._outcomes: set[Outcome] = set()
        self._counterexamples: dict[str, Counterexample] = {}
        self._deadlocks = 0

    def run(self) -> Exploration:
        complete = False
        with suppress(KeyboardInterrupt):  # what is known so far is told, and that it isn't all
            complete = self._search()
        return Exploration(
            complete,
            len(self._seen),
            frozenset(self._outcomes),
            self._counterexamples,
            _most_actions(self._edges, len(self._trees)),
            self._deadlocks,
        )

    def _search(self) -> bool:
        """Breadth first; gives back whether all was explored."""
        frontier: deque[tuple[int, _Full]] = deque()
        start = self._save(self._watch.begin())
        self._number(start, -1, ())
        frontier.append((0, start))
        while frontier:
            number, full = frontier.popleft()
            self._load(full)
            choices = self._choices()
            if not choices:
                self._end(number, full)
            for choice in choices:
                for taken, found, done, violations in self._ways(full, choice):
                    new, reached = self._number(found, number, taken)
                    self._edges[number].append(_Edge(reached, *done))
                    for violation in violations:
                        if violation.name not in self._counterexamples:
                            self._counterexamples[violation.name] = Counterexample(
                                violation, Schedule((*self._schedule(number), *taken))
                            )
                    if new:
                        frontier.append((reached, found))
            if len(self._seen) > self._runner.limit or self._is_answered():
                return False
        return True

    def _is_answered(self) -> bool:
        wanted = self._runner.stops_at
        return bool(wanted) and all(name in self._counterexamples for name in wanted)

    # ---- going on ---------------------------------------------------------------------------------------------------

    def _choices(self) -> list[Choice]:
        machine = self._machine
        if machine.ended or (self._stops_at_error and State.RAISED in machine.state):
            return []
        if self._runner.reduced:
            for unit, state in enumerate(machine.state):
                if state is State.READY and self._is_unseen(unit):
                    return [Choice("s", unit)]
        choices = machine.choices()
        if self._runner.reduced:  # a fence whose words still drain one by one
            choices = [choice for choice in choices if choice.kind != "s" or not self._is_fence(choice.unit)]
        return choices

    def _is_fence(self, unit: int) -> bool:
        return isinstance(self._machine.pending[unit], Fence)

    def _is_unseen(self, unit: int) -> bool:
        """Whether nobody can tell when a ready unit does its next action: see the text at the top of this file."""
        machine = self._machine
        action = machine.pending[unit]
        flags, get = machine.flags, machine.flags.get
        if isinstance(action, Compute | Note):
            return True
        if isinstance(action, Write):
            return all(machine.memory.whole_lines(span) == span for span, _ in action.words)
        if isinstance(action, Fence):
            return not machine.buffers[unit]
        if isinstance(action, Signal):
            return get(action.flag, 0) >= action.value
        if isinstance(action, Await):
            return not self._faults.touches_waits or _all_there(action.flags, action.value, flags)
        if isinstance(action, Barrier) and get(action.own, 0) >= action.value:
            return not self._faults.touches_waits or _all_there(action.members, action.value, flags)
        return False

    def _ways(self, full: _Full, choice: Choice) -> Iterator[_Way]:
        """Takes a choice, with each set of faults that may act in it."""
        scripts: list[tuple[tuple[int, int], ...]] = [()]
        while scripts:
            script = scripts.pop()
            memory, done, violations = self._take(full, choice, frozenset(script))
            offered = self._faults.offered if choice.kind == "s" else []
            if offered:
                later = offered[offered.index(script[-1]) + 1 :] if script else offered
                scripts += [(*script, decision) for decision in later]
            tokens = tuple(Choice("f", fault, opportunity) for fault, opportunity in script)
            yield _Way((*tokens, choice), self._save(memory), done, violations)

    def _take(
        self, full: _Full, choice: Choice, script: Script
    ) -> tuple[Hashable, tuple[int, int] | tuple[()], list[Violation]]:
        self._load(full)
        machine, faults = self._machine, self._faults
        action = machine.pending[choice.unit]
        machine.take(choice, script)
        if choice.kind not in "st" or action is None:
            return full.memory, (), []
        done = machine.state[choice.unit] not in (State.DEAD, State.BLOCKED)
        step = Step(
            machine,
            choice.unit,
            action,
            done,
            machine.errors[-1][1] if machine.errors else None,
            tuple(faults.faults[number].kind for number, _ in faults.acted) if choice.kind == "s" else (),
        )
        memory, violations = self._watch.after(full.memory, step)
        return memory, (choice.unit, action.place.epoch) if done else (), list(violations)

    def _end(self, number: int, full: _Full) -> None:
        machine = self._machine
        for violation in self._watch.at_end(full.memory, machine):
            self._counterexamples.setdefault(
                violation.name, Counterexample(violation, Schedule(self._schedule(number)))
            )
        if not (self._stops_at_error and State.RAISED in machine.state):
            self._deadlocks += State.BLOCKED in machine.state
        self._outcomes.add(Outcome(tuple(self._ending(unit) for unit in range(len(machine.units)))))

    def _ending(self, unit: int) -> str:
        state = self._machine.state[unit]
        if state is State.DONE:
            return f"returned {self._trees[unit].ends[self._cursors[unit].node][0]}"
        if state is State.RAISED:
            error = self._trees[unit].ends[self._cursors[unit].node][1]
            return f"raised {type(error).__name__} naming {getattr(error, 'cores', ())}"
        if state is State.DEAD:
            return "dead"
        return "waits for ever" if state is State.BLOCKED else "stopped"

    # ---- states -----------------------------------------------------------------------------------------------------

    def _save(self, memory: Hashable) -> _Full:
        nodes = tuple(cursor.node for cursor in self._cursors)
        return _Full(self._machine.save(), nodes, self._faults.spent, memory)

    def _load(self, full: _Full) -> None:
        for cursor, node in zip(self._cursors, full.nodes, strict=True):
            cursor.node = node
        self._machine.load(full.saved, [tree.actions[node] for tree, node in zip(self._trees, full.nodes, strict=True)])
        self._faults.spent = full.spent

    def _number(self, full: _Full, came_from: int, taken: tuple[Choice, ...]) -> tuple[bool, int]:
        """Whether a state is a new one, and its number."""
        number = len(self._seen)
        known = self._seen.setdefault(self._key(full), number)
        if known == number:
            self._came_from.append((came_from, taken))
            self._edges.append([])
        return known == number, known

    def _key(self, full: _Full) -> Hashable:
        saved = full.saved
        buffers = tuple(
            tuple((span, values.tobytes(), own) for _, span, values, own in entries) for entries in saved.buffers
        )
        nodes = tuple(  # where the dead stand makes no difference
            -1 if unit[0] is State.DEAD else node for unit, node in zip(saved.units, full.nodes, strict=True)
        )
        parts = (saved.memory, buffers, saved.flags, saved.timeouts, saved.units, full.spent, full.memory)
        number = self._numbers.setdefault
        return (*nodes, *(number(part, len(self._numbers)) for part in parts))

    def _schedule(self, number: int) -> tuple[Choice, ...]:
        parts: list[tuple[Choice, ...]] = []
        while number >= 0:
            number, taken = self._came_from[number]
            parts.append(taken)
        return tuple(choice for part in reversed(parts) for choice in part)


def _all_there(flags: Iterable[Flag], value: int, found: dict[Flag, int]) -> bool:
    return all(found.get(flag, 0) >= value for flag in flags)


def _most_actions(edges: Sequence[Sequence[_Edge]], units: int) -> int | None:
    """The most actions of one unit in one epoch, over all ways through the states; None: some way never ends."""
    arriving = [0] * len(edges)
    for leaving in edges:
        for edge in leaving:
            arriving[edge.to] += 1
    # The most actions with which a state can be reached, by unit: (epoch, how many in it).
    count = [[(0, 0)] * units for _ in edges]
    ready, visited, most = [number for number, many in enumerate(arriving) if not many], 0, 0
    while ready:
        number = ready.pop()
        visited += 1
        most = max(most, max((done for _, done in count[number]), default=0))
        for edge in edges[number]:
            reached = list(count[number])
            if edge.unit >= 0:
                epoch, done = reached[edge.unit]
                reached[edge.unit] = (edge.epoch, done + 1 if epoch == edge.epoch else 1)
            count[edge.to] = list(map(max, count[edge.to], reached))
            arriving[edge.to] -= 1
            if not arriving[edge.to]:
                ready.append(edge.to)
    return most if visited == len(edges) else None
