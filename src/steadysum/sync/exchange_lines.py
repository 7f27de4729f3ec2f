"""What the exchange protocol is explored with: each line of the table in docs/protocol.md, and the table.

Not here: the exploring (exhaustive.py), and what each line must show (tests/sync/test_exchange_lines.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from steadysum.sync.exchange_model import Exchange
from steadysum.sync.exhaustive import Counterexample, ExhaustiveRunner, Exploration
from steadysum.sync.exploration_faults import Fault
from steadysum.sync.policies import ENHANCED, LEGACY, Parts
from steadysum.sync.properties import ExchangeWatch

__all__ = ["LINES", "SLOW_LINES", "Line", "Row", "explore_line", "explore_lines", "markdown"]


class Line(NamedTuple):
    """A configuration to explore, and the properties that are asked of it."""

    what: str  # the policy, and what is taken away from it
    exchange: Exchange
    faults: tuple[Fault, ...] = ()

    @property
    def asked(self) -> tuple[str, ...]:
        """What faults add: a call that raises must name the right cores, in time."""
        return ("S", "A", "L", "R", "N") if self.faults else ("S", "A", "L")

    @property
    def armed(self) -> str:
        """The faults, and how often each may act in a run."""
        return ", ".join(f"{fault.kind} x {fault.budget}" for fault in self.faults)


class Row(NamedTuple):
    """What the exploration of a line found."""

    line: Line
    exploration: Exploration
    broken: dict[str, Counterexample]  # by property: a run of the fewest choices that there is

    @property
    def held(self) -> tuple[str, ...]:
        """The asked properties that held in every state."""
        endless = {"L"} if self.exploration.most_actions is None else set()
        return tuple(name for name in self.line.asked if name not in self.broken and name not in endless)


def _without(*parts: str) -> Parts:
    return ENHANCED._replace(**dict.fromkeys(parts, False))


_RETRIES: Final = 1  # each wait, read and write may fail once and be tried again
_TWICE: Final = _RETRIES + 1  # so that all attempts can fail
_2X2: Final = Exchange(2, 2, ENHANCED, _RETRIES)
_3X1: Final = Exchange(3, 1, ENHANCED, _RETRIES)


def _less(*parts: str) -> Exchange:
    return _2X2._replace(parts=_without(*parts))


LINES: Final = (
    Line("enhanced", _2X2),
    Line("enhanced", _3X1),
    Line("no fence", _less("fence")),
    Line("no fence, no stamp", _less("fence", "stamp")),
    Line("no stamp", _less("stamp"), (Fault("dropped"),)),
    Line("no stamp", _less("stamp"), (Fault("stale"),)),
    Line("no stamp", _less("stamp"), (Fault("timeout"),)),
    Line("no heartbeat", _less("heartbeat")),
    Line("no exit barrier", _less("exit_barrier")),
    Line("no heartbeat, no exit barrier", _less("heartbeat", "exit_barrier")),
    Line("no heartbeat, no exit barrier, no stamp", _less("heartbeat", "exit_barrier", "stamp")),
    Line("no bounded waits", _less("bounded"), (Fault("dead"),)),
    Line("no heartbeat", _less("heartbeat"), (Fault("dead"),)),
    Line("legacy", _2X2._replace(parts=LEGACY)),
    *(
        Line("enhanced", _2X2, (Fault(kind, budget),))
        for kind in ("dropped", "torn", "stale")
        for budget in (1, _TWICE)
    ),
    *(Line("enhanced", _2X2, (Fault(kind),)) for kind in ("timeout", "dead")),
    Line("enhanced", _3X1, (Fault("dropped", _TWICE),)),
    Line("enhanced", _3X1, (Fault("dead"),)),
)
SLOW_LINES: Final = (
    Line("enhanced", _3X1, (Fault("torn", _TWICE),)),
    Line("enhanced", _3X1, (Fault("stale", _TWICE),)),
    Line("enhanced", _3X1, (Fault("timeout"),)),
    Line("enhanced", Exchange(3, 2, ENHANCED, _RETRIES)),
    Line("enhanced", Exchange(4, 1, ENHANCED, _RETRIES)),
    Line("enhanced, 2 retries", Exchange(3, 1, ENHANCED, 2)),
)


def explore_line(line: Line, limit: int = 1_000_000) -> Row:
    """Explores a line: with orders that can't be told apart as one, and what that finds broken again with all orders.

    So a counterexample has as few choices as any run that breaks the property.
    """
    found = _explored(line, ExhaustiveRunner(limit))
    broken = {}
    for name in line.asked:
        if not found.holds(name):
            every_order = _explored(line, ExhaustiveRunner(limit, reduced=False, stops_at=(name,)))
            broken[name] = every_order.counterexamples.get(name, found.counterexamples[name])
    return Row(line, found, broken)


def explore_lines(lines: Iterable[Line] = LINES) -> Iterator[Row]:
    """Explores lines, one by one: seconds for LINES, a minute for SLOW_LINES."""
    return map(explore_line, lines)


def _explored(line: Line, runner: ExhaustiveRunner) -> Exploration:
    faults = line.exchange.faults(*line.faults) if line.faults else None
    return runner.explore(line.exchange.launch(faults), ExchangeWatch(line.exchange))


def markdown(rows: Iterable[Row]) -> str:
    """The table of docs/protocol.md, and the counterexamples below it."""
    table = [
        "| line | policy | cores x epochs | fault | states | K | holds | broken | calls that raise |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    schedules = []
    for number, row in enumerate(rows, 1):
        line, found = row.line, row.exploration
        states = str(found.states) if found.complete else f"the first {found.states}"
        steps = "endless" if found.most_actions is None else str(found.most_actions)
        size = f"{line.exchange.cores} x {line.exchange.epochs}"
        cells = (
            number,
            line.what,
            size,
            line.armed,
            states,
            steps,
            " ".join(row.held),
            " ".join(row.broken),
            _raises(found),
        )
        table.append(f"| {' | '.join(map(str, cells))} |")
        for name, example in row.broken.items():
            schedules += [f"line {number}, {name}: {example.violation.what}", f"    {example.schedule}", ""]
    listed = ["", "```text", *schedules[:-1], "```"] if schedules else []
    return "\n".join([*table, *listed, ""])


def _raises(found: Exploration) -> str:
    kinds = {unit.split()[1] for outcome in found.outcomes for unit in outcome.units if unit.startswith("raised")}
    return ", ".join(sorted(kinds)) or "none"
